"""Pools of connections to PostgreSQL: what they survive, and whether the server has room for
them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.exc import DBAPIError
from tests.connections import HEARTBEAT, Open, backend, engines
from tests.kit.connections import is_transient, postgresql_connections, timeline_of

from slotwise import Settings
from slotwise.spi import Database, describe_error


class TestPools:
    """Small, of our own, and one for heartbeats alone."""

    def test_making_it_touches_nothing(self, database: Open) -> None:
        """An application may start before its database."""
        assert (
            database("postgresql://nowhere.invalid:1/x")
            .main.pool.status()
            .startswith("Pool size: 4")
        )

    def test_an_exhausted_pool_costs_no_heartbeat(self, database: Open) -> None:
        """The heart's connection is there when every other is taken; a second heartbeat at a
        time is not.
        """
        opened = database(heartbeat_interval=HEARTBEAT, pool_size=1, overflow=0)
        with opened.main.connect(), opened.heart.connect() as heart:
            assert backend(heart)
            for engine in engines(opened).values():
                with (
                    pytest.raises(Exception, match="QueuePool limit") as caught,
                    engine.connect(),
                ):
                    pass
                assert is_transient(caught.value)

    def test_one_engine_for_all_threads(self, database: Open) -> None:
        """Threads that ask at the same time get the same pool."""
        opened = database()
        together = threading.Barrier(8)

        def ask() -> Engine:
            together.wait()
            return opened.main

        with ThreadPoolExecutor(8) as threads:
            assert (
                len({id(engine) for engine in threads.map(lambda _: ask(), range(8))})
                == 1
            )

    def test_close(self, database: Open, caplog: pytest.LogCaptureFixture) -> None:
        """No connection is left on the server; a later use opens new ones. The pool logs nothing
        under our name.
        """
        opened, observer = database(worker_name="closing"), database()
        opened.verify()
        with caplog.at_level("INFO"):
            opened.close()
        assert {record.name for record in caplog.records} <= {
            "sqlalchemy.pool.impl.QueuePool"
        }
        with observer.main.connect() as connection:
            count = (
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE "
                "'slotwise closing%%'"
            )
            until_true(connection, f"SELECT ({count}) = 0")
        opened.verify()

    @pytest.mark.parametrize("role", ["main", "heart", "claims"])
    def test_a_connection_that_is_in_use_at_the_close_is_closed_afterwards(
        self, database: Open, role: str
    ) -> None:
        """The pool it belongs to is gone: nobody else would close it."""
        opened = database()
        with getattr(opened, role).connect() as connection:
            driver = connection.connection.driver_connection
            opened.close()
            assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
        assert driver is not None
        assert driver.closed

    def test_a_connection_that_is_opened_during_the_close_is_closed_afterwards(
        self, database: Open
    ) -> None:
        """Race: the pool closes between the request for a connection and the server's answer."""
        opened = database()
        event.listen(opened.main, "connect", lambda *_: opened.close())
        with opened.main.connect() as connection:
            driver = connection.connection.driver_connection
        assert driver is not None
        assert driver.closed

    def test_a_notification_after_the_close_leaves_no_connection(
        self, database: Open
    ) -> None:
        """Race: the pool closes between a statement and the notification that follows it."""
        opened = database(worker_name="telling")
        made: list[psycopg.Connection] = []
        event.listen(opened.main, "connect", lambda driver, _: made.append(driver))
        with opened.telling("mail") as connection:
            connection.exec_driver_sql("SELECT 1")
            opened.close()
        opened.wake_ups.flush()
        assert len(made) == 2
        assert all(driver.closed for driver in made)

    @pytest.mark.parametrize(
        ("role", "name", "value"),
        [
            *(
                (role, "session_parameters.FORMATS", {"ignore_system_indexes": "off"})
                for role in ("main", "heart", "wake-up")
            ),
            ("main", "postgresql_connections._SOURCE", "SELECT 1 / 0"),
        ],
    )
    def test_a_connection_whose_set_up_fails_is_closed(
        self,
        database: Open,
        monkeypatch: pytest.MonkeyPatch,
        role: str,
        name: str,
        value: object,
    ) -> None:
        """Its first statements may meet a shutdown, or a deadline. (This option can only be set at
        the start.)
        """
        made: list[psycopg.Connection] = []
        connect = psycopg.Connection.connect.__func__  # type: ignore[attr-defined]

        def recorded(
            kind: type[psycopg.Connection], **keywords: str
        ) -> psycopg.Connection:
            made.append(connect(kind, **keywords))
            return made[-1]

        monkeypatch.setattr(psycopg.Connection, "connect", classmethod(recorded))
        monkeypatch.setattr(f"slotwise.store.connect.{name}", value)
        opened = database()
        with pytest.raises((psycopg.Error, DBAPIError)):
            opened.listen() if role == "wake-up" else getattr(opened, role).connect()
        assert [driver.closed for driver in made] == [True]

    @pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
    def test_a_server_that_tells_no_timeline(self, pg_url: str, pooler: bool) -> None:
        """Its functions may be refused to the role, or unknown to a managed service."""
        name = f"{sa.make_url(pg_url).database}_plain"
        hidden = "EXECUTE ON FUNCTION pg_current_wal_lsn()"
        with psycopg.connect(pg_url, autocommit=True) as owner:
            owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'".encode())
            owner.execute(f"REVOKE {hidden} FROM PUBLIC".encode())
            url = sa.make_url(pg_url).set(username=name, password="secret")
            settings = Settings(
                database_url=url.render_as_string(hide_password=False), pooler=pooler
            )
            with closing(Database(settings)) as database:
                for _ in range(2):
                    with database.main.begin() as connection:
                        assert connection.scalar(sa.text("SELECT 1")) == 1
                        assert timeline_of(connection) is None
            owner.execute(f"GRANT {hidden} TO PUBLIC".encode())
            owner.execute(f"DROP ROLE {name}".encode())

    def test_a_restart_while_idle_is_nobodys_error(
        self, database: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A connection that rested is asked whether it lives, and replaced."""
        monkeypatch.setattr(postgresql_connections, "REST_BEFORE_PING", timedelta(0))
        opened, operator = database(), database()
        with opened.main.connect() as connection:
            before = backend(connection)
        kill(operator, before)
        with opened.main.connect() as connection:
            assert backend(connection) != before

    def test_a_busy_connection_pays_no_trip(
        self, database: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only one that rested is asked."""
        opened = database()
        opened.verify()
        asked: list[object] = []
        monkeypatch.setattr(opened.main.dialect, "do_ping", asked.append)
        opened.verify()
        assert not asked
        monkeypatch.setattr(postgresql_connections, "REST_BEFORE_PING", timedelta(0))
        opened.verify()
        assert len(asked) == 1

    def test_a_killed_connection_is_transient(self, database: Open) -> None:
        """In the middle of a transaction it is an error that passes; the next connection is a
        new one.
        """
        opened, operator = database(), database()
        with opened.main.connect() as connection:
            before = backend(connection)
            kill(operator, before)
            with pytest.raises(DBAPIError) as caught:
                connection.exec_driver_sql("SELECT 1")
        assert is_transient(caught.value)
        with opened.main.connect() as connection:
            assert backend(connection) != before

    def test_a_deadlock_is_logged_once_with_its_statement(
        self, database: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The server ends one of the two transactions; its statement and what it waited for are
        logged.
        """
        opened = database()
        with opened.main.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE two (id integer PRIMARY KEY)")
            connection.exec_driver_sql("INSERT INTO two VALUES (1), (2)")
        has_first = threading.Barrier(2)

        def lock(first: int, second: int) -> bool:
            with opened.main.connect() as connection:
                connection.exec_driver_sql(
                    "SELECT id FROM two WHERE id = %s FOR UPDATE", (first,)
                )
                has_first.wait(30)
                try:
                    connection.exec_driver_sql(
                        "SELECT id FROM two WHERE id = %s\n FOR UPDATE", (second,)
                    )
                except DBAPIError as error:
                    return is_transient(error)
            return False

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(lock, (1, 2), (2, 1))) == [False, True]
        (said,) = [message for message in caplog.messages if "deadlock" in message]
        assert re.search(r"Process \d+ waits for .*; blocked by process \d+\.", said)
        assert said.endswith("Statement: SELECT id FROM two WHERE id = %s FOR UPDATE")

    def test_a_read_only_server_is_left(self, database: Open) -> None:
        """After a failover the old primary refuses writes: the next connection is a new one."""
        opened = database()
        with opened.main.connect() as connection:
            before = backend(connection)
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            with pytest.raises(DBAPIError) as caught:
                connection.exec_driver_sql("CREATE TABLE x ()")
        assert is_transient(caught.value)
        assert "[25006]" in describe_error(caught.value)
        with opened.main.connect() as connection:
            assert backend(connection) != before


class TestCapacity:
    """The server must have room for the pools."""

    def test_limit_of_the_role(self, database: Open, pg_empty_url: str) -> None:
        """A role with a connection limit has less than the server; beyond it, the error passes."""
        role = f"limited_{os.getpid()}"
        with database().main.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE ROLE {role} LOGIN PASSWORD 'x' CONNECTION LIMIT 3"
            )
        try:
            url = (
                make_url(pg_empty_url)
                .set(username=role, password="x")
                .render_as_string(hide_password=False)
            )
            limited = database(url, pool_size=3, overflow=1)
            with ExitStack() as stack, pytest.raises(DBAPIError) as caught:
                exhaust(limited, stack)
            assert is_transient(caught.value)
            limited.close()
        finally:
            with database().main.begin() as connection:
                connection.exec_driver_sql(f"DROP ROLE {role}")


FORK = """
import os, signal, sys
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database

database = Database(Settings.load(environ={}, database_url=sys.argv[1]))

def backend(engine):
    with engine.connect() as connection:
        return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()

before = backend(database.main), backend(database.heart)
held = database.main.connect()
held.exec_driver_sql("SELECT 1")
database._lock.acquire()  # as if another thread were just making an engine
child = os.fork()
if child == 0:
    signal.alarm(100)  # a child that waits for ever outlives the test
    mine = backend(database.main), backend(database.heart)
    database.close()
    os._exit(0 if not set(mine) & set(before) else 1)
database._lock.release()
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
held.exec_driver_sql("SELECT 2")  # the child has neither used nor closed it
held.close()
after = backend(database.main), backend(database.heart)
sys.exit(status or (2 if after != before else 0))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_fork(pg_empty_url: str) -> None:
    """A child of a preloading server makes its own connections and leaves its parent's alone."""
    command = [sys.executable, "-W", "ignore", "-c", FORK, pg_empty_url]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


def exhaust(database: Database, stack: ExitStack) -> None:
    """Take connections until there are no more."""
    while True:
        stack.enter_context(database.main.connect())


def kill(operator: Database, pid: int) -> None:
    """End a connection of somebody, and wait until it is gone."""
    with operator.main.connect() as connection:
        connection.exec_driver_sql("SELECT pg_terminate_backend(%s, 5000)", (pid,))


def until_true(connection: Connection, statement: str) -> None:
    """Wait on the server until the statement says so; the statement timeout ends it otherwise."""
    connection.exec_driver_sql(
        f"DO $$ BEGIN WHILE NOT ({statement}) LOOP PERFORM pg_sleep(0.01), "
        "pg_stat_clear_snapshot(); END LOOP; END $$"
    )
