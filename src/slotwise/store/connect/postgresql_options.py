"""What an address of PostgreSQL may say besides the place: libpq's own words, and settings of the session."""

from __future__ import annotations

import difflib
import re

from slotwise.errors import InvalidSetting
from slotwise.store.connect.dsn import psycopg


def read_options(text: str) -> dict[str, str]:
    """`-c name=value --other-name=value`, as libpq's `options` has it. Else raises `InvalidSetting`."""
    # libpq splits at spaces; a backslash keeps the next character as it is.
    joined = re.sub(r"(?<!\S)-c\s+", "-c", text)
    options: dict[str, str] = {}
    for word in re.findall(r"(?:\\.|[^\s\\])+", joined):
        match = re.fullmatch(r"(?:-c|--)(?P<name>[\w.-]+)=(?P<value>.*)", re.sub(r"\\(.)", r"\1", word), re.DOTALL)
        if match is None:
            raise InvalidSetting(f"options in the database address: {word!r} is not understood; write -c name=value")
        options[match["name"].replace("-", "_").lower()] = match["value"]
    return options


def write_options(parameters: dict[str, str]) -> str:
    """The inverse of `read_options`."""
    escaped = ((name, re.sub(r"([\s\\])", r"\\\1", value)) for name, value in parameters.items())
    return " ".join(f"-c {name}={value}" for name, value in escaped)


def refuse_unknown(arguments: dict[str, str]) -> None:
    driver = psycopg()
    known = {option.keyword.decode() for option in driver.pq.Conninfo.get_defaults()}
    for name in arguments.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        cure = f"did you mean {near[0]}?" if near else "take it out"
        raise InvalidSetting(f"the database address has an option {name!r} that libpq does not know; {cure}")
