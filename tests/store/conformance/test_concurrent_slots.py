"""Slots of one job side by side, and slots that replace each other: decided in the database, on
each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import TimeoutError
from tests.kit.records import Aborted, Failed, HandedBack
from tests.store.conformance.test_policies import MINUTE, NOON, ledger, minute, rows

from slotwise import CatchUp, Every, JobContext, Overlap, Retry, job
from slotwise.spi import Claim, Database, Settled
from slotwise.testing import ManualClock, ManualWorker


@contextmanager
def workers(
    database: Database, count: int = 1, **policies: Any
) -> Iterator[list[ManualWorker]]:
    """Workers on one clock, with one minutely job that was planned just before noon."""
    subject = job(name="minutely", schedule=Every("1m"), **policies)(_nothing)
    clock = ManualClock(NOON - timedelta(seconds=1))
    found = [
        ManualWorker([subject], database, clock, worker_name=f"w{number}")
        for number in range(count)
    ]
    for worker in found:
        worker.plan()
    yield found
    for worker in found:
        worker.close()


def _nothing(ctx: JobContext) -> None:
    """No test in here runs it: attempts begin and end by hand."""


def begun(worker: ManualWorker) -> list[float]:
    """Claim what is due, and begin it: the slots."""
    return [minute(claim.slot) for claim in worker.poll() if worker.begin(claim)]


def on(worker: ManualWorker, slot: float) -> Claim:
    (claim,) = [claim for claim in worker.held if minute(claim.slot) == slot]
    return claim


@pytest.mark.parametrize("kind", ["task", "detached"])
def test_a_row_of_another_program_under_the_id_of_a_slot(
    database: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The slot has no row of its own, so it is skipped: the ledger has it, and the log names the
    row. The next runs.
    """
    with workers(database, overlap=Overlap.allow(2)) as (one,):
        id = f"recurring@{NOON.isoformat()}"
        with one.store.transaction() as connection:
            row = {
                "task_name": "minutely",
                "task_instance": id,
                "kind": kind,
                "picked": False,
                "version": 1,
            }
            connection.execute(
                one.store.tables.tasks.insert().values(
                    **row, execution_time=NOON + 9 * MINUTE
                )
            )
        one.tick("1s")
        assert begun(one) == []
        assert ledger(database) == {0: "skipped unreadable"}
        assert [
            record.args[:2]
            for record in caplog.records
            if isinstance(record.args, tuple)
        ] == [("minutely", 1)]
        assert id in caplog.text
        go_on(MINUTE, one)
        assert begun(one) == [1]


def go_on(by: timedelta, *alive: ManualWorker) -> None:
    """Let time pass with heartbeats."""
    left = by
    while left > timedelta(0):
        alive[0].tick(min(left, timedelta(seconds=10)))
        left -= timedelta(seconds=10)
        for worker in alive:
            worker.beat()


def end(worker: ManualWorker, slot: float, outcome: Any = None) -> list[str]:
    worker.finish(on(worker, slot), outcome)
    return [event.outcome for event in worker.settle() if isinstance(event, Settled)]


# -- allow ----------------------------------------------------------------------------------------


def test_slots_run_side_by_side_as_far_as_allowed(database: Database) -> None:
    """Two at a time in the whole cluster, whoever runs them; the third finds no place, and the
    ledger says so.
    """
    with workers(database, 2, overlap=Overlap.allow(2)) as (one, two):
        one.tick("1s")
        assert begun(one) == [0]
        go_on(MINUTE, one, two)
        assert begun(two) == [1]
        go_on(MINUTE, one, two)
        assert (begun(one), begun(two)) == ([], [])
        assert end(one, 0) == ["succeeded"]
        go_on(MINUTE, one, two)
        assert begun(one) == [3]
        assert (end(two, 1), end(one, 3)) == (["succeeded"], ["succeeded"])
    assert ledger(database) == {
        0: "succeeded",
        1: "succeeded",
        2: "skipped overlap",
        3: "succeeded",
    }


