"""What goes wrong with a server on somebody's machine, and how it comes back."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from slotwise import DatabaseUnreachable
from slotwise.embedded import EmbeddedPostgres
from slotwise.embedded.binaries import server_account
from slotwise.embedded.cluster import StopMode
from slotwise.embedded.directories import FileLock
from slotwise.embedded.postmaster import Postmaster

pytestmark = pytest.mark.extended


@pytest.fixture
def server(open_path: Path) -> Iterator[EmbeddedPostgres]:
    """A running server with a row that must survive everything; its path has spaces and a
    quote.
    """
    with EmbeddedPostgres(open_path / "it's a home" / "pg", durable=False) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("create table kept as select 42 as answer")
        yield server


def _kept(server: EmbeddedPostgres) -> bool:
    with psycopg.connect(server.dsn) as connection:
        return connection.execute("select answer from kept").fetchone() == (42,)


def _pid(server: EmbeddedPostgres) -> int:
    return int((server.data / "postmaster.pid").read_text().splitlines()[0])


def _kill(server: EmbeddedPostgres) -> None:
    """SIGKILL to the postmaster; returns when the kernel has carried it out."""
    os.kill(_pid(server), signal.SIGKILL)
    while Postmaster(server.data).is_alive():
        time.sleep(0.01)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_keeps_address_and_data(
    server: EmbeddedPostgres, mode: StopMode
) -> None:
    """After a restart, orderly or like a crash, DSNs handed out before are still good."""
    dsn, pid = server.dsn, _pid(server)
    server.restart(mode)
    assert server.dsn == dsn
    assert _pid(server) != pid
    assert _kept(server)


def test_a_killed_postmaster_is_brought_back(server: EmbeddedPostgres) -> None:
    """kill -9 of the server: the next start recovers, at the same address, even if nobody reaps
    the dead.
    """
    dsn = server.dsn
    _kill(server)
    server.start()
    assert server.dsn == dsn
    assert _kept(server)


def test_a_killed_postmaster_is_brought_back_by_the_next_user(
    server: EmbeddedPostgres,
) -> None:
    """A second user finds the first one's server dead and starts it for both."""
    _kill(server)
    with EmbeddedPostgres(server.data.parent, durable=False) as second:
        assert second.dsn == server.dsn
    assert _kept(server)


def test_a_port_taken_by_somebody_else_is_given_up(open_path: Path) -> None:
    """The address is kept only while it is free; there is no fighting over it."""
    server = EmbeddedPostgres(open_path / "pg", durable=False)
    with server:
        before = server.dsn
        port = int((server.data.parent / "port").read_text())
    with socket.create_server(("127.0.0.1", port)), server:
        assert server.dsn != before
        psycopg.connect(server.dsn).close()


def test_an_interrupted_initdb_is_begun_anew(open_path: Path) -> None:
    """Half a data directory is never taken for a whole one."""
    home = open_path / "pg"
    with EmbeddedPostgres(home, durable=False):
        pass
    shutil.rmtree(home / "data")
    (home / "data.new/base").mkdir(parents=True)
    (home / "data.new/PG_VERSION").write_text("15")
    with EmbeddedPostgres(home, durable=False) as server:
        psycopg.connect(server.dsn).close()
    assert not (home / "data.new").exists()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the server's account that has nothing to do with it."""
    uid = server_account().uid
    with subprocess.Popen(
        ["sleep", "100"], user=uid if os.geteuid() == 0 else None
    ) as process:
        yield process
        process.kill()


def test_a_stranger_neither_blocks_the_start_nor_is_hurt(
    open_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """After a power cut and a reboot postmaster.pid may name any process: not even the keeper
    takes it for a server.
    """
    home = open_path / "pg"
    with EmbeddedPostgres(home, durable=False) as server:
        stale = (server.data / "postmaster.pid").read_text().splitlines()
    (home / "data/postmaster.pid").write_text(
        "\n".join([str(stranger.pid), *stale[1:]])
    )
    with EmbeddedPostgres(home, durable=False) as server:
        psycopg.connect(server.dsn).close()
    with FileLock(home / "use.lock"):  # the keepers are through
        assert stranger.poll() is None


def test_a_setting_postgresql_refuses_is_an_error(open_path: Path) -> None:
    """One line with PostgreSQL's own reason and the place of the log, at once; and the next start
    works.
    """
    home = open_path / "pg"
    broken = EmbeddedPostgres(
        home, durable=False, settings={"shared_buffers": "a lot"}
    )
    with pytest.raises(
        DatabaseUnreachable, match='invalid value for parameter "shared_buffers"'
    ) as error:
        broken.start()
    assert str(home / "log") in str(error.value)
    assert "\n" not in str(error.value)
    mended = EmbeddedPostgres(home, durable=False, settings={"shared_buffers": "1MB"})
    with mended, psycopg.connect(mended.dsn) as connection:
        assert connection.execute("show shared_buffers").fetchone() == ("1MB",)
