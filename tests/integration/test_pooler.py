"""Behind pgbouncer in transaction mode: deadlines hold, nobody sees another's session, no server
is left marked.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from tests.databases import provision
from tests.integration.test_wakeup_listener import Scene, mail
from tests.kit.connections import is_transient
from tests.kit.programs import program

from slotwise import Settings
from slotwise.operations import Schema
from slotwise.spi import Database

pytestmark = pytest.mark.slow

CONFIGURATION = """
[databases]
* = host={host} port={server_port} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 2
max_client_conn = 50
ignore_startup_parameters = {ignored}
"""


@contextmanager
def pgbouncer(
    address: str,
    home: Path,
    ignored: str = "extra_float_digits",
    mode: str = "transaction",
) -> Iterator[str]:
    """A pooler with two connections before the server; the address through it."""
    url = make_url(address)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    named = {
        "host": url.host,
        "server_port": url.port,
        "user": url.username,
        "password": url.password,
    }
    file = home / "pgbouncer.ini"
    file.write_text(
        CONFIGURATION.format(**named, port=port, ignored=ignored, mode=mode)
    )
    account = ["-u", "nobody"] if os.getuid() == 0 else []
    process = subprocess.Popen(
        [program("pgbouncer", "pgbouncer"), *account, str(file)],
        stderr=subprocess.DEVNULL,
    )
    try:
        through = url.set(host="127.0.0.1", port=port).render_as_string(
            hide_password=False
        )
        until_open(port, process)
        yield through
    finally:
        process.kill()
        process.wait()


def until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait for the pooler to listen."""
    while process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise AssertionError(f"pgbouncer ended with status {process.returncode}")


def open_(address: str, **settings: Any) -> Database:
    return Database(Settings.load(environ={}, database_url=address, **settings))


def deadlines(database: Database) -> tuple[str, ...]:
    """What is in force in a transaction."""
    names = (
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "timezone",
    )
    with database.main.begin() as connection:
        return tuple(
            str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())
            for name in names
        )


EXPECTED = ("20s", "5s", "1min", "UTC")


@pytest.mark.parametrize(
    ("ignored", "pooler", "warnings"),
    [
        ("extra_float_digits", True, 0),
        ("extra_float_digits", False, 1),
        ("extra_float_digits, options", False, 1),
    ],
    ids=["told", "refused", "swallowed"],
)
def test_deadlines_hold(
    pg_empty_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    ignored: str,
    pooler: bool,
    warnings: int,
) -> None:
    """Whether the settings say so, the pooler refuses our options, or swallows them silently. Not
    said by each command, but by a worker and by ``slotwise db check``.
    """
    provision(pg_empty_url)
    with pgbouncer(pg_empty_url, tmp_path, ignored) as address:
        database = open_(address, pooler=pooler)
        database.verify()
        for _ in range(3):
            assert deadlines(database) == EXPECTED
        with database.heart.begin() as connection:
            assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == "5s"
        assert bool(database.pooler_warning) == bool(warnings)
        assert "a pooler is in between" not in caplog.text
        database.close()
        settings = Settings(database_url=address, pooler=pooler)
        said = [one for one in Schema(settings).check() if "pooler" in one]
        assert len(said) == warnings


def test_nothing_is_left_on_the_servers_session(
    pg_empty_url: str, tmp_path: Path
) -> None:
    """Another client of the same pooler gets the server's own defaults."""
    with pgbouncer(pg_empty_url, tmp_path) as address:
        database = open_(address, pooler=True)
        for _ in range(4):
            deadlines(database)
        with psycopg.connect(address) as other:
            assert other.execute("SHOW statement_timeout").fetchone() == ("0",)
            assert other.execute(
                "SELECT count(*) FROM pg_prepared_statements"
            ).fetchone() == (0,)
        database.close()


def test_the_servers_default_isolation_is_not_ours(
    pg_empty_url: str, tmp_path: Path
) -> None:
    """It comes with each BEGIN, also through a pooler."""
    with psycopg.connect(pg_empty_url, autocommit=True) as operator:
        operator.execute(
            f'ALTER DATABASE "{operator.info.dbname}" SET '
            "default_transaction_isolation = serializable"
        )
    with pgbouncer(pg_empty_url, tmp_path) as address:
        database = open_(address, pooler=True)
        for engine in (database.main, database.heart):
            with engine.begin() as connection:
                assert (
                    connection.exec_driver_sql(
                        "SHOW transaction_isolation"
                    ).scalar_one()
                    == "read committed"
                )
        database.close()


def test_many_clients_share_two_sessions(pg_empty_url: str, tmp_path: Path) -> None:
    """Transactions of many threads over two sessions: none fails, each has its deadlines."""
    with pgbouncer(pg_empty_url, tmp_path) as address:
        database = open_(address, pooler=True)

        def work(number: int) -> int:
            with database.main.begin() as connection:
                assert (
                    connection.exec_driver_sql("SHOW lock_timeout").scalar_one()
                    == "5s"
                )
                return int(
                    connection.exec_driver_sql(
                        "SELECT %s::int", (number,)
                    ).scalar_one()
                )

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(work, range(200))) == list(range(200))
        database.close()


def test_wake_ups_take_an_address_of_their_own(pg_url: str, tmp_path: Path) -> None:
    """Orders, claims and settlements through the pooler; only the one connection that listens goes
    past it.
    """
    with (
        pgbouncer(pg_url, tmp_path) as address,
        closing(Scene(address, mail, pooler=True, wake_up_url=pg_url)) as scene,
    ):
        scene.until_it_listens()
        for count in (1, 2, 3):
            scene.client.schedule(mail)
            scene.heard.wait("settled", count, outcome="succeeded")


def test_a_deadline_ends_a_statement(pg_empty_url: str, tmp_path: Path) -> None:
    """In force, not only shown; the session goes on."""
    with pgbouncer(pg_empty_url, tmp_path) as address:
        database = open_(address, pooler=True, heartbeat_interval="200ms")
        with (
            database.main.connect() as connection,
            pytest.raises(DBAPIError) as caught,
        ):
            connection.exec_driver_sql("SELECT pg_sleep(30)")
        assert is_transient(caught.value)
        database.verify()
        database.close()
