"""Letters that a database cannot hold: said with the letter, the place and the cure, where the driver says neither."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from slotwise.errors import ConfigurationError

#: How PostgreSQL says it, in whatever language: the bytes of the letter, and both encodings.
_BYTES = re.compile(r"(?:0x[0-9a-f]{2} ?)+")
_ENCODINGS = re.compile(r'"([\w-]+)"')


@contextmanager
def in_its_letters(where: str) -> Iterator[None]:
    """Raise ConfigurationError if a text in here has a letter that the database's encoding lacks."""
    try:
        yield
    except Exception as error:
        inner = getattr(error, "orig", None) or error
        if "NUL (0x00)" in str(inner):  # of psycopg, before anything is sent
            raise ConfigurationError(f"{where}: PostgreSQL keeps no NUL (\\x00) in a text; leave it out") from error
        if (lacking := _lacking(inner)) is None:
            raise
        letter, encoding = lacking
        raise ConfigurationError(
            f"{where}: {letter!r} is no letter of the database's encoding, {encoding}; write another, or use a "
            "database in UTF8"
        ) from error


def _lacking(error: BaseException) -> tuple[str, str] | None:
    """The first such letter, and the encoding."""
    if isinstance(error, UnicodeEncodeError):  # a connection of the caller's that speaks in that encoding itself
        return error.object[error.start], error.encoding
    if getattr(error, "sqlstate", None) != "22P05":
        return None
    told, encodings = _BYTES.search(str(error)), _ENCODINGS.findall(str(error))
    letter = bytes.fromhex(told[0].replace("0x", "")).decode("utf-8", "backslashreplace") if told else "?"
    return letter, encodings[-1] if encodings else "another"
