"""Operations to one of a task's recurring instances, and what becomes of them when it is deleted,
on both databases.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import Aborted, Failed
from tests.kit.store import facts
from tests.store.bench import MINUTE, Bench, a_job, at

from slotwise import ConfigurationError, Disabled, Every, Overlap, Retry, UnknownTask
from slotwise.explain.slot_explanation import explain
from slotwise.inspect import RECURRING
from slotwise.operations import Operations
from slotwise.spi import Database

EACH = Every(MINUTE)
DEFINITIONS = (
    a_job(
        "feed",
        Disabled(),
        retry=Retry.exponential(max_attempts=3, initial=timedelta(seconds=1)),
    ),
    a_job("abreast", Disabled(), overlap=Overlap.allow(2)),
)


@pytest.fixture
def bench(database: Database) -> Bench:
    """Two instances of each job, planned at noon."""
    bench = Bench(database, DEFINITIONS).planned()
    for name in ("feed", "abreast"):
        for id in "ab":
            bench.client.schedule_recurring(name, id, EACH)
    return bench


@pytest.fixture
def operations(bench: Bench) -> Operations:
    return bench.client.operations.by("ada")


def endings(bench: Bench, name: str, instance: str) -> list[tuple[object, ...]]:
    """Slot, outcome and reason of what has ended."""
    return [
        (entry["slot"], entry["outcome"], entry["reason"])
        for entry in bench.slots(name)
        if entry["task_instance"] == instance and entry["finished"]
    ]


# -- cancel ---------------------------------------------------------------------------------------


def test_cancel_is_about_one_instance_or_about_all(
    bench: Bench, operations: Operations
) -> None:
    """What runs of the one that is named; without a name, what runs of the job and of all its
    instances.
    """
    bench.tick()
    claims = bench.claim("feed")
    assert [claim.row.task_instance for claim in claims] == ["a", "b"]
    assert operations.cancel("feed", id="b") == [at(1)]
    assert [bench.row("feed", id).cancel_requested for id in "ab"] == [None, at(1)]
    assert operations.cancel("feed", id=RECURRING) == []
    assert operations.cancel("feed") == [at(1), at(1)]
    assert [
        (operation.id, operation.slot) for operation in bench.inspect.audit("feed")
    ] == [
        ("b", at(1)),
        ("a", at(1)),
        ("b", at(1)),
    ]


def test_cancel_of_a_slot_means_the_jobs_own_unless_an_instance_is_named(
    bench: Bench, operations: Operations
) -> None:
    """Instances share their slots' times, and nobody else's slot is ended by mistake."""
    bench.tick()
    for claim in bench.claim("feed"):
        bench.settle(claim, Failed("oops"))
    with pytest.raises(
        ConfigurationError, match="does not run: it is not in the ledger"
    ):
        operations.cancel("feed", at(1))
    assert operations.cancel("feed", at(1), id="b") == [at(1)]
    bench.tick(0.5)
    claims = {claim.row.task_instance: claim for claim in bench.claim("feed")}
    assert [claims[id].row.cancel_requested is not None for id in "ab"] == [
        False,
        True,
    ]


def test_an_instance_is_a_text(bench: Bench, operations: Operations) -> None:
    """Whatever the operation: said before the database is asked, with the cure."""
    operations: list[Callable[..., object]] = [
        operations.trigger,
        operations.skip_next,
        operations.cancel,
        partial(operations.backfill, first=at(0), last=at(1)),
        partial(operations.retry, slot=at(1)),
        operations.cancel_backfill,
    ]
    for operation in operations:
        with pytest.raises(
            ConfigurationError, match=r"^id=3: expected a string; write id='3'$"
        ):
            operation("plain", id=3)


def test_cancel_of_an_instance_that_is_not_there(
    bench: Bench, operations: Operations
) -> None:
    """One line, with the cure."""
    with pytest.raises(
        UnknownTask,
        match="no recurring instance 'c'; see: slotwise jobs feed --instances",
    ):
        operations.cancel("feed", id="c")


def test_a_backfill_of_one_instance_is_called_off(
    bench: Bench, operations: Operations
) -> None:
    """That of another one goes on; without a name all are called off."""
    for id in "ab":
        operations.backfill("feed", at(-3), at(-1), id=id)
    assert operations.cancel_backfill("feed", id="a") == 3
    assert [claim.row.plan_instance for claim in bench.claim("feed")] == ["b"]
    assert endings(bench, "feed", "a") == [
        (at(minute), "cancelled", "operator") for minute in (-3, -2, -1)
    ]
    assert operations.cancel_backfill("feed") == 2


def test_an_operation_on_one_instance_explains_no_other(
    bench: Bench, operations: Operations
) -> None:
    """Each is told of its own operations, though slots have the same time."""
    operations.skip_next("feed", id="b", note="a holiday")
    told = {
        id: " ".join(explain(facts(bench.store, "feed", at(1), id)).sentences)
        for id in "ab"
    }
    assert "a holiday" in told["b"]
    assert "ada" not in told["a"]


# -- deleted --------------------------------------------------------------------------------------


def test_what_waits_ends_with_its_instance(
    bench: Bench, operations: Operations
) -> None:
    """Triggers and backfills were for that instance: none of them starts, and the ledger says why.
    Others go on.
    """
    triggers = {id: operations.trigger("feed", id=id) for id in "ab"}
    operations.backfill("feed", at(-2), at(-1), id="a")
    bench.client.unschedule_recurring("feed", "a")
    assert endings(bench, "feed", "a") == [
        (slot, "cancelled", "deleted") for slot in (at(-2), at(-1), triggers["a"])
    ]
    assert [
        (claim.row.plan_instance, claim.slot) for claim in bench.claim("feed")
    ] == [("b", triggers["b"])]


def test_what_runs_beside_a_deleted_instance_runs_to_its_end(
    bench: Bench, operations: Operations
) -> None:
    """It keeps its claim; a good end counts, and what would wait for another attempt does not come
    back.
    """
    slots = [operations.trigger("feed", id="a") for _ in range(2)]
    claims = sorted(bench.claim("feed"), key=lambda claim: str(claim.slot))
    bench.client.unschedule_recurring("feed", "a")
    assert bench.store.held.beat(claims[0].holder, claims) == set()
    bench.settle(claims[0])
    bench.settle(claims[1], Failed("oops"))
    bench.tick()
    assert [claim.row.task_instance for claim in bench.claim("feed")] == ["b"]
    assert endings(bench, "feed", "a") == [
        (slots[0], "succeeded", None),
        (slots[1], "cancelled", "deleted"),
    ]


def test_slots_beside_each_other_end_with_their_instance(bench: Bench) -> None:
    """With allow, each runs to its end, and no row is left."""
    for _ in range(2):
        bench.tick()
        claims = [*bench.claim("abreast")]
    mine = next(claim for claim in claims if claim.row.plan_instance == "a")
    bench.client.unschedule_recurring("abreast", "a")
    bench.settle(mine)
    assert (at(2), "succeeded", None) in endings(bench, "abreast", "a")
    assert bench.find("abreast", mine.row.task_instance) is None


def test_no_operation_reaches_an_instance_that_is_deleted_but_cancel(
    bench: Bench, operations: Operations
) -> None:
    """It only runs to its end: a trigger would never find its row, and what runs can be asked to
    stop.
    """
    bench.tick()
    claim = next(
        claim for claim in bench.claim("feed") if claim.row.task_instance == "a"
    )
    bench.client.unschedule_recurring("feed", "a")
    with pytest.raises(UnknownTask, match="no recurring instance 'a'"):
        operations.trigger("feed", id="a")
    assert operations.cancel("feed", id="a") == [at(1)]
    bench.settle(claim, Aborted("operator"))
    assert endings(bench, "feed", "a") == [(at(1), "cancelled", "operator")]


def test_an_instance_of_a_paused_job_that_is_made_again_sleeps_on(
    bench: Bench, operations: Operations
) -> None:
    """Deleted while it ran, and wanted again before its end: the pause is the job's."""
    bench.tick()
    claim = next(
        claim for claim in bench.claim("feed") if claim.row.task_instance == "a"
    )
    operations.pause("feed")
    bench.client.unschedule_recurring("feed", "a")
    bench.client.schedule_recurring("feed", "a", EACH)
    bench.settle(claim)
    assert bench.row("feed", "a").state == "paused"
    bench.tick(3)
    assert bench.claim("feed") == []


