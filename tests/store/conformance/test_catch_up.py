"""Catch-up, as it comes out in the ledger, on each database."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from tests.store.conformance.test_policies import (
    MINUTE,
    NOON,
    drain,
    ledger,
    minute,
    working,
)

from slotwise import CatchUp, Every, JobContext, job
from slotwise.spi import Database
from slotwise.testing import ManualClock, ManualWorker


def test_catch_up_all_runs_every_missed_slot_in_order(database: Database) -> None:
    """Three hours of slots, each once, the oldest first, and then the schedule goes on."""
    with working(database, catch_up=CatchUp.all()) as (worker, started):
        worker.tick(180.5 * MINUTE)
        drain(worker)
        assert started == list(range(181))
        worker.tick(MINUTE)
        drain(worker)
    assert started[-1] == 181
    assert set(ledger(database).values()) == {"succeeded"}


def test_catch_up_all_within_its_limits(database: Database) -> None:
    """The newest three run; what is older is one gap."""
    with working(database, catch_up=CatchUp.all(max=3)) as (worker, started):
        worker.tick(10.5 * MINUTE)
        drain(worker)
    assert started == [8, 9, 10]
    assert ledger(database) == {
        **dict.fromkeys(range(8), "gap collapsed"),
        **dict.fromkeys((8, 9, 10), "succeeded"),
    }


def test_catch_up_all_keeps_its_pace_and_lets_new_slots_join(
    database: Database,
) -> None:
    """A slot each twenty seconds, those as well that come due meanwhile, until a slot is on time
    again.
    """
    with working(database, catch_up=CatchUp.all(pace="20s")) as (worker, started):
        worker.tick(5.5 * MINUTE)
        drain(worker)
        for slot in range(7):
            assert started == list(range(slot + 1))
            worker.tick("19s")
            assert worker.run_due() == []
            worker.tick("1s")
            drain(worker)
        assert started == list(
            range(8)
        )  # 6 and 7 came due meanwhile; 8 is to come, and not missed any more
        worker.tick("11s")
        drain(worker)
    assert started == list(range(9))
    assert set(ledger(database).values()) == {"succeeded"}


def test_an_outage_during_a_catch_up_is_bounded_as_any_other(
    database: Database,
) -> None:
    """An hour away, one run, six hours away: three run, none older than five minutes; two ranges
    for the rest.
    """
    with working(database, catch_up=CatchUp.all(max=3, window="5m")) as (
        worker,
        started,
    ):
        worker.tick(60.5 * MINUTE)
        (claim,) = worker.poll()
        assert worker.begin(claim)
        worker.finish(claim)
        worker.settle()
        worker.tick(360 * MINUTE)
        drain(worker)
    assert started == [418, 419, 420]
    found = ledger(database)
    assert {slot for slot, said in found.items() if said == "gap late"} == {
        *range(56),
        *range(59, 416),
    }
    assert {slot for slot, said in found.items() if said == "gap collapsed"} == {
        56,
        57,
        416,
        417,
    }


def test_slots_of_a_catch_up_that_are_too_late_are_one_range(
    database: Database,
) -> None:
    """However many: one look leaves them out, and takes the first that is not."""
    with working(database, catch_up=CatchUp.all(), start_within="150s") as (worker, _):
        worker.tick(10.5 * MINUTE)
        (claim,) = worker.poll()
        assert worker.begin(claim)
        worker.finish(claim)
        worker.settle()
        worker.tick(60 * MINUTE)
        (claim,) = worker.poll()
        assert claim.row.slot == NOON + 68 * MINUTE
    assert {slot for slot, said in ledger(database).items() if said == "gap late"} == {
        *range(8),
        *range(9, 68),
    }


def test_a_job_that_is_slower_than_its_schedule_comes_out_of_its_catch_up(
    database: Database,
) -> None:
    """Two slots were missed; what comes due during its runs of four minutes is overlap's, as on
    any other day.
    """
    with working(database, catch_up=CatchUp.all(max=3, window="10m")) as (worker, _):
        worker.tick(1.5 * MINUTE)
        found = []
        for pause in ("0s", "0s", "31s"):
            worker.tick(pause)
            (claim,) = worker.poll()
            assert worker.begin(claim)
            found.append((minute(claim.row.slot), claim.row.origin == "catch_up"))
            for _ in range(8):
                worker.tick("30s")
                worker.beat()
            worker.finish(claim)
            worker.settle()
    assert found == [(0, True), (1, True), (10, False)]
    assert [
        slot for slot, said in ledger(database).items() if said == "gap overlap"
    ] == [
        *range(2, 10),
        *range(11, 15),
    ]


def test_catch_up_first_is_labelled_with_the_oldest(database: Database) -> None:
    """One run for all of them; the rest is its gap, and nothing of it comes back."""
    with working(database, catch_up=CatchUp.first()) as (worker, started):
        worker.tick(4.5 * MINUTE)
        drain(worker)
        worker.tick(MINUTE)
        drain(worker)
    assert started == [0, 5]
    assert ledger(database) == {
        0: "succeeded",
        **dict.fromkeys(range(1, 5), "gap collapsed"),
        5: "succeeded",
    }


def test_a_year_of_seconds_is_one_row(database: Database) -> None:
    """The newest runs for all; nobody has walked through the others, or this test would take
    minutes.
    """

    def handler(ctx: JobContext) -> None:
        assert ctx.missed_count == seconds - 1

    seconds = 365 * 86_400
    subject = job(name="secondly", schedule=Every("1s"))(handler)
    with ManualWorker(
        [subject], database, ManualClock(NOON - timedelta(seconds=1))
    ) as worker:
        worker.plan()
        worker.tick(timedelta(seconds=seconds))
        assert [event.outcome for event in worker.run_due()] == ["succeeded"]
    with database.main.connect() as connection:
        assert connection.execute(
            sa.text("SELECT count, reason FROM scheduled_gaps")
        ).all() == [(seconds - 1, "collapsed")]


def test_a_crash_during_a_catch_up_loses_no_slot(database: Database) -> None:
    """The tail is in the row: whoever takes over goes on where the dead worker was."""
    policies = {"catch_up": CatchUp.all()}
    with working(database, **policies) as (worker, started):
        worker.tick(5.5 * MINUTE)
        (claim,) = worker.poll()
        assert worker.begin(claim)
        worker.crash()
    handler_started: list[float] = []
    subject = job(name="minutely", schedule=Every("1m"), **policies)(
        lambda ctx: handler_started.append((ctx.slot - NOON) / MINUTE)
    )
    with ManualWorker([subject], database, worker.clock) as heir:
        for _ in range(9):
            heir.reap()
            heir.tick("10s")
        drain(heir)
    assert [*started, *handler_started] == [0, 1, 2, 3, 4, 5, 6]
    assert set(ledger(database).values()) == {"succeeded"}