def test_the_rows_of_what_runs(database: Database) -> None:
    """One for each slot, by its name, gone when it is final; the plan row waits for the next slot
    all the time.
    """
    with workers(database, overlap=Overlap.allow(3)) as (one,):
        one.tick("1s")
        begun(one)
        go_on(MINUTE, one)
        begun(one)
        found = {row["task_instance"]: bool(row["picked"]) for row in rows(database)}
        assert found == {
            "recurring": False,
            f"recurring@{NOON.isoformat()}": True,
            f"recurring@{(NOON + MINUTE).isoformat()}": True,
        }
        end(one, 0)
        end(one, 1, Failed("boom"))
        (plan,) = rows(database)
    assert (minute(plan["slot"]), plan["picked"] or False) == (2, False)
    assert plan["last_success"] is not None
    assert (plan["last_error"], plan["consecutive_failures"]) == ("boom", 1)


def test_a_slot_is_settled_though_its_plan_row_cannot_be_told(
    database: Database,
) -> None:
    """That comes after the commit, on a connection of its own: where none is to be had, the slot
    is settled all the same, and nobody takes it for lost.
    """

    def refuse(*_: object) -> None:
        raise TimeoutError("QueuePool limit reached")

    def leave_none(*_: object) -> None:
        sa.event.listen(database.main, "checkout", refuse)

    with workers(database, overlap=Overlap.allow(3)) as (one,):
        one.tick("1s")
        begun(one)
        claim = on(one, 0)
        sa.event.listen(database.main, "commit", leave_none)
        (settlement,) = one.store.settlements.settle([(claim, Failed("boom"))])
        for what, listener in (("commit", leave_none), ("checkout", refuse)):
            sa.event.remove(database.main, what, listener)
    assert settlement.transition is not None
    assert ledger(database) == {0: "failed"}


def test_a_slot_that_waits_for_its_retry_holds_its_place(database: Database) -> None:
    """Its retry comes before the next slot; until then nobody else has its place."""
    retry = Retry(max_attempts=2, wait=lambda state: 90, past_next_slot=True)  # type: ignore[arg-type, return-value]
    with workers(database, overlap=Overlap.allow(1), retry=retry) as (one,):
        one.tick("1s")
        begun(one)
        end(one, 0, Failed("busy"))
        one.tick(MINUTE)
        assert begun(one) == []
        one.tick("31s")
        assert begun(one) == [0]
        assert on(one, 0).row.attempt == 2
        end(one, 0)
    assert ledger(database) == {0: "succeeded", 1: "skipped overlap"}


# -- places ---------------------------------------------------------------------------------------


def test_a_lost_slot_is_taken_over_in_its_place(database: Database) -> None:
    """Its row is reaped like any other, and runs again beside its neighbours."""
    with workers(database, 2, overlap=Overlap.allow(2)) as (one, two):
        one.tick("1s")
        begun(one)
        go_on(MINUTE, one, two)
        begun(two)
        one.crash()
        for _ in range(9):
            go_on(timedelta(seconds=10), two)
            two.reap()
        assert 0 in begun(two)
        assert on(two, 0).row.attempt == 2
        end(two, 0)
        end(two, 1)
    found = ledger(database)
    assert (found[0], found[1]) == ("succeeded", "succeeded")


def test_giving_up_side_by_side(database: Database) -> None:
    """At most one start per slot, in rows of their own too."""
    with workers(database, 2, overlap=Overlap.allow(2), on_lost="give_up") as (
        one,
        two,
    ):
        one.tick("1s")
        assert begun(one) == [0]
        one.crash()
        two.tick(MINUTE)
        assert begun(two) == [1]
        for _ in range(9):
            go_on(timedelta(seconds=10), two)
            two.reap()
        assert 0 not in begun(two)
        end(two, 1)
    found = ledger(database)
    assert (found[0], found[1]) == ("lost may_still_be_running", "succeeded")