# -- operations to many ---------------------------------------------------------------------------


@pytest.fixture
def many(database: Database, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A job with 35 instances, in chunks of ten rows."""
    monkeypatch.setattr("slotwise.store.operations.transaction.CHUNK", 10)
    bench = Bench(database, DEFINITIONS).planned()
    for number in range(35):
        bench.client.schedule_recurring("feed", f"id-{number:02}", EACH)
    return bench


def states(bench: Bench) -> list[str]:
    tasks = bench.tables.tasks
    with bench.store.transaction() as connection:
        return [
            str(state)
            for state in connection.scalars(
                sa.select(tasks.c.state).where(tasks.c.task_name == "feed")
            )
        ]


def test_orders_to_many_lock_a_chunk_at_a_time(many: Bench) -> None:
    """Between two of them no row is locked, so heartbeats and settlements wait for no more than
    one. Held rows keep their claims; what runs is parked at its end.
    """
    many.tick()
    held = [
        *many.claim("feed", limit=3),
        *many.claim("feed", limit=3, holder="host:2:b"),
    ]
    operations, progress, locked = (
        many.client.operations.by("ada"),
        list[int](),
        list[int](),
    )

    def count(_connection: object, cursor: Any, statement: str, *_: object) -> None:
        if statement.endswith("FOR UPDATE") or statement.startswith(
            "UPDATE scheduled_tasks"
        ):
            locked.append(cursor.rowcount)

    def between(rows: int) -> None:
        progress.append(rows)
        if many.database.dialect_name == "postgresql":
            with many.database.main.begin() as free:
                free.exec_driver_sql(
                    "SELECT FROM scheduled_tasks WHERE task_name = 'feed' FOR UPDATE NOWAIT"
                )
        for claim in held:
            assert not many.store.held.beat(claim.holder, [claim])

    assert operations.pause("feed", dry_run=True)
    sa.event.listen(many.database.main, "after_cursor_execute", count)
    try:
        assert operations.pause("feed", progress=between)
        assert operations.pause("feed") is False
    finally:
        sa.event.remove(many.database.main, "after_cursor_execute", count)
    assert progress == [10, 20, 30, 36, 36]
    assert max(locked) <= 10
    assert [entry.operation for entry in many.inspect.audit("feed")] == ["pause"]
    for claim in held:
        assert many.settle(claim) is not None
    assert not many.claim("feed")
    assert len(operations.resume("feed")) == 36
    assert operations.resume("feed") == []
    many.tick()
    assert len(many.claim("feed")) == 35


def test_an_operation_on_many_that_was_interrupted_continues(many: Bench) -> None:
    """Given again, with what is left; what is done stays. A new instance is not forgotten."""

    def stop(rows: int) -> None:
        if rows == 20:
            many.client.schedule_recurring(
                "feed", "id-00-new", EACH
            )  # it was deleted, at the second operation
            raise KeyboardInterrupt

    operations = many.client.operations.by("ada")
    with pytest.raises(KeyboardInterrupt):
        operations.pause("feed", progress=stop)
    assert sorted(states(many)) == ["None"] * 16 + ["paused"] * 21
    assert operations.pause("feed")
    assert set(states(many)) == {"paused"}
    with pytest.raises(KeyboardInterrupt):
        operations.delete("feed", progress=stop)
    assert operations.delete("feed") == 18
    assert states(many) == []


def test_an_instance_that_is_created_between_two_chunks_is_paused(many: Bench) -> None:
    """Its id lies before the rows that are left, and the job's own row, by which it would sleep,
    is not paused yet.
    """

    def create(rows: int) -> None:
        if rows == 20:
            many.client.schedule_recurring("feed", "id-00-new", EACH)

    assert many.client.operations.pause("feed", progress=create)
    assert states(many) == ["paused"] * 37
