"""Connections to SQLite: one writer at a time, who waits for its turn."""

from __future__ import annotations

import os
import sqlite3
import sqlite3.dbapi2
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from tests.kit.connections import is_transient, sqlite_connections

from slotwise import DatabaseProblem, DatabaseUnreachable, SchemaMissing, Settings
from slotwise.spi import Database, describe_error


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The address of a database with nothing in it."""
    (tmp_path / "test.db").touch()
    return f"sqlite:///{tmp_path / 'test.db'}"


def open_(address: str) -> Database:
    return Database(Settings.load(environ={}, database_url=address))


def pragma(database: Database, name: str) -> object:
    with database.main.connect() as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()


def test_modes(file: str) -> None:
    """Readers beside the writer, patience for the writer's lock, and every commit on the disk."""
    database = open_(file)
    assert pragma(database, "journal_mode") == "wal"
    assert pragma(database, "busy_timeout") == 10_000
    assert (
        pragma(database, "synchronous") == 2
    )  # FULL: a power cut takes no claim back
    database.close()


@pytest.mark.parametrize("level", ["OFF", "NORMAL", "FULL"])
def test_every_commit_is_on_the_disk_whatever_sqlite_was_built_with(
    file: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's default is chosen when it is compiled; below FULL, a power cut takes the
    latest commits back.
    """
    connect = sqlite3.connect

    def as_built(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute(f"PRAGMA synchronous = {level}")
        return connection

    monkeypatch.setattr(sqlite3.dbapi2, "connect", as_built)
    database = open_(file)
    for engine in (database.main, database.heart, database.migrations()):
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
    database.close()


def test_every_transaction_is_a_writers(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that only reads so far: else it could not become a writer after somebody else
    wrote.
    """
    monkeypatch.setattr(sqlite_connections, "BUSY_TIMEOUT", timedelta(milliseconds=50))
    database = open_(file)
    with database.main.connect() as holder:
        holder.exec_driver_sql("SELECT 1")
        with database.heart.connect() as other, pytest.raises(DBAPIError) as caught:
            other.exec_driver_sql("SELECT 1")
    assert is_transient(caught.value)
    assert describe_error(caught.value) == "database is locked"
    database.close()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_threads_take_turns(file: str, kind: str) -> None:
    """Read, then write, from many threads: no update is lost and none fails; so in memory too."""
    database = open_(file if kind == "file" else "sqlite://")
    with database.main.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE counter (n INTEGER)")
        connection.exec_driver_sql("INSERT INTO counter VALUES (0)")
    together = threading.Barrier(4)

    def count() -> None:
        together.wait()
        for _ in range(25):
            with database.main.begin() as connection:
                n = connection.exec_driver_sql("SELECT n FROM counter").scalar_one()
                connection.exec_driver_sql("UPDATE counter SET n = ?", (n + 1,))

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(count) for _ in range(4)]:
            done.result()
    with database.main.connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM counter").scalar_one() == 100
    database.close()


def test_memory_is_one_database(file: str) -> None:
    """All roles see the same tables; with a file, heartbeats have a connection of their own."""
    memory = open_("sqlite://")
    assert memory.main is memory.heart is memory.migrations()
    assert memory.connections_needed == 1
    stored = open_(file)
    assert stored.main is not stored.heart


FIRST = """
import sys
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database

sys.stdin.readline()
Database(Settings.load(environ={}, database_url=sys.argv[1])).verify(new=True)
"""


@pytest.mark.extended
def test_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    """The first to come makes the file and sets its mode, nobody fails."""
    command = [sys.executable, "-c", FIRST, f"sqlite:///{tmp_path / 'new.db'}"]
    starters = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for each in starters:
        assert each.stdin
        each.stdin.write("go\n")
        each.stdin.flush()
    errors = [each.communicate(timeout=60)[1] for each in starters]
    assert [each.returncode for each in starters] == [0] * 6, "".join(errors)


@pytest.mark.parametrize(
    "form", ["sqlite:///{}", "sqlite:///file:{}?uri=true"], ids=["path", "uri"]
)
def test_a_mistyped_path_makes_no_file(tmp_path: Path, form: str) -> None:
    """Only whoever makes the tables may; everybody else gets the path and the cure in one line."""
    path = tmp_path / "mistyped.db"
    database = open_(form.format(path))
    for engine in (database.main, database.heart):
        with pytest.raises(
            SchemaMissing, match=f"no SQLite file '{path}'; .*slotwise db upgrade"
        ):
            engine.connect()
    assert not path.exists()
    database.verify(new=True)
    database.verify()
    assert path.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["unable to open", "create the directory"]),
        (b"not a database" * 100, ["file is not a database"]),
    ],
)
def test_unreachable(tmp_path: Path, content: bytes | None, words: list[str]) -> None:
    """The file, the reason and the cure in one line."""
    path = tmp_path / "missing" / "x.db" if content is None else tmp_path / "x.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DatabaseUnreachable) as caught:
        open_(f"sqlite:///{path}").verify()
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_old_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is needed, what is there, what to do."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    with pytest.raises(
        DatabaseProblem,
        match=r"SQLite 3\.34\.1 is too old, slotwise needs 3\.35; use a newer Python",
    ):
        open_("sqlite://")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_fork(file: str) -> None:
    """A child opens the file itself."""
    program = (
        "import os, sys\n"
        + FIRST.replace("sys.stdin.readline()", "").replace(".verify()", "")
        + "\n"
        "database = Database(Settings.load(environ={}, database_url=sys.argv[1]))\n"
        "parent = database.main\n"
        "database.verify()\n"
        "child = os.fork()\n"
        "database.verify()\n"
        "if child == 0:\n"
        "    os._exit(0 if database.main is not parent else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or "
        "database.main is not parent)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, file]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
