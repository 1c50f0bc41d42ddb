"""Slots that a calendar passes over: they exist, do not run, and the ledger says so; nothing else
changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.decisions import around, passed_over
from tests.kit.records import TICK, Gap
from tests.kit.times import due_at, slot_after, succeed

from slotwise import (
    Calendar,
    CatchUp,
    Cron,
    DistributedJob,
    JobContext,
    Overlap,
    Schedule,
)
from slotwise.inspect import SlotInfo
from slotwise.testing import ManualClock, ManualWorker

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
#: A Thursday; the next day is closed, and so is the week's end after it.
THURSDAY = datetime(2026, 4, 30, tzinfo=UTC)
CLOSED = Calendar(name="AT", revision=1, days=frozenset({date(2026, 5, 1)}))
NINE = Cron("0 9 * * *").excluding(CLOSED)
HOURLY = Cron("0 * * * *").excluding(CLOSED)


def at(day: int, hour: int = 9) -> datetime:
    """Thursday is day 0; day 4, Monday, is open again."""
    return THURSDAY + day * DAY + hour * HOUR


def gap(first: datetime, last: datetime, count: int, reason: str) -> Gap:
    return Gap(first=first, last=last, count=count, reason=reason)


# Pure.
# ------------------------------------------------------------------------------------------------------------


def test_runs_of_passed_over_slots_are_gaps() -> None:
    """Each run one gap; none where there is none."""
    assert passed_over(NINE, at(0), at(9)) == (
        gap(at(1), at(3), 3, "calendar"),
        gap(at(9), at(9), 1, "calendar"),
    )
    assert passed_over(NINE, at(2), at(2)) == (gap(at(2), at(2), 1, "calendar"),)
    assert passed_over(NINE, at(4), at(8)) == ()
    assert passed_over(Cron("0 9 * * *"), at(0), at(9)) == ()


def test_gaps_are_cut_around_passed_over_slots() -> None:
    """A slot stands in one gap: what would have run apart from what would not."""
    missed = gap(at(0), at(5), 3, "collapsed")  # Thursday, Monday, Tuesday
    passed = passed_over(NINE, at(0), at(6))
    assert around(NINE, (missed,), at(0), at(6)) == (
        gap(at(0), at(0), 1, "collapsed"),
        gap(at(1), at(3), 3, "calendar"),
        gap(at(4), at(5), 2, "collapsed"),
    )
    assert around(NINE, (), at(0), at(6)) == passed
    assert around(Cron("0 9 * * *"), (missed,), at(0), at(6)) == (missed,)


@pytest.mark.parametrize(
    ("schedule", "slot", "due"),
    [
        pytest.param(NINE, at(0), at(0), id="a slot that runs: at its time"),
        pytest.param(
            NINE, at(3), at(4), id="the next one that runs is within a day: then"
        ),
        pytest.param(NINE, at(1), at(1), id="it is not: at its own time"),
        pytest.param(
            HOURLY, at(1, 0), at(1, 23), id="many within a day: at the last of them"
        ),
        pytest.param(
            HOURLY, at(3, 20), at(4, 0), id="many, then one that runs: at that one"
        ),
    ],
)
def test_a_passed_over_slot_is_due_when_it_can_be_written_down(
    schedule: Schedule, slot: datetime, due: datetime
) -> None:
    """At most a day after its time, together with its neighbours; and the claim takes the longer
    path.
    """
    assert due_at(schedule, slot) == due
    following = slot_after(schedule, slot)
    assert following is not None
    assert following <= due or schedule.runs(slot)


def test_the_slot_after_one_that_runs_is_the_next_that_runs() -> None:
    """So that a retry may go on over the week's end."""
    assert slot_after(NINE, at(0)) == at(4)


# With a worker.
# ---------------------------------------------------------------------------------------------------


class Job(DistributedJob):
    name = "job"

    def __init__(self, schedule: Schedule, **policies: Any) -> None:
        self.schedule = schedule
        self.ran: list[tuple[datetime, int, datetime | None]] = []
        for word, value in policies.items():
            setattr(self, word, value)

    def execute(self, ctx: JobContext) -> None:
        self.ran.append((ctx.slot, ctx.missed_count, ctx.interval_start))


@contextmanager
def at_work(schedule: Schedule, **policies: Any) -> Iterator[tuple[ManualWorker, Job]]:
    job = Job(schedule, **policies)
    with ManualWorker([job], clock=ManualClock(THURSDAY)) as worker:
        yield worker, job


def told(
    worker: ManualWorker,
) -> list[tuple[datetime, datetime | None, str, str | None, int]]:
    """Ledger and gaps, the oldest first."""
    lines: list[SlotInfo] = list(worker.client.inspect.slots("job"))
    return sorted(
        (line.slot, line.last, line.outcome, line.reason, line.count) for line in lines
    )


def work_until(
    worker: ManualWorker, instant: datetime, step: timedelta = HOUR
) -> None:
    while worker.clock.now() < instant:
        worker.tick(min(step, instant - worker.clock.now()))
        worker.run_due()


def check_books(worker: ManualWorker, schedule: Schedule) -> None:
    """Every slot that has passed stands in one place; as the calendar's exactly if the calendar
    passes over it.
    """
    lines, tasks = told(worker), worker.store.tables.tasks
    with worker.store.transaction() as connection:
        row = connection.execute(sa.select(tasks.c.slot)).one()
    until = row.slot - TICK if row.slot else worker.clock.now()
    for slot in schedule.slots(THURSDAY, until):
        found = [line for line in lines if line[0] <= slot <= (line[1] or line[0])]
        assert len(found) == 1, (slot, found)
        assert (found[0][3] == "calendar") == (not schedule.runs(slot)), (slot, found)
    for first, last, _, _, count in lines:
        assert schedule.count_between(first - TICK, last or first) == count


