"""Connections to PostgreSQL: which deadlines they carry, what they survive, what is said when they fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError

from slotwise.errors import DatabaseUnreachable, InvalidSetting
from slotwise.settings import Settings
from slotwise.store import postgresql_link
from slotwise.store.database import Database, describe, is_transient
from slotwise.store.postgresql_link import read_options, write_options

Open = Callable[..., Database]
HEARTBEAT = timedelta(milliseconds=200)


@pytest.fixture
def database(pg_empty_url: str) -> Iterator[Open]:
    """Opens databases with given settings, and closes them all."""
    opened: list[Database] = []

    def open_(address: str = pg_empty_url, **settings: Any) -> Database:
        keywords = {name: settings.pop(name) for name in ("pool_size", "overflow") if name in settings}
        opened.append(Database(Settings.load(environ={}, database_url=address, **settings), **keywords))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def with_query(address: str, **query: str) -> str:
    """The address with some of libpq's options."""
    return make_url(address).update_query_dict(query).render_as_string(hide_password=False)


def show(connection: Connection, name: str) -> str:
    return str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())


def backend(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


def conninfo(connection: Connection) -> dict[str, str]:
    """What libpq was told."""
    raw = connection.connection.dbapi_connection
    assert raw is not None
    return dict(raw.info.get_parameters())  # type: ignore[attr-defined]


def engines(database: Database) -> dict[str, Engine]:
    return {"main": database.main, "heart": database.heart}


class TestDeadlines:
    """Every connection carries them."""

    @pytest.mark.parametrize("role", ["main", "heart"])
    def test_are_in_force(self, database: Open, role: str) -> None:
        """On both pools, as the settings derive them, and from the first statement on."""
        with engines(database(worker_name="w1"))[role].connect() as connection:
            assert show(connection, "statement_timeout") == "20s"
            assert show(connection, "lock_timeout") == "5s"
            assert show(connection, "idle_in_transaction_session_timeout") == "1min"
            assert show(connection, "timezone") == "UTC"
            told = conninfo(connection)
        assert (told["connect_timeout"], told["tcp_user_timeout"]) == ("10", "10000")
        assert (told["keepalives_idle"], told["keepalives_interval"], told["keepalives_count"]) == ("5", "2", "3")

    def test_are_no_state_of_the_session(self, database: Open) -> None:
        """They came with the connection: RESET ALL, as poolers do it, changes nothing, and nothing is prepared."""
        with database().main.connect() as connection:
            for _ in range(8):
                connection.exec_driver_sql("SELECT 1")
            connection.exec_driver_sql("RESET ALL")
            assert show(connection, "statement_timeout") == "20s"
            assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one() == 0

    def test_names(self, database: Open) -> None:
        """pg_stat_activity says whose connection it is; a long name is cut, its role is not."""
        opened = database(worker_name="w1")
        with opened.main.connect() as main, opened.heart.connect() as heart:
            assert show(main, "application_name") == "slotwise w1"
            assert show(heart, "application_name") == "slotwise w1 heart"
        with database(worker_name="w" * 100).heart.connect() as heart:
            name = show(heart, "application_name")
            assert len(name) == 63
            assert name.endswith("w heart")

    def test_the_users_win(self, database: Open, pg_empty_url: str) -> None:
        """Deadlines and names in the address stand; the others are added to them."""
        address = with_query(
            pg_empty_url,
            options="-c statement_timeout=3s --work-mem=5MB -csearch_path=a,\\ b",
            application_name="mine",
            connect_timeout="4",
        )
        with database(address).main.connect() as connection:
            assert show(connection, "statement_timeout") == "3s"
            assert show(connection, "work_mem") == "5MB"
            assert show(connection, "search_path") == "a, b"
            assert show(connection, "lock_timeout") == "5s"
            assert show(connection, "application_name") == "mine"
            assert conninfo(connection)["connect_timeout"] == "4"

    def test_pgoptions(self, database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        """libpq's own variable is not lost by our options."""
        monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=123ms")
        with database().main.connect() as connection:
            assert show(connection, "lock_timeout") == "123ms"
            assert show(connection, "statement_timeout") == "20s"

    def test_end_a_statement(self, database: Open) -> None:
        """A statement that hangs ends, and may be tried again."""
        engine = database(heartbeat_interval=HEARTBEAT).main
        with engine.connect() as connection, pytest.raises(DBAPIError) as caught:
            connection.exec_driver_sql("SELECT pg_sleep(30)")
        assert is_transient(caught.value)
        assert describe(caught.value) == "canceling statement due to statement timeout [57014]"

    def test_end_the_wait_for_a_lock(self, database: Open) -> None:
        """Below the heartbeat interval."""
        opened = database(heartbeat_interval=HEARTBEAT)
        with opened.main.begin() as holder, opened.main.connect() as waiter:
            holder.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
            with pytest.raises(DBAPIError) as caught:
                waiter.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
        assert is_transient(caught.value)
        assert "[55P03]" in describe(caught.value)

    def test_end_a_forgotten_transaction(self, database: Open, pg_empty_url: str) -> None:
        """A frozen holder's locks end after a lease."""
        opened = database(heartbeat_interval=HEARTBEAT, missed_heartbeats_limit=3)
        patient = database(with_query(pg_empty_url, options="-c lock_timeout=20s"))
        with opened.main.connect() as frozen:
            frozen.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
            with patient.main.begin() as waiter:
                waiter.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
            with pytest.raises(DBAPIError) as caught:
                frozen.exec_driver_sql("SELECT 1")
        assert is_transient(caught.value)

    def test_not_for_migrations(self, database: Open) -> None:
        """Building an index takes as long as it takes; the link is watched all the same."""
        with database().migrations().connect() as connection:
            assert show(connection, "statement_timeout") == "0"
            assert show(connection, "lock_timeout") == "0"
            assert show(connection, "timezone") == "UTC"
            assert conninfo(connection)["tcp_user_timeout"] == "10000"


class TestPooler:
    """With `pooler`, deadlines go with each transaction, here seen on a plain server."""

    @pytest.mark.parametrize("role", ["main", "heart"])
    def test_local(self, database: Open, role: str) -> None:
        """In force in each transaction, and gone after it."""
        engine = engines(database(pooler=True))[role]
        with engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            for _ in range(2):
                with connection.begin():
                    assert show(connection, "statement_timeout") == "20s"
                    assert show(connection, "lock_timeout") == "5s"
                    assert show(connection, "idle_in_transaction_session_timeout") == "1min"
                    assert show(connection, "timezone") == "UTC"
                assert raw.execute("SHOW statement_timeout").fetchone() == ("0",)
                raw.rollback()
            assert "options" not in conninfo(connection)

    def test_users_options(self, database: Open, pg_empty_url: str) -> None:
        """What the user put into `options` goes with each transaction too."""
        address = with_query(pg_empty_url, options="-c search_path=elsewhere -c lock_timeout=77ms")
        with database(address, pooler=True).main.connect() as connection:
            assert show(connection, "search_path") == "elsewhere"
            assert show(connection, "lock_timeout") == "77ms"


class TestPools:
    """Small, of our own, and one for heartbeats alone."""

    def test_making_it_touches_nothing(self, database: Open) -> None:
        """An application may start before its database."""
        assert database("postgresql://nowhere.invalid:1/x").main.pool.status().startswith("Pool size: 4")

    def test_an_exhausted_pool_costs_no_heartbeat(self, database: Open) -> None:
        """The heart's connection is there when every other is taken; a second heartbeat at a time is not."""
        opened = database(heartbeat_interval=HEARTBEAT, pool_size=1, overflow=0)
        with opened.main.connect(), opened.heart.connect() as heart:
            assert backend(heart)
            for engine in engines(opened).values():
                with pytest.raises(Exception, match="QueuePool limit") as caught, engine.connect():
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
            assert len({id(engine) for engine in threads.map(lambda _: ask(), range(8))}) == 1

    def test_close(self, database: Open) -> None:
        """No connection is left on the server; a later use opens new ones."""
        opened, observer = database(worker_name="closing"), database()
        opened.verify()
        opened.close()
        with observer.main.connect() as connection:
            count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'slotwise closing%%'"
            until_true(connection, f"SELECT ({count}) = 0")
        opened.verify()

    def test_a_restart_while_idle_is_nobodys_error(self, database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        """A connection that rested is asked whether it lives, and replaced."""
        monkeypatch.setattr(postgresql_link, "REST_BEFORE_PING", timedelta(0))
        opened, operator = database(), database()
        with opened.main.connect() as connection:
            before = backend(connection)
        kill(operator, before)
        with opened.main.connect() as connection:
            assert backend(connection) != before

    def test_a_busy_connection_pays_no_trip(self, database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only one that rested is asked."""
        opened = database()
        opened.verify()
        asked: list[object] = []
        monkeypatch.setattr(opened.main.dialect, "do_ping", asked.append)
        opened.verify()
        assert not asked
        monkeypatch.setattr(postgresql_link, "REST_BEFORE_PING", timedelta(0))
        opened.verify()
        assert len(asked) == 1

    def test_a_killed_connection_is_transient(self, database: Open) -> None:
        """In the middle of a transaction it is an error that passes; the next connection is a new one."""
        opened, operator = database(), database()
        with opened.main.connect() as connection:
            before = backend(connection)
            kill(operator, before)
            with pytest.raises(DBAPIError) as caught:
                connection.exec_driver_sql("SELECT 1")
        assert is_transient(caught.value)
        with opened.main.connect() as connection:
            assert backend(connection) != before

    def test_a_read_only_server_is_left(self, database: Open) -> None:
        """After a failover the old primary refuses writes: the next connection is a new one."""
        opened = database()
        with opened.main.connect() as connection:
            before = backend(connection)
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            with pytest.raises(DBAPIError) as caught:
                connection.exec_driver_sql("CREATE TABLE x ()")
        assert is_transient(caught.value)
        assert "[25006]" in describe(caught.value)
        with opened.main.connect() as connection:
            assert backend(connection) != before


class TestCapacity:
    """The server must have room for the pools."""

    def test_enough(self, database: Open) -> None:
        """Nothing is said."""
        assert database().check_capacity() is None

    def test_too_little(self, database: Open, caplog: pytest.LogCaptureFixture) -> None:
        """What is left, what is needed, and what to do; also in the log."""
        warning = database().check_capacity(processes=1000)
        assert warning is not None
        assert "1000 worker process(es) may take 9000" in warning
        assert "raise max_connections" in warning
        assert caplog.messages == [warning]

    def test_limit_of_the_role(self, database: Open, pg_empty_url: str) -> None:
        """A role with a connection limit has less than the server; beyond it, the error passes."""
        role = f"limited_{os.getpid()}"
        with database().main.begin() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'x' CONNECTION LIMIT 3")
        try:
            url = make_url(pg_empty_url).set(username=role, password="x").render_as_string(hide_password=False)
            limited = database(url, pool_size=3, overflow=1)
            assert "has 3 connections left" in str(limited.check_capacity())
            with ExitStack() as stack, pytest.raises(DBAPIError) as caught:
                exhaust(limited, stack)
            assert is_transient(caught.value)
            limited.close()
        finally:
            with database().main.begin() as connection:
                connection.exec_driver_sql(f"DROP ROLE {role}")


class TestUnreachable:
    """One line with host, port, database, reason and cure, and never a password."""

    WILD = "p%40ss%25w%3Frd%5E%5D"

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"port": 1}, ["port 1", "Connection refused", "start the server, or correct host and port"]),
            ({"host": "nowhere.invalid"}, ["host nowhere.invalid", "correct the host name"]),
            ({"database": "missing"}, ["'missing'", "does not exist", "createdb missing"]),
            ({"username": "nobody_here"}, ["correct the user or the password"]),
        ],
        ids=["port", "host", "database", "user"],
    )
    def test_wrong_place(self, database: Open, pg_empty_url: str, change: dict[str, Any], words: list[str]) -> None:
        """Each kind of wrong address."""
        password = "p@ss%w?rd^]" if change.keys() & {"port", "host", "username"} else None
        url = make_url(pg_empty_url).set(**change, **({"password": password} if password else {}))
        with pytest.raises(DatabaseUnreachable) as caught:
            database(url.render_as_string(hide_password=False)).verify()
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message
        assert is_transient(caught.value)
        everything = "".join(traceback.format_exception(caught.value))
        for secret in ("p@ss%w", self.WILD):
            assert secret not in everything

    def test_unknown_option(self, database: Open, pg_empty_url: str) -> None:
        """A mistyped option is found before connecting."""
        with pytest.raises(InvalidSetting, match=r"'sslmod' that libpq does not know; did you mean sslmode\?"):
            database(with_query(pg_empty_url, sslmod="require"))

    def test_wrong_options(self, database: Open, pg_empty_url: str) -> None:
        """So is one that the server could not take."""
        with pytest.raises(InvalidSetting, match="'work_mem=1' is not understood; write -c name=value"):
            database(with_query(pg_empty_url, options="work_mem=1"))

    def test_parameters_stay_out_of_messages(self, database: Open) -> None:
        """A payload in a failing statement is not written to the log."""
        payload = "-".join(["ge", "heim"])  # a traceback quotes this line, too
        with database().main.connect() as connection, pytest.raises(DBAPIError) as caught:
            connection.exec_driver_sql("SELECT %s::text, 1/0", (payload,))
        assert payload not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "parameters",
    [{}, {"a": "1"}, {"a": "x y", "b.c": "back\\slash", "d": "'quoted' = "}, {"search_path": '"$user", public'}],
)
def test_options_read_back(parameters: dict[str, str]) -> None:
    """What is written is read."""
    assert read_options(write_options(parameters)) == parameters


FORK = """
import os, sys, threading
from slotwise.settings import Settings
from slotwise.store.database import Database

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
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


NO_LIBPQ = """
import ctypes.util, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("psycopg_binary", "psycopg_c"):
            raise ImportError(f"hidden: {name}")

sys.meta_path.insert(0, Hidden())
ctypes.util.find_library = lambda name: None

from slotwise.errors import DriverMissing
from slotwise.settings import Settings
from slotwise.store.database import Database

try:
    Database(Settings.load(environ={}, database_url=sys.argv[1])).verify()
except DriverMissing as error:
    print(error)
"""


@pytest.mark.parametrize("address", ["postgresql://h/d", "host=h dbname=d"])
def test_no_libpq(address: str) -> None:
    """One line that names the extra."""
    command = [sys.executable, "-c", NO_LIBPQ, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "No usable libpq was found; run: pip install 'slotwise[binary]'\n", done.stderr


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
        f"DO $$ BEGIN WHILE NOT ({statement}) LOOP PERFORM pg_sleep(0.01), pg_stat_clear_snapshot(); END LOOP; END $$"
    )
