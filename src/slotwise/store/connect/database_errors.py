"""What a database error means: whether it passes by itself, and how to describe it in one line without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from slotwise.errors import ConfigurationError, DatabaseProblem, DatabaseRefused, DatabaseUnreachable
from slotwise.model.error_text import hide_password

# Classes of SQLSTATE that a pause mends: connection, resources, an operator's intervention, the system's.
_PASSING_CLASSES = ("08", "53", "57P", "58")
_PASSING_STATES = frozenset(
    {
        "25006",  # read-only: a standby, until the connection goes to the new primary
    }
)
# The database is reachable and busy.
_BUSY_STATES = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock
        "55P03",  # lock timeout
        "57014",  # statement timeout, or cancelled by an operator
        "25P03",  # idle in transaction for longer than allowed: this process had no turn
        "25P04",  # transaction longer than allowed
    }
)
# By number, and below by their attribute: this module must not be the one that imports the library.
_PASSING_SQLITE = frozenset(
    {
        5,  # busy
        6,  # locked
        7,  # no memory
        10,  # I/O error
        13,  # the disk is full
        14,  # cannot open
        15,  # protocol: locks
    }
)

# Wrong password, not let in, no such database: by SQLSTATE, and in the words in which the server says these.
_REFUSING_STATES = frozenset({"28P01", "28000", "3D000"})
_REFUSING_WORDS = re.compile(
    r"no password supplied|FATAL: +(.*authentication failed for user|no pg_hba\.conf entry|pg_hba\.conf rejects"
    r'|role ".*" (does not exist|is not permitted to log in)|database ".*" does not exist'
    r'|permission denied for database ".*")'
)

# What mends these, wherever they are met. Of what may not be done the server names the object, and not the role.
_FORBIDDEN = "42501"
_STATE_CURES = {
    _FORBIDDEN: "grant it what docs/operations.md lists under Permissions",
    "25006": "connect to the primary, for instance with target_session_attrs=read-write, or allow writing",
    "3F000": "name a schema that is there: --schema, SLOTWISE_SCHEMA",
    "42P01": "see what is missing: slotwise db check; tables in another schema need --schema",
    "55P03": "another transaction holds what this one needs; end that one, or try again",
    "53100": "the disk of the database server is full; make room there",
}

_CURES = (
    (r"(bad|invalid) .*value", "correct this option in the database address"),
    (
        r"password|authentication|no pg_hba",
        "correct the user or the password, or let the user in with pg_hba.conf",
    ),
    (
        r'permission denied for database "(?P<name>[^"]*)"',
        'let the user in: GRANT CONNECT ON DATABASE "{name}" TO the user',
    ),
    (r'database "(?P<name>[^"]*)" does not exist', "create it, for instance with: createdb {name}"),
    (r'role "(?P<name>[^"]*)" does not exist', "create it, for instance with: createuser {name}"),
    (
        r'too many connections for role "(?P<name>[^"]*)"',
        'close connections of it, or let it have more: ALTER ROLE "{name}" CONNECTION LIMIT -1',
    ),
    (
        r'too many connections for database "(?P<name>[^"]*)"',
        'close connections to it, or let it have more: ALTER DATABASE "{name}" CONNECTION LIMIT -1',
    ),
    (
        r"too many (clients|connections)|connection slots",
        "raise max_connections, or close connections of others",
    ),
    (r"starting up|shutting down|recovery", "wait until the server accepts connections"),
    (r"translate host name|resolve|name or service", "correct the host name"),
    (r"timed? ?out", "check the network and the firewall between this machine and the server"),
    (r"refused|no such file", "start the server, or correct host and port"),
    (r"ssl|certificate", "correct sslmode and the certificates"),
    (r"unable to open", "create the directory and allow writing in it, or correct the path"),
    (r"not a database", "name another file"),
)


def is_transient(error: BaseException) -> bool:
    """Whether the same statement may well succeed later: retry it after a pause."""
    return any(_passes(one) for one in _chain(error))


def is_about_a_row(error: BaseException) -> bool:
    """Whether one row of a batch caused the error, and the others would succeed without it.

    False for errors of the connection, and for errors that affect every row: a missing table or column.
    """
    if isinstance(error, DBAPIError):
        return isinstance(error, DataError | IntegrityError)
    return isinstance(error, Exception) and not isinstance(
        error, SQLAlchemyError | DatabaseProblem | OSError | MemoryError
    )


def is_busy(error: BaseException) -> bool:
    """Whether a reachable server was busy with other work, which is no outage. A lock of SQLite covers the file."""
    return any(_sqlstate(one) in _BUSY_STATES for one in _chain(error))


def is_locked(error: BaseException) -> bool:
    """Whether another transaction kept a row locked for longer than ``lock_timeout``."""
    return isinstance(error, DBAPIError) and _sqlstate(error.orig) == "55P03"


def lacks_tables(error: BaseException) -> bool:
    """Whether a table of the statement is missing."""
    return any(_sqlstate(one) == "42P01" or str(one).startswith("no such table") for one in _chain(error))


def describe(error: BaseException) -> str:
    """Return the error in one line, without statement, parameters and passwords, with the cure if known."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = hide_password(lines[0]) if lines else type(error).__name__
    if (state := _sqlstate(error)) is None:
        return text
    known = "".join(f", for {note}" for note in getattr(error, "__notes__", ()))
    return f"{text}{known} [{state}]{f'; {cure}' if (cure := _STATE_CURES.get(state)) else ''}"