def test_a_long_weekend() -> None:
    """Thursday runs, Friday to Sunday are skipped by the calendar, Monday runs on time, as if
    nothing lay between.
    """
    with at_work(NINE) as (worker, job):
        work_until(worker, at(5, 0))
        assert job.ran == [(at(0), 0, THURSDAY - DAY + 9 * HOUR), (at(4), 0, at(0))]
        assert told(worker) == [
            (at(0), None, "succeeded", None, 1),
            (at(1), None, "skipped", "calendar", 1),
            (at(2), None, "skipped", "calendar", 1),
            (at(3), None, "skipped", "calendar", 1),
            (at(4), None, "succeeded", None, 1),
        ]
        check_books(worker, NINE)


def test_a_weekend_of_hours_takes_a_claim_a_day() -> None:
    """Passed over slots are a gap, never a row for each; each day's claim extends it."""
    with at_work(HOURLY) as (worker, job):
        work_until(worker, at(5, 0))
        assert [slot.day for slot, _, _ in job.ran] == [30] * 23 + [4] * 24 + [5]
        passed = [line for line in told(worker) if line[3] == "calendar"]
        assert len(passed) == 1
        assert sum(line[4] for line in passed) == 72
        check_books(worker, HOURLY)


def test_an_outage_over_a_weekend_collapses_only_what_would_have_run() -> None:
    """From Thursday to Tuesday nobody worked: Monday's slot stands for Thursday's, not for the
    weekend's.
    """
    with at_work(NINE) as (worker, job):
        work_until(worker, at(4, 12), step=at(4, 12) - THURSDAY)
        assert job.ran == [(at(4), 1, at(0))]
        assert told(worker) == [
            (at(0), None, "skipped", "collapsed", 1),
            (at(1), at(3), "skipped", "calendar", 3),
            (at(4), None, "succeeded", None, 1),
        ]
        check_books(worker, NINE)


def test_an_outage_that_ends_on_a_closed_day_runs_what_was_missed_before() -> None:
    """On Saturday, Thursday's slot runs late; Friday's and Saturday's are the calendar's."""
    with at_work(NINE) as (worker, job):
        work_until(worker, at(2, 12), step=at(2, 12) - THURSDAY)
        worker.run_due()
        assert [slot for slot, _, _ in job.ran] == [at(0)]
        check_books(worker, NINE)
        work_until(worker, at(5, 0))
        assert [slot for slot, _, _ in job.ran] == [at(0), at(4)]
        check_books(worker, NINE)


def test_a_run_over_the_weekend_cuts_its_overlap() -> None:
    """Held from Thursday to Monday noon: Monday's slot is overlap's, those between are the
    calendar's.
    """
    with at_work(NINE) as (worker, _):
        worker.tick(at(0) - THURSDAY)
        (claim,) = worker.poll()
        worker.begin(claim)
        worker.tick(at(4, 12) - at(0))
        worker.finish(claim)
        worker.settle()
        assert told(worker)[1:] == [
            (at(1), at(3), "skipped", "calendar", 3),
            (at(4), None, "skipped", "overlap", 1),
        ]
        check_books(worker, NINE)


def test_a_new_schedule_on_a_closed_day_leaves_the_past_to_the_old_one() -> None:
    """Deployed on Saturday: Friday's and Saturday's slots were the old text's, and are written
    down as such.
    """
    with at_work(HOURLY) as (worker, job):
        work_until(worker, at(2, 12))
        job.schedule = NINE
        with ManualWorker(
            [job], url=worker.store.database, clock=worker.clock
        ) as newer:
            newer.run_due()
            work_until(newer, at(5, 0))
            check_books(newer, succeed(HOURLY, at(2, 12), NINE))
            assert [slot for slot, _, _ in job.ran][-1] == at(4)


POLICIES = st.fixed_dictionaries(
    {
        "catch_up": st.sampled_from(
            [CatchUp.latest(), CatchUp.first(), CatchUp.none(), CatchUp.all(max=5)]
        ),
        "overlap": st.sampled_from(
            [Overlap.skip(), Overlap.queue(2), Overlap.queue_all()]
        ),
    }
)
SCHEDULES = st.builds(
    lambda hours, minutes, days: Cron(f"{minutes} {hours} * * *").excluding(
        Calendar(name="CO", days=frozenset(THURSDAY.date() + n * DAY for n in days))
    ),
    hours=st.sampled_from(["*", "9", "0,12", "*/5", "23"]),
    minutes=st.sampled_from(["0", "30", "0,20,40"]),
    days=st.sets(st.integers(0, 12), max_size=5),
)
PAUSES = st.lists(
    st.timedeltas(timedelta(minutes=1), 3 * DAY), min_size=3, max_size=20
)


@pytest.mark.extended
@given(
    schedule=SCHEDULES,
    policies=POLICIES,
    pauses=PAUSES,
    runs=st.lists(st.timedeltas(HOUR / 60, DAY), max_size=5),
)
@settings(max_examples=12, deadline=None)
def test_the_books_are_right_whatever_happens(
    schedule: Schedule,
    policies: dict[str, Any],
    pauses: list[timedelta],
    runs: list[timedelta],
) -> None:
    """Outages, long runs and every policy: each slot in one place, the calendar's where it
    belongs, and none runs.
    """
    with at_work(schedule, **policies) as (worker, job):
        for pause in pauses:
            worker.tick(pause)
            for claim in worker.poll():
                worker.begin(claim)
                worker.tick(runs.pop() if runs else timedelta(0))
                worker.finish(claim)
            worker.settle()
            check_books(worker, schedule)
        worker.run_due()
        check_books(worker, schedule)
        assert all(schedule.runs(slot) for slot, _, _ in job.ran)
