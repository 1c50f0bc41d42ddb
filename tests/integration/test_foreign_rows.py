"""Rows that Java's db-scheduler wrote for itself stay its own, also where a Python task has the
name of one of Java's.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
import sqlalchemy as sa

from slotwise import Disabled, JobContext, JobRegistry, TaskContext, job, migrate, task
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.inspect import TaskInfo
from slotwise.testing import ManualClock, ManualWorker

#: ``new ObjectOutputStream(…).writeObject("one")``
JAVA_DATA = b"\xac\xed\x00\x05t\x00\x03one"
INSERT = """
INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version)
VALUES (%s, %s, %s, now() - interval '1 hour', false, 1)"""
ROW = """
SELECT execution_time < now(), picked, picked_by, version, last_failure, consecutive_failures
FROM scheduled_tasks WHERE task_name = %s AND task_instance = %s"""
UNTOUCHED = (True, False, None, 1, None, None)


@task(name="j-once")
def once(ctx: TaskContext[object]) -> None: ...


def _nothing(ctx: JobContext) -> None: ...


class Java:
    """What a db-scheduler does, each statement in a transaction of its own."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)

    def insert(
        self, id: str, data: bytes | None = JAVA_DATA, name: str = "j-once"
    ) -> None:
        self.connection.execute(INSERT, (name, id, data))

    def pick(self, id: str) -> int:
        """As its fetch-and-lock does."""
        return self.connection.execute(
            "UPDATE scheduled_tasks SET picked = true, picked_by = 'java-1', version = version + 1,"
            " last_heartbeat = now() - interval '1 day' WHERE task_name = 'j-once'"
            " AND task_instance = %s AND NOT picked AND version = 1",
            (id,),
        ).rowcount

    def complete(self, id: str) -> int:
        return self.connection.execute(
            "DELETE FROM scheduled_tasks WHERE task_instance = %s AND version = 2",
            (id,),
        ).rowcount

    def row(self, id: str, name: str = "j-once") -> tuple[object, ...] | None:
        return self.connection.execute(ROW, (name, id)).fetchone()


def a_worker(registry: JobRegistry) -> ManualWorker:
    clock = ManualClock(datetime.now(UTC))
    return ManualWorker(registry, registry.database, clock=clock)


@pytest.fixture
def java(pg_url: str) -> Iterator[Java]:
    java = Java(pg_url)
    yield java
    java.connection.close()


@pytest.fixture
def registry(pg_url: str) -> Iterator[JobRegistry]:
    registry = JobRegistry(tasks=[once], database_url=pg_url)
    yield registry
    registry.database.close()


@pytest.mark.parametrize(
    ("id", "data"),
    [("one", JAVA_DATA), ("recurring", None), ("recurring", b'{"a":1}')],
    ids=["serialized", "recurring without data", "recurring with JSON"],
)
def test_a_task_of_the_same_name_leaves_them_alone(
    java: Java, registry: JobRegistry, id: str, data: bytes | None
) -> None:
    """Due for an hour, they are neither started nor ended; a row of its own is."""
    java.insert(id, data)
    registry.client.schedule(once, "ours", id="ours")
    with a_worker(registry) as worker:
        assert [ended.id for ended in worker.run_due()] == ["ours"]
    assert java.row(id) == UNTOUCHED


@pytest.mark.parametrize("data", [b'"one"', b'{"a": 1}', None])
def test_java_schedules_python_tasks(
    java: Java, registry: JobRegistry, data: bytes | None
) -> None:
    """A row with JSON, or without data, may be meant for Python."""
    java.insert("one", data)
    with a_worker(registry) as worker:
        assert [ended.id for ended in worker.run_due()] == ["one"]
    assert java.row("one") is None


def test_no_command_reaches_them(java: Java, registry: JobRegistry) -> None:
    """An id that Java has is taken; nothing is changed, cancelled or listed."""
    java.insert("one")
    client = registry.client
    assert client.cancel(once, "one").status == "gone"
    assert client.cancel_all(once) == 0
    assert client.retry(once) == []
    assert client.reschedule(once, "one", delay="1h").status == "exists"
    assert client.list(once) == list[TaskInfo]()
    for if_exists in ("keep", "replace", "reschedule"):
        receipt = client.schedule(once, "ours", id="one", if_exists=if_exists)
        assert receipt.status == "exists"
    assert java.row("one") == UNTOUCHED


def test_the_reaper_leaves_what_java_runs(java: Java, registry: JobRegistry) -> None:
    """Java's heartbeats are rarer, and it has a reaper of its own."""
    java.insert("one")
    assert java.pick("one") == 1
    with a_worker(registry) as worker:
        for _ in range(10):
            worker.tick("1m")
            assert worker.reap() == []
    assert java.complete("one") == 1


def test_deleting_a_job_keeps_them(java: Java, pg_url: str) -> None:
    """A job of the same name deletes its own rows only."""
    own = job(name="j-once", schedule=Disabled())(_nothing)
    registry = JobRegistry(jobs=[own], database_url=pg_url)
    java.insert("one")
    with a_worker(registry):
        registry.operations.delete("j-once")
    assert java.row("one") == UNTOUCHED
    registry.database.close()


def test_rows_from_before_the_upgrade(
    java: Java, pg_url: str, registry: JobRegistry
) -> None:
    """They are marked, also while Java holds one, whose completion still finds it; the downgrade
    removes the marks.
    """
    engine = sa.create_engine(pg_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        migrate.revert(connection, revision="sw0004")
        java.insert("waits")
        java.insert("runs")
        assert java.pick("runs") == 1
        migrate.apply(connection)
        assert registry.client.list(once) == []
        assert java.complete("runs") == 1
        migrate.revert(connection, revision="sw0004")
        assert [line.id for line in registry.client.list(once)] == ["waits"]
        migrate.apply(connection)
    engine.dispose()
    assert java.row("waits") == UNTOUCHED


def test_the_name_is_warned_of(
    java: Java,
    pg_url: str,
    registry: JobRegistry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the worker's start, by ``db check`` and by ``explain``, with the cure."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    java.insert("one")
    java.insert("two")
    told = "task 'j-once' has 2 rows of another program"
    assert status(["db", "check"]) == exits.OK
    assert told not in capsys.readouterr().err  # only Java runs it
    registry.start()
    try:
        assert told in caplog.text
        for command in (["db", "check"], ["explain", "j-once"]):
            assert status(command) == exits.OK
            printed = capsys.readouterr()
            assert told in printed.err + printed.out
            assert "give the Python task another name" in printed.err + printed.out
    finally:
        registry.stop()
    assert status(["explain", "j-once", "--id", "one"]) == exits.OK
    assert "slotwise leaves it alone" in capsys.readouterr().out


def test_a_copy_inserts_many_rows(java: Java, registry: JobRegistry) -> None:
    """The trigger keeps no COPY from inserting in blocks."""
    found = java.connection.execute(
        "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'scheduled_tasks'::regclass"
        " AND tgtype & 2 <> 0 AND tgtype & 4 <> 0"  # before, insert
    ).fetchone()
    assert found == (0,)
