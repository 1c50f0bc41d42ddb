"""The key of a row as text, for the table of rows that were set aside, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Final
from uuid import UUID

from slotwise import ConfigurationError

#: The longest key, in characters of its text.
LONGEST_KEY: Final = 200
#: The values of the key's columns, in order.
Key = tuple[object, ...]

_PLAIN: Final = (bool, int, str)
_READERS: Final[dict[str, Callable[[str], object]]] = {
    "UUID": UUID,
    "Decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
}


def key_text(key: Key) -> str:
    """Return the key as text: ``17``, ``"ann"``, or ``["de", 17]`` for two columns.

    Raises ConfigurationError for a key of more than 200 characters, and for a value that does
    not keep its type.
    """
    values = [_written(value) for value in key]
    text = json.dumps(values[0] if len(values) == 1 else values, ensure_ascii=False)
    if len(text) > LONGEST_KEY:
        raise ConfigurationError(
            f"the key {text:.60}… has {len(text)} characters, at most {LONGEST_KEY} are "
            "allowed; name a shorter unique column as key="
        )
    return text


def read_key(text: str) -> Key:
    """Return the key of a text from ``key_text``."""
    found = json.loads(text)
    values = found if isinstance(found, list) else [found]
    return tuple(_read(value) for value in values)


def _written(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    kind = type(value).__name__
    if isinstance(value, datetime | date | time):
        return {kind: value.isoformat()}
    if kind in _READERS:
        return {kind: str(value)}
    raise ConfigurationError(
        f"the key {value!r:.60} is a {kind}; name a column of numbers, strings, UUIDs or "
        "dates as key="
    )


def _read(value: object) -> object:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return _READERS[kind](text)