@pytest.mark.parametrize(
    ("catch_up", "ran", "left_out"),
    [
        pytest.param(CatchUp.all(), [2, 3, 4], {}, id="all"),
        pytest.param(
            CatchUp.latest(),
            [4],
            {2: "gap collapsed", 3: "gap collapsed"},
            id="latest",
        ),
    ],
)
def test_slots_that_nobody_has_looked_at_are_catch_ups(
    database: Database, catch_up: CatchUp, ran: list[float], left_out: dict[float, str]
) -> None:
    """All workers died. Whoever comes next looks late, finds all places taken, and waits until the
    loss is seen.
    """
    give_up: dict[str, Any] = {"on_lost": "give_up", "catch_up": catch_up}
    with workers(database, 2, overlap=Overlap.allow(2), **give_up) as (one, two):
        one.tick("1s")
        assert begun(one) == [0]
        go_on(MINUTE, one)
        assert begun(one) == [1]
        one.crash()  # its leases last for another minute, until noon and two minutes
        two.tick(3.5 * MINUTE)
        started = begun(two)
        for _ in range(14):
            go_on(timedelta(seconds=2), two)
            two.reap()
            started += begun(two)
            for claim in two.held[:1]:
                end(two, minute(claim.slot))
        assert started == ran
    found = ledger(database)
    assert {slot: found.get(slot) for slot in left_out} == left_out
    assert (found[0], found[1]) == ("lost may_still_be_running",) * 2


def test_missed_slots_run_side_by_side(database: Database) -> None:
    """A catch-up of all takes the places there are, and waits for others to become free; no slot
    is skipped.
    """
    started: list[float] = []
    with workers(database, overlap=Overlap.allow(2), catch_up=CatchUp.all()) as (one,):
        one.tick(4.5 * MINUTE)
        for _ in range(20):
            found = begun(one)
            started += found
            assert len(one.held) <= 2
            for claim in one.held[:1]:
                end(one, minute(claim.slot))
            go_on(timedelta(seconds=1), one)
    assert started[:5] == [0, 1, 2, 3, 4]
    assert set(ledger(database).values()) == {"succeeded"}


def test_a_trigger_stands_beside_the_overlap_rules(database: Database) -> None:
    """It takes no place from the schedule's slots."""
    with workers(database, overlap=Overlap.allow(1)) as (one,):
        one.client.operations.trigger("minutely")
        assert len(one.poll()) == 1
        one.tick("1s")
        assert begun(one) == [0]


# -- cancel_previous ------------------------------------------------------------------------------


def test_a_new_slot_replaces_the_one_that_runs(database: Database) -> None:
    """It asks, waits until the other is settled, and starts then; of those that wait, only the
    newest does.
    """
    with workers(database, 2, overlap=Overlap.cancel_previous()) as (one, two):
        one.tick("1s")
        assert begun(one) == [0]
        go_on(MINUTE, one, two)
        assert begun(two) == []
        one.beat()
        claim = on(one, 0)
        assert one.cancel_reason(claim) == "overlap"
        for _ in range(12):
            go_on(timedelta(seconds=5), one, two)
            assert begun(two) == []
        assert end(one, 0, Aborted("overlap")) == ["cancelled"]
        two.tick("1s")
        assert begun(two) == [2]
        end(two, 2)
    assert ledger(database) == {
        0: "cancelled overlap",
        1: "skipped overlap",
        2: "succeeded",
    }


def test_a_slot_that_ends_well_all_the_same(database: Database) -> None:
    """Asked to stop, it came to its end: that counts."""
    with workers(database, overlap=Overlap.cancel_previous()) as (one,):
        one.tick("1s")
        begun(one)
        go_on(MINUTE, one)
        begun(one)
        assert end(one, 0) == ["succeeded"]
        one.tick("1s")
        assert begun(one) == [1]


