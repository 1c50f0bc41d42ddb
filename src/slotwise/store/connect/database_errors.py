"""What a database error means: whether it passes by itself, and how to describe it in one line
without secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

from sqlalchemy import URL
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from slotwise.errors import (
    ConfigurationError,
    DatabaseProblem,
    DatabaseRefused,
    DatabaseUnreachable,
)
from slotwise.model.error_text import hide_password
from slotwise.store.connect.mysql_callers import mysql_callers


class _Kind(Enum):
    AWAY = auto()  # no connection
    BUSY = auto()  # reachable, with other work
    PASSES = auto()  # another state that a pause mends
    REFUSED = auto()  # the user, the password or the database was rejected
    STAYS = auto()


#: SQLSTATEs, or how they begin. The longest that fits counts.
_KINDS = {
    "08": _Kind.AWAY,
    "25006": _Kind.PASSES,  # a standby, until the connection goes to the new primary
    "25P03": _Kind.BUSY,  # idle in transaction for too long: this process had no turn
    "25P04": _Kind.BUSY,  # a transaction longer than allowed
    "28000": _Kind.REFUSED,
    "28P01": _Kind.REFUSED,
    "3D000": _Kind.REFUSED,
    "40001": _Kind.BUSY,  # serialization failure
    "40P01": _Kind.BUSY,  # deadlock
    "53": _Kind.PASSES,  # resources
    "53300": _Kind.AWAY,  # too many connections
    "55P03": _Kind.BUSY,
    "57014": _Kind.BUSY,  # statement timeout, or cancelled by an operator
    "57P": _Kind.AWAY,  # an operator's intervention
    "58": _Kind.PASSES,  # the operating system
}
#: The cure of a SQLSTATE wherever it is met.
_CURES_OF_STATES = {
    "25006": (
        "connect to the primary, for instance with target_session_attrs=read-write, or allow "
        "writing"
    ),
    "3F000": "name a schema that exists: --schema, SLOTWISE_SCHEMA",
    "42501": "as the owner of the tables: slotwise db grants --role ROLE --to NAME",
    "42P01": (
        "see what is missing: slotwise db check; tables in another schema need --schema"
    ),
    "53100": "the disk of the database server is full; make room there",
    "55P03": (
        "another transaction holds what this one needs; end that one, or try again"
    ),
}
#: The cure where row-level security would hide rows, or refuses one.
_HIDDEN = (
    "row-level security is on for this table, and this role's rows are hidden or refused; as the "
    "owner of the table: ALTER TABLE … DISABLE ROW LEVEL SECURITY; for tenants, see Tenants in "
    "the page on security"
)
# Busy, locked, no memory, I/O error, disk full, cannot open, protocol of locks. By number, and
# above by the attribute: this module must not be the one that imports a driver.
_PASSING_SQLITE = frozenset({5, 6, 7, 10, 13, 14, 15})

_MYSQL_DRIVERS = ("pymysql", "asyncmy", "MySQLdb", "aiomysql")

# Before a session exists, libpq gives the server's message without SQLSTATE.
_REFUSING_WORDS = re.compile(
    r"no password supplied|FATAL: +(.*authentication failed for user|no "
    r"pg_hba\.conf entry|pg_hba\.conf rejects"
    r'|role ".*" (does not exist|is not permitted to log in)|database ".*" does not exist'
    r'|permission denied for database ".*")'
)
_CURES = {
    r"(bad|invalid) .*value": "correct this option in the database address",
    r"password|authentication|no pg_hba": (
        "correct the user or the password, or let the user in: pg_hba.conf of PostgreSQL, GRANT of "
        "MariaDB"
    ),
    r'permission denied for database "(?P<name>[^"]*)"': (
        'let the user in: GRANT CONNECT ON DATABASE "{name}" TO the user'
    ),
    r'database "(?P<name>[^"]*)" does not exist': "create it, for instance with: createdb {name}",
    r'role "(?P<name>[^"]*)" does not exist': "create it, for instance with: createuser {name}",
    r'too many connections for role "(?P<name>[^"]*)"': (
        'close connections of it, or allow it more: ALTER ROLE "{name}" CONNECTION LIMIT -1'
    ),
    r'too many connections for database "(?P<name>[^"]*)"': (
        'close connections to it, or allow it more: ALTER DATABASE "{name}" CONNECTION LIMIT -1'
    ),
    r"too many (clients|connections)|connection slots": (
        "raise max_connections, or close connections of others"
    ),
    r"starting up|shutting down|recovery": "wait until the server accepts connections",
    r"translate host name|resolve|name or service": "correct the host name",
    r"timed? ?out": "check the network and the firewall between this machine and the server",
    r"refused|no such file": "start the server, or correct host and port",
    r"ssl|certificate": "correct sslmode and the certificates",
    r"unable to open": "create the directory and allow writing in it, or correct the path",
    r"not a database": "name another file",
    r"": "check the database address",
}


def is_transient(error: BaseException) -> bool:
    """Whether the same statement may succeed later: retry it after a pause."""
    passing = (_Kind.AWAY, _Kind.BUSY, _Kind.PASSES)
    return any(
        _kind(one) in passing or getattr(one, "connection_invalidated", False)
        for one in _chain(error)
    )


def is_about_a_row(error: BaseException) -> bool:
    """Whether one row of a batch caused the error, so that the others may succeed without it."""
    if isinstance(error, DBAPIError):
        is_refused_value = (sqlstate(error) or "")[:2] in ("22", "23")
        return is_refused_value or isinstance(error, DataError | IntegrityError)
    return isinstance(error, Exception) and not isinstance(
        error, SQLAlchemyError | DatabaseProblem | OSError | MemoryError
    )


def is_busy(error: BaseException) -> bool:
    """Whether a reachable server was busy with other work, which is no outage. A lock of SQLite
    covers the file.
    """
    return any(_kind(one) is _Kind.BUSY for one in _chain(error))


def is_locked(error: BaseException) -> bool:
    """Whether another transaction kept a row locked for longer than ``lock_timeout``."""
    return sqlstate(error) == "55P03"


def lacks_permission(error: BaseException) -> bool:
    """Whether the role may not read or write a table of the statement."""
    return any(sqlstate(one) == "42501" for one in _chain(error))


def lacks_tables(error: BaseException) -> bool:
    return any(
        sqlstate(one) == "42P01" or str(one).startswith("no such table")
        for one in _chain(error)
    )


def describe_error(error: BaseException) -> str:
    """Return the error in one line, without statement, parameters and passwords, with the cure if
    known.
    """
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    number = _number(error)
    said = str(error.args[-1] if number else error)
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    text = hide_password(lines[0]) if lines else type(error).__name__
    if not (state := number or sqlstate(error)):
        return text
    notes = "".join(f", for {note}" for note in getattr(error, "__notes__", ()))
    cure = _CURES_OF_STATES.get(sqlstate(error) or "", "")
    if "row-level security" in text:
        cure = _HIDDEN
    return f"{text}{notes} [{state}]{cure and f'; {cure}'}"


def name_role(context: ExceptionContext) -> None:
    """Add the role to an error about missing permissions: the server names the object only."""
    error = context.original_exception
    connection = context.connection
    if connection is not None and sqlstate(error) == "42501":
        info = getattr(connection.connection.dbapi_connection, "info", None)
        error.add_note(f"role {getattr(info, 'user', None)!r}")


def unreachable(url: URL, error: BaseException) -> DatabaseUnreachable:
    """Return the error of a first connection, with place and cure; DatabaseRefused if the server
    answered.
    """
    reason = describe_error(error)
    if url.password:
        reason = reason.replace(url.password, "***")
    refused = _is_refusal(url, error)
    kind = DatabaseRefused if refused else DatabaseUnreachable
    what = "refused the login" if refused else "cannot be reached"
    found = (
        (cure, re.search(pattern, reason, re.IGNORECASE))
        for pattern, cure in _CURES.items()
    )
    cure = next(cure.format(**match.groupdict()) for cure, match in found if match)
    return kind(f"the database {describe_address(url)} {what}: {reason}; {cure}")


def problem(url: URL, error: SQLAlchemyError) -> DatabaseProblem:
    """Convert an error of the driver to one of ours, in one line: DatabaseUnreachable without a
    connection.
    """
    kinds = {_kind(one) for one in _chain(error)}
    if (_Kind.AWAY in kinds and _Kind.BUSY not in kinds) or _is_refusal(url, error):
        return unreachable(url, error)
    return DatabaseProblem(f"database error: {describe_error(error)}")


@contextmanager
def in_callers_transaction() -> Iterator[None]:
    """Add a note to an error of MariaDB or MySQL in here that says what has become of the caller's
    transaction, of which nothing is repeated.
    """
    try:
        yield
    except DBAPIError as error:
        number = _number(error.orig)
        if number and (note := mysql_callers().left_by(number)):
            error.add_note(note)
        raise


@contextmanager
def in_its_letters(where: str) -> Iterator[None]:
    """Raise ConfigurationError for a string in here with a character that the database's encoding
    lacks.
    """
    try:
        yield
    except Exception as error:
        inner = getattr(error, "orig", None) or error
        if "NUL (0x00)" in str(inner):  # from psycopg, before anything is sent
            raise ConfigurationError(
                f"{where}: PostgreSQL stores no NUL (\\x00) in a string; remove it"
            ) from error
        if isinstance(inner, UnicodeEncodeError) or sqlstate(inner) == "22P05":
            raise ConfigurationError(
                f"{where}: a character is not in the encoding of the database: "
                f"{describe_error(error)}; replace it, or use a "
                "database in UTF8"
            ) from error
        raise


def _chain(error: BaseException) -> Iterator[BaseException]:
    yield error
    inner = error.orig if isinstance(error, DBAPIError) else error.__cause__
    if inner is not None:
        yield from _chain(inner)


def sqlstate(error: BaseException | None) -> str | None:
    """Return PostgreSQL's code of an error, also of one that SQLAlchemy has wrapped. Errors of
    MariaDB and MySQL have the code of what they mean.
    """
    inner = error.orig if isinstance(error, DBAPIError) else error
    if number := _number(inner):
        return mysql_callers().code_of(number)
    state = getattr(inner, "sqlstate", None)
    return state if isinstance(state, str) else None


def _number(error: BaseException | None) -> int:
    """Return the number that MariaDB or MySQL gives an error; 0 for one without."""
    is_theirs = type(error).__module__.partition(".")[0] in _MYSQL_DRIVERS
    number = next(iter(getattr(error, "args", ())), None)
    return number if is_theirs and isinstance(number, int) else 0


def _kind(error: BaseException) -> _Kind:
    if state := sqlstate(error):
        begins = (state[:length] for length in range(len(state), 1, -1))
        return next((_KINDS[one] for one in begins if one in _KINDS), _Kind.STAYS)
    if isinstance(
        error, PoolTimeout | DatabaseUnreachable | ConnectionError | TimeoutError
    ):
        return _Kind.AWAY
    if (code := getattr(error, "sqlite_errorcode", None)) is not None:
        return _Kind.PASSES if code & 0xFF in _PASSING_SQLITE else _Kind.STAYS
    # libpq gives no SQLSTATE without a connection. By name: this module must not be the one that
    # imports the driver.
    kinds = {
        f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        for kind in type(error).__mro__
    }
    is_away = (
        getattr(error, "connection_invalidated", False)
        or "psycopg.OperationalError" in kinds
    )
    return _Kind.AWAY if is_away else _Kind.STAYS


def _is_refusal(url: URL, error: BaseException) -> bool:
    """Whether the server (with several hosts, each of them) rejected user, password or database,
    in English.
    """
    if sqlstate(error) is not None:
        return _kind(error) is _Kind.REFUSED
    inner = error.orig if isinstance(error, DBAPIError) else error
    attempts = [
        bool(_REFUSING_WORDS.search(line))
        for line in str(inner).splitlines()
        if "failed:" in line
    ]
    hosts = (url.host or str(url.query.get("host", ""))).count(",") + 1
    return any(attempts) if hosts == 1 else bool(attempts) and all(attempts)


def describe_address(url: URL) -> str:
    """Return which database an address names, without secrets."""
    if url.get_backend_name() == "sqlite":
        return hide_password(repr(url.database or ":memory:"))
    host, port = (
        getattr(url, name) or url.query.get(name) for name in ("host", "port")
    )
    database = repr(url.database) if url.database else "of the user's name"
    return hide_password(
        f"{database} at {f'host {host}' if host else 'the default host'}, port {port or '5432'}"
    )
