"""Database errors: which pass by themselves, and how each is said in one line."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tests.kit.connections import is_transient, unreachable

from slotwise import DatabaseUnreachable, SchemaMissing
from slotwise.spi import database_url, describe_error


def wrapped(error: BaseException, *, invalidated: bool = False) -> DBAPIError:
    """As SQLAlchemy hands it on."""
    return OperationalError(
        "SELECT secret",
        {"payload": "geheim"},
        error,
        connection_invalidated=invalidated,
    )


def sqlite_error(code: int) -> sqlite3.OperationalError:
    """As the standard library raises it."""
    error = sqlite3.OperationalError("something")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "state",
    [
        "08000",
        "08006",
        "25006",
        "25P03",
        "40001",
        "40P01",
        "53100",
        "53300",
        "55P03",
        "57014",
        "57P01",
        "57P02",
        "57P03",
        "57P05",
        "58030",
    ],
)
def test_states_that_pass(state: str) -> None:
    """Connections, deadlocks, timeouts, full disks, shutdowns, failovers: a pause mends them."""
    error = psycopg.errors.lookup(state)("x")
    assert is_transient(error)
    assert is_transient(wrapped(error))


@pytest.mark.parametrize(
    "state",
    ["22001", "22P02", "23505", "42501", "42601", "42703", "42P01", "0A000", "28000"],
)
def test_states_that_stay(state: str) -> None:
    """Wrong statements, missing tables and bad data will be as wrong after a pause."""
    error = psycopg.errors.lookup(state)("x")
    assert not is_transient(error)
    assert not is_transient(wrapped(error))


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("connection failed: Connection refused"),
        psycopg.OperationalError("the connection is closed"),
        PoolTimeout("QueuePool limit of size 4 overflow 4 reached"),
        DatabaseUnreachable(),
        ConnectionResetError(),
        sqlite_error(sqlite3.SQLITE_BUSY),
        sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT),
        sqlite_error(sqlite3.SQLITE_LOCKED),
        sqlite_error(sqlite3.SQLITE_FULL),
        sqlite_error(sqlite3.SQLITE_IOERR_WRITE),
        wrapped(psycopg.InterfaceError("gone"), invalidated=True),
    ],
    ids=repr,
)
def test_errors_that_pass(error: BaseException) -> None:
    """Errors of drivers, pools and sockets without a SQLSTATE; also as the cause of another
    error.
    """
    assert is_transient(error)
    outer = RuntimeError("while polling")
    outer.__cause__ = error
    assert is_transient(outer)


@pytest.mark.parametrize(
    "error",
    [
        sqlite_error(sqlite3.SQLITE_ERROR),
        sqlite3.OperationalError("no such table: x"),
        psycopg.ProgrammingError("wrong"),
        ValueError("wrong"),
        SchemaMissing(),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_errors_that_stay(error: BaseException) -> None:
    """A pause would only hide them."""
    assert not is_transient(error)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            wrapped(
                psycopg.errors.AdminShutdown("terminating connection\nSSL closed")
            ),
            "terminating connection [57P01]",
        ),
        (
            wrapped(psycopg.errors.DiskFull("could not extend: No space left")),
            "could not extend: No space left [53100]; the disk of the database "
            "server is full; make room there",
        ),
        (
            wrapped(sqlite3.OperationalError("database is locked")),
            "database is locked",
        ),
        (
            psycopg.OperationalError("\n  bad\t dsn: host=h password=geheim\nmore"),
            "bad dsn: host=h password=***",
        ),
        (
            psycopg.OperationalError("postgresql://u:geheim@h/d?"),
            "postgresql://u:***@h/d?",
        ),
        (ValueError(), "ValueError"),
    ],
)
def test_describe(error: BaseException, expected: str) -> None:
    """The driver's first line and its state; neither statement nor parameters nor passwords."""
    assert describe_error(error) == expected


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        (
            'FATAL: password authentication failed for user "u"',
            "correct the user or the password",
        ),
        ("fe_sendauth: no password supplied", "correct the user or the password"),
        ('FATAL: no pg_hba.conf entry for host "1.2.3.4"', "pg_hba.conf"),
        ('FATAL: database "d" does not exist', "createdb d"),
        ('FATAL: role "u" does not exist', "createuser u"),
        ("Connection refused", "start the server"),
        (
            "failed to resolve host 'h': Name or service not known",
            "correct the host name",
        ),
        ("connection timeout expired", "check the network"),
        ("FATAL: sorry, too many clients already", "raise max_connections"),
        (
            'FATAL: too many connections for role "wk"',
            'ALTER ROLE "wk" CONNECTION LIMIT',
        ),
        (
            'FATAL: too many connections for database "jobs"',
            'ALTER DATABASE "jobs" CONNECTION LIMIT',
        ),
        ("FATAL: the database system is starting up", "wait until"),
        ("server does not support SSL, but SSL was required", "sslmode"),
        ("bad value for connect_timeout: 'soon'", "correct this option"),
        ('invalid sslmode value: "yes"', "correct this option"),
        ("something new", "check the database address"),
    ],
)
def test_unreachable(reason: str, cure: str) -> None:
    """Host, port, database, the driver's reason and what to do; no password."""
    error = unreachable(
        database_url("postgresql://u:g!heim@h:5433/d"),
        psycopg.OperationalError(f"{reason} g!heim"),
    )
    message = str(error)
    assert "'d' at host h, port 5433" in message
    assert reason in message
    assert cure in message
    assert "g!heim" not in message


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("postgresql:///d?host=/tmp", "'d' at host /tmp, port 5432:"),
        ("postgresql://a:1,b:2/d", "'d' at host a,b, port 1,2 "),
        ("postgresql://", "of the user's name at the default host, port 5432"),
        ("sqlite:///x.db", "the database 'x.db' cannot"),
    ],
)
def test_place(address: str, place: str) -> None:
    """The place is named in every form of address."""
    assert place.rstrip(": ") in str(
        unreachable(database_url(address), ValueError("x"))
    )
