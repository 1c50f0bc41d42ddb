"""The database's password changes while a worker runs, as the page on its rotation says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from slotwise import (
    Client,
    JobRegistry,
    Settings,
    SlotwiseError,
    TaskContext,
    task,
)
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.operations import Schema

PATIENCE = 60
RAN: dict[str, threading.Event] = {}


@task(name="send")
def send(ctx: TaskContext[None]) -> None:
    RAN[ctx.id].set()


class Login:
    """A worker's role of its own, with a password file."""

    def __init__(self, pg_url: str, file: Path, suffix: str = "rotating") -> None:
        self.owner = pg_url
        owned = sa.make_url(pg_url)
        self.name = f"{owned.database}_{suffix}"
        self.file = file
        self.url = owned._replace(username=self.name, password=None)
        with psycopg.connect(pg_url, autocommit=True) as sql:
            sql.execute(f"CREATE ROLE \"{self.name}\" LOGIN PASSWORD 'one'")
        Schema(Settings(database_url=pg_url)).grant("worker", self.name)
        self.write("one")

    def write(self, password: str) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(f"*:*:*:{self.name}:{password}\n")
        new.chmod(0o600)
        new.rename(self.file)

    def change(self, password: str) -> None:
        """Change it, and end all sessions of the role."""
        ended = f"""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE usename = '{self.name}'"""
        with psycopg.connect(self.owner, autocommit=True) as sql:
            sql.execute(f"ALTER ROLE \"{self.name}\" PASSWORD '{password}'")
            sql.execute(ended)

    def drop(self) -> None:
        with psycopg.connect(self.owner, autocommit=True) as sql:
            sql.execute(f'DROP OWNED BY "{self.name}"')
            sql.execute(f'DROP ROLE "{self.name}"')


@pytest.fixture
def login(
    pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Login]:
    file = tmp_path / "pgpass"
    monkeypatch.setenv("PGPASSFILE", str(file))
    made = Login(pg_url, file)
    yield made
    made.drop()


def ran(login: Login, id: str) -> bool:
    """Whether a task that the owner schedules now runs."""
    RAN[id] = threading.Event()
    with Client.open(Settings(database_url=login.owner)) as client:
        client.schedule("send", id=id)
    return RAN[id].wait(PATIENCE)


def test_a_worker_continues_after_a_rotation(
    login: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the file has the old password it says so, and repeats; then it works, by itself."""
    url = login.url.render_as_string(hide_password=False)
    registry = JobRegistry(
        tasks=[send], database_url=url, poll_interval="200ms", heartbeat_interval="1s"
    )
    registry.start(timeout="30s")
    try:
        assert ran(login, "before")
        login.change("two")
        assert status(["--database-url", url, "health"]) == exits.DATABASE
        assert "password authentication failed" in capsys.readouterr().err
        login.write("two")
        assert status(["--database-url", url, "health"]) in (exits.OK, exits.FAILED)
        assert ran(login, "after")
    finally:
        registry.stop()


def worker_of(login: Login, password: str) -> JobRegistry:
    """A worker whose address has the password."""
    url = login.url.set(password=password).render_as_string(hide_password=False)
    made = JobRegistry(
        tasks=[send], database_url=url, poll_interval="200ms", heartbeat_interval="1s"
    )
    made.start(timeout="30s")
    return made


def test_two_roles_take_turns(pg_url: str, login: Login) -> None:
    """With the password in the address: workers of the second role start beside those of the
    first, whose login is taken away when they have left.
    """
    login.write("of nobody")
    second = Login(pg_url, login.file, suffix="b")
    former, new = worker_of(login, "one"), None
    try:
        assert ran(login, "former")
        new = worker_of(second, "one")
        former.stop()
        with psycopg.connect(pg_url, autocommit=True) as sql:
            sql.execute(f'ALTER ROLE "{login.name}" NOLOGIN')
        assert ran(login, "new")
        with pytest.raises(SlotwiseError, match="not permitted to log in"):
            worker_of(login, "one")
    finally:
        for one in (former, new):
            if one is not None:
                one.stop()
        second.drop()
