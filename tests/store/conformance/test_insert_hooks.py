"""at_insert hooks: what they write is committed with the rows of tasks, or not at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.store import Store
from tests.store.bench import Bench

import slotwise
from slotwise import Client, JobContext, JobRegistry, task
from slotwise.spi import Inserted
from slotwise.testing import ManualWorker


class Notes:
    """A hook, and the table that it writes."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.calls: list[list[str]] = []
        self.error: Exception | None = None
        with bench.store.transaction() as connection:
            connection.execute(sa.text("CREATE TABLE notes (text text)"))

    def __call__(self, rows: Sequence[Inserted], tx: Any) -> None:
        self.calls.append([row.id for row in rows])
        for row in rows:
            tx.execute(
                sa.text("INSERT INTO notes VALUES (:said)"),
                {"said": f"{row.task}/{row.id} {row.priority}"},
            )
        if self.error is not None:
            raise self.error

    def written(self) -> list[str]:
        with self._bench.store.transaction() as connection:
            return sorted(connection.scalars(sa.text("SELECT text FROM notes")))


@pytest.fixture
def notes(bench: Bench) -> Notes:
    return Notes(bench)


@pytest.fixture
def client(bench: Bench, notes: Notes) -> Client:
    store = Store(
        bench.database, bench.definitions, clock=bench.clock, at_insert=(notes,)
    )
    return Client(lambda: store)


def test_a_task_and_what_a_hook_writes_are_one(
    client: Client, notes: Notes, bench: Bench
) -> None:
    """In a transaction of our own."""
    client.schedule("mail", id="1", priority=90)
    assert notes.written() == ["mail/1 90"]
    assert bench.find("mail", "1") is not None


def test_a_hook_that_fails_takes_the_task_back(
    client: Client, notes: Notes, bench: Bench
) -> None:
    """The caller gets its error, and nothing is written."""
    notes.error = RuntimeError("no")
    with pytest.raises(RuntimeError, match="no"):
        client.schedule("mail", id="1")
    assert notes.written() == []
    assert bench.find("mail", "1") is None


def test_in_the_callers_transaction_it_is_the_callers(
    client: Client, notes: Notes, bench: Bench
) -> None:
    """What is rolled back there was never written."""
    with bench.store.transaction() as connection:
        client.schedule("mail", id="1", connection=connection)
        assert notes.calls == [["1"]]
        connection.rollback()
    assert notes.written() == []
    assert bench.find("mail", "1") is None


@pytest.mark.parametrize(
    "options",
    [{}, {"copy": True}, {"if_exists": "replace"}],
    ids=["new", "copy", "replace"],
)
def test_many_tasks(client: Client, notes: Notes, options: dict[str, Any]) -> None:
    """Each chunk with what was written for it."""
    assert (
        client.schedule_many("mail", range(5), chunk_size=3, **options).scheduled == 5
    )
    assert len(notes.written()) == 5
    assert sum(map(len, notes.calls)) == 5


def test_follow_ups_are_inserted_with_the_settlement(
    notes: Notes, bench: Bench
) -> None:
    """The settlement's transaction has the hook's writes as well."""

    def follow(ctx: JobContext) -> None:
        ctx.then("second", id="2")

    registry = JobRegistry(
        tasks=[task(name="first")(follow), task(name="second")(print)],
        at_insert=[notes],
    )
    with ManualWorker(registry, bench.database, bench.clock) as worker:
        worker.client.schedule("first", id="1")
        worker.run_due()
    assert notes.written() == ["first/1 50", "second/2 50"]


def test_a_task_that_is_kept_is_named_as_well(client: Client, notes: Notes) -> None:
    """Only the database knows which rows are new: a hook writes in a way that may be repeated."""
    for _ in range(2):
        client.schedule("mail", id="1", delay=timedelta(hours=1))
    assert notes.calls == [["1"], ["1"]]


def test_nothing_inserts_past_the_hooks() -> None:
    """The statements that insert are called by the queue alone."""
    call = re.compile(r"\.rows\.(put|put_many|put_new)\(")
    source = Path(slotwise.__file__).parent
    files = (
        (file.relative_to(source).as_posix(), file.read_text())
        for file in source.rglob("*.py")
    )
    callers = {file for file, text in files if call.search(text)}
    assert callers == {"store/queue/queue.py"}


def test_a_read_has_no_commit_in_doubt(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no read writes a receipt: a role may read without the right to write."""
    client.schedule("mail", id="1")

    def refuse(connection: sa.Connection) -> str:
        raise AssertionError("a read asked for the id of its transaction")

    monkeypatch.setattr(
        type(bench.store.dialect), "transaction_id", staticmethod(refuse)
    )
    assert client.get("mail", "1") is not None
    assert len(client.list("mail")) == 1
    assert client.history("mail", "1") == []
