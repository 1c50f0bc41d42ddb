"""Sessions on MariaDB have what statements rely on, whatever the server's defaults are; and servers
that lose races or data are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.databases import _fast_directory, provision
from tests.mariadb import MariaDBServer

from slotwise import DatabaseProblem, DatabaseRefused, DatabaseUnreachable, Settings
from slotwise.contrib.mysql.server import Server, probe, server_of
from slotwise.spi import Database

#: Defaults of a server under which statements would mean something else.
BAD_DEFAULTS = {
    "tx_isolation": "'REPEATABLE-READ'",
    "time_zone": "'+05:45'",
    "sql_mode": "'ANSI_QUOTES'",
    "autocommit": "1",
    "lock_wait_timeout": "86400",
}


@pytest.fixture
def opened(mysql_url: str) -> Iterator[Database]:
    database = Database(Settings(database_url=mysql_url))
    yield database
    database.close()


def value(connection: sa.Connection, name: str) -> object:
    return connection.exec_driver_sql(f"SELECT @@{name}").scalar_one()


def test_each_session_has_its_own_values(
    opened: Database, mariadb: MariaDBServer
) -> None:
    server = mariadb.connect()
    with server, server.cursor() as cursor:
        before = {}
        for name, bad in BAD_DEFAULTS.items():
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            (before[name],) = cursor.fetchone()
            cursor.execute(f"SET GLOBAL {name} = {bad}")
        try:
            for engine in (opened.main, opened.heart, opened.migrations()):
                with engine.connect() as connection:
                    has_deadlines = engine in (opened.main, opened.heart)
                    check(connection, opened.settings, has_deadlines)
        finally:
            for name, old in before.items():
                cursor.execute(f"SET GLOBAL {name} = %s", (old,))


def check(connection: sa.Connection, settings: Settings, has_deadlines: bool) -> None:
    assert value(connection, "tx_isolation") == "READ-COMMITTED"
    assert value(connection, "time_zone") == "+00:00"
    assert "STRICT_ALL_TABLES" in str(value(connection, "sql_mode"))
    assert "ANSI_QUOTES" not in str(value(connection, "sql_mode"))
    assert value(connection, "autocommit") == 0
    assert value(connection, "collation_connection") == "utf8mb4_nopad_bin"
    assert value(connection, "lock_wait_timeout") == 60 or has_deadlines
    if has_deadlines:
        lease = settings.lease.total_seconds()
        assert value(connection, "idle_transaction_timeout") == lease
        statement = settings.statement_timeout.total_seconds()
        assert float(str(value(connection, "max_statement_time"))) == statement


def test_a_connection_that_the_server_has_closed_is_replaced(
    opened: Database, mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened.transaction() as connection:
        number = value(connection, "pseudo_thread_id")
    with mariadb.connect() as server, server.cursor() as cursor:
        cursor.execute(f"KILL {number}")
    from slotwise.contrib.mysql import link

    monkeypatch.setattr(link, "REST_BEFORE_PING", link.REST_BEFORE_PING * 0)
    with opened.transaction() as connection:
        assert value(connection, "pseudo_thread_id") != number


@pytest.mark.parametrize(
    ("version", "server"),
    [
        ("5.5.5-10.11.14-MariaDB-0+deb12u2", Server(True, (10, 11, 14))),
        ("10.6.0-MariaDB", Server(True, (10, 6, 0))),
        ("8.4.3", Server(False, (8, 4, 3))),
        ("8.4.3-log", Server(False, (8, 4, 3))),
    ],
)
def test_versions(version: str, server: Server) -> None:
    assert server_of(version) == server


def test_a_wrong_address_is_told_apart_from_a_server_that_is_down(
    mariadb: MariaDBServer,
) -> None:
    def verify(url: str) -> None:
        database = Database(Settings(database_url=url))
        try:
            database.verify()
        finally:
            database.close()

    with pytest.raises(DatabaseRefused, match="Unknown database"):
        verify(mariadb.url("nowhere"))
    with pytest.raises(DatabaseRefused, match=r"Access denied .* correct the user"):
        verify(f"mysql://root:sesame@127.0.0.1:{mariadb.port}/mysql")
    with pytest.raises(DatabaseUnreachable, match="start the server"):
        verify("mysql://root@127.0.0.1:1/d")


@pytest.fixture(scope="module")
def statement_server() -> Iterator[MariaDBServer]:
    """One that logs statements."""
    home = Path(_fast_directory(), "slotwise-mariadb-statements")
    options = ["--log-bin=b", "--binlog-format=STATEMENT", "--server-id=1"]
    with MariaDBServer(home, options) as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
        yield server


def test_a_server_that_logs_statements_is_refused(
    statement_server: MariaDBServer,
) -> None:
    database = Database(Settings(database_url=statement_server.url("d")))
    with pytest.raises(DatabaseProblem, match="binlog_format = ROW"):
        database.verify()
    database.close()


def test_a_table_without_transactions_is_refused(mysql_empty_url: str) -> None:
    provision(mysql_empty_url)
    database = Database(Settings(database_url=mysql_empty_url))
    with database.migrations().begin() as connection:
        connection.exec_driver_sql("ALTER TABLE scheduled_workers ENGINE = MyISAM")
    with pytest.raises(DatabaseProblem, match="ALTER TABLE scheduled_workers ENGINE"):
        database.verify()
    database.close()


def test_a_server_that_answers_for_itself_passes(opened: Database) -> None:
    opened.verify()
    with opened.transaction() as connection:
        left = "SELECT count(*) FROM scheduled_receipts"
        assert connection.exec_driver_sql(left).scalar_one() == 0
        assert value(connection, "tx_isolation") == "READ-COMMITTED"
        assert value(connection, "autocommit") == 0


@pytest.mark.parametrize("split", ["by row", "by server"])
def test_a_proxy_that_splits_reads_and_writes_is_refused(split: str) -> None:
    """It answers a read from a replica, where the row has not come yet, one time of three."""
    reads = iter(range(1000))
    rows: set[str] = set()

    def ask(statement: str) -> Sequence[object] | None:
        name = next(iter(re.findall("[0-9a-f]{32}", statement)), "")
        if statement.startswith("INSERT"):
            rows.add(name)
            return None
        if statement.startswith("DELETE"):
            return None
        is_elsewhere = next(reads) % 3 == 2
        if "@@server_id" in statement:
            return (2, 1) if is_elsewhere and split == "by server" else (1, 0)
        is_there = name in rows and not (is_elsewhere and split == "by row")
        return (name,) if is_there else None

    with pytest.raises(DatabaseProblem, match="a proxy sends the reads"):
        probe(ask, "scheduled_receipts")