def name_role(context: ExceptionContext) -> None:
    """Add the role to an error about missing permissions; a listener of engines."""
    error, connection = context.original_exception, context.connection
    if connection is not None and _sqlstate(error) == _FORBIDDEN:
        driver: Any = connection.connection.dbapi_connection
        error.add_note(f"role {driver.info.user!r}")


def unreachable(url: URL, error: BaseException) -> DatabaseUnreachable:
    """Return the error of a first connection, with place and cure; DatabaseRefused if the server answered."""
    reason = describe(error)
    if url.password:
        reason = reason.replace(url.password, "***")
    kind = DatabaseRefused if _is_refusal(url, error) else DatabaseUnreachable
    return kind(f"the database {_place(url)} cannot be reached: {reason}; {_cure(reason)}")


def problem(url: URL, error: SQLAlchemyError) -> DatabaseProblem:
    """Convert an error of the driver to one of ours, in one line: DatabaseUnreachable without a connection."""
    if _is_away(error) or _is_refusal(url, error):
        return unreachable(url, error)
    return DatabaseProblem(f"the database refused: {describe(error)}")


def _is_away(error: SQLAlchemyError) -> bool:
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, DBAPIError) or is_busy(error):
        return False
    state = _sqlstate(error.orig)
    if state is None:
        return error.connection_invalidated or _is_psycopg_operational(error.orig)
    return state.startswith(("08", "57P")) or state == "53300"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the driver's error within it."""
    yield error
    inner = error.orig if isinstance(error, DBAPIError) else error.__cause__
    if inner is not None:
        yield from _chain(inner)


def _passes(error: BaseException) -> bool:
    if isinstance(error, PoolTimeout | DatabaseUnreachable | ConnectionError | TimeoutError):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if (code := getattr(error, "sqlite_errorcode", None)) is not None:
        return code & 0xFF in _PASSING_SQLITE
    state = _sqlstate(error)
    if state is None:  # libpq gives no SQLSTATE without a connection
        return _is_psycopg_operational(error)
    return state in _PASSING_STATES | _BUSY_STATES or state.startswith(_PASSING_CLASSES)


def _is_psycopg_operational(error: BaseException | None) -> bool:
    """By name: this module must not be the one that imports the driver."""
    return any(
        kind.__module__.startswith("psycopg") and kind.__name__ == "OperationalError" for kind in type(error).__mro__
    )


def _is_refusal(url: URL, error: BaseException) -> bool:
    """Whether the server rejected the user, the password or the database.

    Before a session exists, libpq gives the server's message without SQLSTATE; a message in a language other than
    English counts as unreachable. One address of a host is enough; of several hosts, each must reject.
    """
    inner = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if (state := _sqlstate(inner)) is not None:
        return state in _REFUSING_STATES
    attempts = [bool(_REFUSING_WORDS.search(line)) for line in str(inner).splitlines() if "failed:" in line]
    hosts = (url.host or str(url.query.get("host", ""))).count(",") + 1
    return any(attempts) if hosts == 1 else bool(attempts) and all(attempts)


def _sqlstate(error: BaseException | None) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def _place(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return repr(url.database or ":memory:")
    host, port = (getattr(url, name) or url.query.get(name) for name in ("host", "port"))
    database = repr(url.database) if url.database else "of the user's name"
    return f"{database} at {f'host {host}' if host else 'the default host'}, port {port or '5432'}"


def _cure(reason: str) -> str:
    for pattern, cure in _CURES:
        if match := re.search(pattern, reason, re.IGNORECASE):
            return cure.format(**match.groupdict())
    return "check the database address"


#: The bytes of the character and both encodings, in PostgreSQL's message of any language.
_BYTES = re.compile(r"(?:0x[0-9a-f]{2} ?)+")
_ENCODINGS = re.compile(r'"([\w-]+)"')


@contextmanager
def in_its_letters(where: str) -> Iterator[None]:
    """Raise ConfigurationError for a string in here with a character that the database's encoding lacks."""
    try:
        yield
    except Exception as error:
        inner = getattr(error, "orig", None) or error
        if "NUL (0x00)" in str(inner):  # from psycopg, before anything is sent
            raise ConfigurationError(f"{where}: PostgreSQL keeps no NUL (\\x00) in a text; leave it out") from error
        if (lacking := _lacking(inner)) is None:
            raise
        letter, encoding = lacking
        raise ConfigurationError(
            f"{where}: {letter!r} is no letter of the database's encoding, {encoding}; write another, or use a "
            "database in UTF8"
        ) from error


def _lacking(error: BaseException) -> tuple[str, str] | None:
    """Return the first such character and the encoding, or None."""
    if isinstance(error, UnicodeEncodeError):  # a caller's connection with that client encoding
        return error.object[error.start], error.encoding
    if getattr(error, "sqlstate", None) != "22P05":
        return None
    told, encodings = _BYTES.search(str(error)), _ENCODINGS.findall(str(error))
    letter = bytes.fromhex(told[0].replace("0x", "")).decode("utf-8", "backslashreplace") if told else "?"
    return letter, encodings[-1] if encodings else "another"
