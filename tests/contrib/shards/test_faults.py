"""One worker process on four real databases: one is stopped, one read-only, one slow, one restored.

The judge is a file to which handlers append, past slotwise and past the databases.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from tests.contrib.shards.conftest import own_installation
from tests.databases import Databases, provision

from slotwise.embedded import EmbeddedPostgres

NAMES = ("stopped", "readonly", "slow", "restored")
APP = """
import os
from slotwise import CatchUp, Every, JobContext, job
from slotwise.contrib.shards import ShardedRegistry

LOG = os.open(os.environ["CAST_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@job(name="tick", schedule=Every("1s"), each_shard=True, on_lost="give_up",
     catch_up=CatchUp.none(grace="900ms"))
def tick(ctx: JobContext) -> None:
    os.write(LOG, f"{ctx.shard.name} {ctx.slot.isoformat()}\\n".encode())

registry = ShardedRegistry(
    jobs=[tick], poll_interval="200ms", heartbeat_interval="1s", shutdown_grace="2s"
)
"""


class Log:
    """What ran, by shard, as the handlers have said it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def slots(self, shard: str) -> list[datetime]:
        text = self._path.read_text() if self._path.exists() else ""
        lines = (line.split() for line in text.splitlines())
        return [datetime.fromisoformat(slot) for name, slot in lines if name == shard]

    def wait_for_more(self, *shards: str, count: int = 1, seconds: float = 60) -> None:
        """Wait until each of these shards has run so many further slots."""
        before = {name: len(self.slots(name)) for name in shards}
        until = time.monotonic() + seconds
        for name in shards:
            while len(self.slots(name)) < before[name] + count:
                assert time.monotonic() < until, f"shard {name} runs nothing"
                time.sleep(0.05)


class Fleet:
    """The worker process, its four databases, and the log."""

    def __init__(self, urls: dict[str, str], folder: Path) -> None:
        self.urls = urls
        self.log = Log(folder / "log")
        lines = [f'{name} = "{url}"' for name, url in urls.items()]
        text = "\n".join(['[shards]\ndefault = "stopped"\n[shards.members]', *lines])
        (folder / "slotwise.toml").write_text(text)
        (folder / "cast.py").write_text(APP)
        environ = {**os.environ, "CAST_LOG": str(folder / "log")}
        environ.pop("DATABASE_URL", None)
        command = [sys.executable, "-m", "slotwise", "worker", "--app", "cast"]
        self.told = folder / "worker.log"
        with self.told.open("wb") as stream:
            self.process = subprocess.Popen(
                [*command, "--config", "slotwise.toml"],
                cwd=folder,
                env=environ,
                stderr=stream,
            )

    def others(self, name: str) -> list[str]:
        return [one for one in NAMES if one != name]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@pytest.fixture
def server(open_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(open_path / "pg", durable=False) as server:
        provision(server.dsn)
        yield server


@pytest.fixture
def fleet(
    databases: Databases, server: EmbeddedPostgres, tmp_path: Path
) -> Iterator[Fleet]:
    with ExitStack() as stack:
        urls = {"stopped": server.dsn}
        for name in NAMES[1:]:
            urls[name] = stack.enter_context(databases.provisioned())
            own_installation(urls[name])
        fleet = Fleet(urls, tmp_path)
        try:
            yield fleet
        finally:
            fleet.process.kill()
            fleet.process.wait()


def beside(url: str) -> psycopg.Connection:
    """A connection to another database of the same server."""
    return psycopg.connect(url, dbname="postgres", autocommit=True)


def name_of(url: str) -> str:
    return psycopg.conninfo.conninfo_to_dict(url)["dbname"]  # type: ignore[return-value]


def disconnect(connection: psycopg.Connection, name: str) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
        [name],
    )


@contextmanager
def stopped(server: EmbeddedPostgres) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@contextmanager
def read_only(url: str) -> Iterator[None]:
    name = name_of(url)
    change = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
    with beside(url) as connection:
        connection.execute(change.format(sql.Identifier(name), sql.SQL("on")))
        disconnect(connection, name)
        try:
            yield
        finally:
            connection.execute(change.format(sql.Identifier(name), sql.SQL("off")))
            disconnect(connection, name)


@contextmanager
def slow(url: str) -> Iterator[None]:
    """Each statement on tasks waits until its deadline."""
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE scheduled_tasks")
        yield


def keep_backup(url: str) -> None:
    """Copy the database; that needs a moment without connections."""
    name = name_of(url)
    copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    with beside(url) as connection:
        names = sql.Identifier(f"{name}_backup"), sql.Identifier(name)
        with closed(connection, name):
            connection.execute(copy.format(*names))


@contextmanager
def closed(connection: psycopg.Connection, name: str) -> Iterator[None]:
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    connection.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
    disconnect(connection, name)
    time.sleep(0.2)
    yield
    connection.execute(allow.format(sql.Identifier(name), sql.SQL("true")))


@contextmanager
def restored(url: str) -> Iterator[None]:
    """Put the copy in place of the database."""
    name = name_of(url)
    rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true")
    with beside(url) as connection:
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        connection.execute(drop.format(sql.Identifier(name)))
        yield
        backup = sql.Identifier(f"{name}_backup")
        connection.execute(rename.format(backup, sql.Identifier(name)))
        connection.execute(allow.format(sql.Identifier(name)))


def judge(fleet: Fleet, shard: str, *, may_forget: bool = False) -> None:
    """No slot ran twice; each slot since the first one ran, or the database says why not."""
    ran = fleet.log.slots(shard)
    assert [slot for slot, count in Counter(ran).items() if count > 1] == []
    with psycopg.connect(fleet.urls[shard]) as connection:
        rows = connection.execute(
            "SELECT slot, outcome FROM scheduled_slots WHERE task_name = 'tick'"
        ).fetchall()
        gaps = connection.execute(
            "SELECT first_slot, last_slot FROM scheduled_gaps WHERE task_name = 'tick'"
        ).fetchall()
    succeeded = {slot for slot, outcome in rows if outcome == "succeeded"}
    assert succeeded <= set(ran)
    if not may_forget:  # a restored database forgets what ran after the backup
        assert set(ran) - {slot for slot, _ in rows} == set()
    known = set(ran) | {slot for slot, _ in rows}
    unexplained = []
    slot = min(ran)
    while slot < max(ran):
        slot += timedelta(seconds=1)
        if slot not in known and not any(low <= slot <= high for low, high in gaps):
            unexplained.append(slot)
    assert unexplained == []


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("stopped", "readonly"), id="two"),
        pytest.param(NAMES, id="four", marks=pytest.mark.extended),
    ],
)
def test_a_fault_of_one_database_is_no_fault_of_the_others(
    fleet: Fleet, server: EmbeddedPostgres, names: tuple[str, ...]
) -> None:
    """Each fault in turn: meanwhile the other three run; after it, all four do.

    It takes ten seconds, or half a minute: each shard must miss some slots, and come back.
    """
    fleet.log.wait_for_more(*NAMES)
    urls = fleet.urls
    if "restored" in names:
        keep_backup(urls["restored"])
    faults: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "stopped": lambda: stopped(server),
        "readonly": lambda: read_only(urls["readonly"]),
        "slow": lambda: slow(urls["slow"]),
        "restored": lambda: restored(urls["restored"]),
    }
    for name in names:
        with faults[name]():
            fleet.log.wait_for_more(*fleet.others(name), count=2)
        fleet.log.wait_for_more(*NAMES)
    assert fleet.stop() == 0, fleet.told.read_text()[-3000:]
    for name in NAMES:
        judge(fleet, name, may_forget=name == "restored" and name in names)
