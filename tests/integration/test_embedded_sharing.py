"""Several processes, one server: it lives as long as the last of them, however they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from tests.kit.patience import PATIENCE

from slotwise.embedded import EmbeddedPostgres
from slotwise.embedded.postmaster import Postmaster

pytestmark = pytest.mark.extended

USER = Path(__file__).with_name("embedded_user.py")


class User:
    """Another process that uses the server of a home."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, USER, home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def dsn(self) -> str:
        """Waits until the server is up."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def leave(self) -> int:
        """End in order."""
        self._process.communicate(timeout=PATIENCE)
        return self._process.returncode

    def kill(self) -> None:
        """SIGKILL, with no chance to clean up."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=PATIENCE)


@pytest.fixture
def home(open_path: Path) -> Path:
    return open_path / "pg"


@pytest.fixture
def another(home: Path) -> Iterator[Callable[[], User]]:
    """Starts further users of the same home; whoever is left at the end is killed."""
    users: list[User] = []

    def start() -> User:
        users.append(User(home))
        return users[-1]

    yield start
    for user in users:
        user.kill()
    _wait_until_down(home)


def _pid(home: Path) -> str:
    return (home / "data/postmaster.pid").read_text().splitlines()[0]


def _wait_until_down(home: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while Postmaster(home / "data").is_alive():
        assert time.monotonic() < deadline, "the server is still up"
        time.sleep(0.02)


def _answers(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select true").fetchone() == (True,)


def test_two_processes_share_one_server(
    home: Path, another: Callable[[], User]
) -> None:
    """The second joins the server of the first; the first may leave; the last one out has
    stopped it.
    """
    first, second = another(), another()
    dsn, pid = first.dsn(), _pid(home)
    assert second.dsn() == dsn
    assert _pid(home) == pid
    assert first.leave() == 0
    assert _answers(dsn)
    assert second.leave() == 0
    assert not Postmaster(home / "data").is_alive()


def test_a_killed_user_takes_nothing_with_it(
    home: Path, another: Callable[[], User]
) -> None:
    """SIGKILL of one, even of the one that started the server: it stays for the other, then it is
    stopped.
    """
    starter = another()
    dsn = starter.dsn()
    other = another()
    assert other.dsn() == dsn
    starter.kill()
    assert _answers(dsn)
    assert other.leave() == 0
    assert not Postmaster(home / "data").is_alive()


def test_the_keeper_stops_the_server_of_a_killed_last_user(
    home: Path, another: Callable[[], User]
) -> None:
    """SIGKILL of the only user leaves no server behind; whoever comes then gets one, with the
    data.
    """
    last = another()
    dsn = last.dsn()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table kept as select 42 as answer")
    last.kill()
    _wait_until_down(home)
    following = another()
    with psycopg.connect(following.dsn()) as connection:
        assert connection.execute("select answer from kept").fetchone() == (42,)


def test_those_who_come_at_once_get_the_same_server(
    home: Path, another: Callable[[], User]
) -> None:
    """Four processes race to make the data directory and to start it; they end up with one
    server.
    """
    users = [another() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        dsns = set(pool.map(User.dsn, users))
        assert len(dsns) == 1
        assert set(pool.map(User.leave, users)) == {0}
    assert not Postmaster(home / "data").is_alive()


def test_users_that_come_and_go_never_meet_a_dead_server(
    another: Callable[[], User],
) -> None:
    """While the last one stops the server or a keeper does, newcomers wait and then start it
    again.
    """
    for round_ in range(6):
        user = another()
        assert _answers(user.dsn())
        if round_ % 2:
            user.kill()
        else:
            user.leave()


def test_a_temporary_home_goes_with_its_last_user(home: Path) -> None:
    """Nothing is left, and the same home can be used again."""
    for _ in range(2):
        server = EmbeddedPostgres(home, durable=False, temporary=True)
        with server:
            assert _answers(server.dsn)
        assert not home.exists()
        assert list(home.parent.iterdir()) == []


def test_a_durable_home_keeps_data_and_port(home: Path) -> None:
    """A stopped server comes back with its data, at the same address unless somebody else took the
    port.
    """
    server = EmbeddedPostgres(home)
    with server:
        dsn = server.dsn
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert connection.execute("show fsync").fetchone() == ("on",)
            connection.execute("create table kept ()")
    with server:
        assert server.dsn == dsn
        with psycopg.connect(dsn) as connection:
            connection.execute("select from kept")


def test_the_port_is_closed_to_others(home: Path) -> None:
    """Any user of the machine can reach the port; without the password that is all they can do."""
    with EmbeddedPostgres(home, durable=False) as server:
        bare = server.dsn.replace(server.dsn.split(":")[2].partition("@")[0], "guess")
        with pytest.raises(
            psycopg.OperationalError, match="password authentication failed"
        ):
            psycopg.connect(bare)
        assert (home / "password").stat().st_mode & 0o077 == 0