def test_a_replaced_slot_has_no_retry(database: Database) -> None:
    """Waiting for its next attempt, it ends as soon as a newer one is due."""
    retry = Retry(max_attempts=5, wait=lambda state: 90, past_next_slot=True)  # type: ignore[arg-type, return-value]
    with workers(database, overlap=Overlap.cancel_previous(), retry=retry) as (one,):
        one.tick("1s")
        begun(one)
        end(one, 0, Failed("busy"))
        one.tick(MINUTE)
        started = []
        for _ in range(4):
            started += begun(one)
            one.settle()
            one.tick("1s")
    assert started == [1]
    assert ledger(database)[0] == "cancelled overlap"


def test_a_frozen_holder_keeps_nobody_out_for_longer_than_its_lease(
    database: Database,
) -> None:
    """Its slot is reaped, is not run again, and the new one starts."""
    with workers(database, 2, overlap=Overlap.cancel_previous()) as (one, two):
        one.tick("1s")
        begun(one)
        started: list[float] = []
        for _ in range(20):
            go_on(timedelta(seconds=10), two)
            started += begun(two)
            two.reap()
            if started:
                break
        assert started == [1]
    assert ledger(database)[0] == "cancelled overlap"


def test_who_asked_is_told_apart(database: Database) -> None:
    """An operation and a newer slot end the same slot with different reasons."""
    with workers(database, overlap=Overlap.cancel_previous()) as (one,):
        one.tick("1s")
        begun(one)
        one.client.operations.cancel("minutely")
        one.beat()
        assert one.cancel_reason(on(one, 0)) == "operator"
        end(one, 0, Aborted("operator"))
    assert ledger(database)[0] == "cancelled operator"


def test_a_slot_is_asked_to_stop_by_the_claim_that_starts_it(
    database: Database,
) -> None:
    """It was handed back, and comes up with the newer slot: one claim starts it and asks it."""
    with workers(database, overlap=Overlap.cancel_previous()) as (one,):
        one.tick("1s")
        one.poll()
        assert end(one, 0, HandedBack("shutdown")) == []
        go_on(MINUTE, one)
        assert begun(one) == [0]
        one.beat()
        assert one.cancel_reason(on(one, 0)) == "overlap"


def test_a_late_slot_asks_the_one_that_runs_to_stop(database: Database) -> None:
    """Nobody has looked for minutes, and the one that runs would never end: catch-up chooses when
    it has.
    """
    with workers(database, overlap=Overlap.cancel_previous()) as (one,):
        one.tick("1s")
        assert begun(one) == [0]
        go_on(3.5 * MINUTE, one)
        assert begun(one) == []
        one.beat()
        assert one.cancel_reason(on(one, 0)) == "overlap"
        end(one, 0, Aborted("overlap"))
        one.tick("1s")
        assert begun(one) == [3]
    assert ledger(database) == {
        0: "cancelled overlap",
        1: "gap collapsed",
        2: "gap collapsed",
        3: "running",
    }


@pytest.mark.parametrize(
    "overlap",
    [Overlap.allow(2), Overlap.cancel_previous()],
    ids=["allow", "cancel_previous"],
)
def test_a_year_of_seconds_beside_a_run(database: Database, overlap: Overlap) -> None:
    """Nobody has looked at them: they wait for a place, and are one gap then, however long."""
    subject = job(name="secondly", schedule=Every("1s"), overlap=overlap)(_nothing)
    with ManualWorker([subject], database, ManualClock(NOON)) as one:
        for _ in range(2):
            one.tick("1s")
            assert all(one.begin(claim) for claim in one.poll())
        one.tick(timedelta(days=365))
        one.poll()
        for claim in one.held:
            one.finish(claim)
        one.settle()
        one.tick("1s")
        one.poll()
        with database.main.connect() as connection:
            counts = connection.execute(
                sa.text("SELECT count, reason FROM scheduled_gaps")
            ).all()
    assert len(counts) == 1
    assert counts[0][0] >= 365 * 86_400 - 2
    assert counts[0][1] == "collapsed"
