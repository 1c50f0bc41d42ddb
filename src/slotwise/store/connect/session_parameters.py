"""Parameters of PostgreSQL's sessions. Those that change what a statement means have one value in
all sessions of slotwise, whatever role, database and environment say.

The page on connections says why each other parameter is harmless; a test compares that list with
the server's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, text

from slotwise.errors import InvalidSetting

if TYPE_CHECKING:
    from psycopg import Connection as Driver

#: The formats of values: the driver reads only these.
FORMATS: Final = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres"}
#: With another value a statement means something else, or rolls back more than itself. In a table
#: adopted from Java's db-scheduler a trigger rejects deletions without the last one.
PINNED: Final = {
    **FORMATS,
    "array_nulls": "on",
    "default_transaction_isolation": "read committed",
    "exit_on_error": "off",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "slotwise.delete": "on",
}
#: A statement fails if row-level security would hide rows from it. The address of a tenant says
#: otherwise.
ROW_SECURITY: Final = {"row_security": "off"}
#: Only a superuser may set it: other values switch the triggers off.
_CHECKED: Final = PINNED | {"session_replication_role": "origin"}

_DURABILITY = text("SELECT pg_catalog.current_setting('synchronous_commit')")
_OTHERS = text(
    "SELECT e.name, pg_catalog.current_setting(e.name, true) "
    "FROM unnest(CAST(:names AS text[]), CAST(:values AS text[])) "
    "AS e(name, value) "
    "WHERE coalesce(pg_catalog.starts_with("
    "pg_catalog.current_setting(e.name, true), e.value), false) IS NOT TRUE ORDER BY e.name"
)


def session_warnings(connection: Connection) -> list[str]:
    """Return what a crash of the server may lose, and which parameters have another value."""
    if connection.dialect.name != "postgresql":
        return []
    found = []
    if connection.scalar(_DURABILITY) == "off":
        found.append(
            "synchronous_commit is off: a crash of the server loses its latest commits, so tasks "
            "and operations may vanish and slots that had ended run again (complete_in and slots "
            "of give_up jobs are safe); set it to on for role or database"
        )
    given = {"names": list(_CHECKED), "values": list(_CHECKED.values())}
    for name, value in connection.execute(_OTHERS, given):
        found.append(
            f"{name} is {value} in this session, slotwise needs {_CHECKED[name]}; "
            "set it so for role and database, and in the pooler"
        )
    return found


def pinned_over(options: Mapping[str, str]) -> dict[str, str]:
    """Return these parameters with the pinned ones, which win; names are in lower case."""
    return (
        ROW_SECURITY
        | dict(options)
        | {name.lower(): value for name, value in PINNED.items()}
    )


def insist_on_formats(connection: Driver) -> None:
    """Set the formats again: libpq sends PGTZ and PGDATESTYLE of the environment after our
    options.
    """
    for name, form in FORMATS.items():
        if not (connection.info.parameter_status(name) or "").startswith(form):
            connection.execute(
                "SELECT pg_catalog.set_config(%s, %s, false)", (name, form)
            )
            connection.commit()


def read_options(text: str) -> dict[str, str]:
    """Parse `-c name=value --other-name=value`, as in libpq's `options`. Raise `InvalidSetting`
    for other forms.
    """
    # libpq splits at spaces; a backslash escapes the next character.
    joined = re.sub(r"(?<!\S)-c\s+", "-c", text)
    options: dict[str, str] = {}
    for place, word in enumerate(re.findall(r"(?:\\.|[^\s\\])+", joined), start=1):
        match = re.fullmatch(
            r"(?:-c|--)(?P<name>[\w.-]+)=(?P<value>.*)",
            re.sub(r"\\(.)", r"\1", word),
            re.DOTALL,
        )
        if match is None:
            raise InvalidSetting(
                f"item {place} of the options in the database address is not "
                "understood; write -c name=value"
            )
        options[match["name"].replace("-", "_").lower()] = match["value"]
    return options


def write_options(parameters: Mapping[str, str]) -> str:
    """The inverse of `read_options`."""
    escaped = (
        (name, re.sub(r"([\s\\])", r"\\\1", value))
        for name, value in parameters.items()
    )
    return " ".join(f"-c {name}={value}" for name, value in escaped)
