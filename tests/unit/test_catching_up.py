"""A catch-up that goes on, as tables: what each start chooses, and what each end leaves for the next one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slotwise import Every, decide, job
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import CatchUp, Overlap
from slotwise.model.records import RECURRING, AttemptOutcome, Claim, Died, Gap, LedgerEntry, Row, Succeeded
from slotwise.testing import ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MINUTELY = Every(MINUTE)


def at(minutes: float) -> datetime:
    return NOON + minutes * MINUTE


def gap(first: float, last: float, reason: str) -> Gap:
    return Gap(first=at(first), last=at(last), count=int(last - first) + 1, reason=reason)


def definition(**policies: Any) -> Definition:
    given = {"catch_up": CatchUp.all()} | policies
    return Definition(name="report", handler=lambda ctx: None, is_async=False, schedule=MINUTELY, **given)


def row_of(slot: float, *, until: float, **changes: Any) -> Row:
    """A held plan row in the middle of a catch-up."""
    given: dict[str, Any] = {
        "task_name": "report", "task_instance": RECURRING, "execution_time": at(slot), "version": 1_000,
        "picked": True, "picked_by": "host:1:a", "lease": MINUTE, "slot": at(slot), "watermark": at(slot),
        "next_slot": at(slot + 1), "schedule": str(MINUTELY), "attempt": 1, "origin": "catch_up",
        "catch_up_until": at(until),
    }  # fmt: skip
    return Row(**(given | changes))


LATE = timedelta(minutes=5)


@pytest.mark.parametrize(
    ("policies", "until", "due", "now", "slot", "gaps", "new_until"),
    [
        pytest.param({}, 5, 5.5, 5.5, 1, (), 5, id="the next one"),
        pytest.param({}, 5, 5.5, 9.5, 1, (), 9, id="with what was missed since"),
        pytest.param({"catch_up": CatchUp.all(max=3)}, 3, 3.5, 3.5, 1, (), 3, id="as many as may"),
        pytest.param(
            {"catch_up": CatchUp.all(max=3)}, 3, 3.5, 4.5, 2, (gap(1, 1, "collapsed"),), 4, id="one more than may"
        ),
        pytest.param(
            {"catch_up": CatchUp.all(max=3)}, 3, 3.5, 360.5, 358, (gap(1, 357, "collapsed"),), 360, id="an outage later"
        ),
        pytest.param(
            {"catch_up": CatchUp.all(max=3, window=LATE)}, 3, 3.5, 360.5, 358,
            (gap(1, 355, "late"), gap(356, 357, "collapsed")), 360, id="an outage later, by both limits",
        ),
        pytest.param({"start_within": LATE}, 3, 3.5, 360.5, 356, (gap(1, 355, "late"),), 360, id="too late"),
        pytest.param({}, 2, 5.5, 5.5, 1, (), 2, id="what came due during a long run waits for overlap"),
        pytest.param({"catch_up": CatchUp.all(max=1)}, 2, 5.5, 5.5, 2, (gap(1, 1, "collapsed"),), 2, id="without it"),
        pytest.param({"overlap": Overlap.allow(2)}, 2, 5.5, 5.5, 1, (), 5, id="side by side each waits for its place"),
        pytest.param({}, 2, 5.5, 6.5, 1, (), 2, id="and so does one that has just come"),
        pytest.param({}, 2, 5.5, 7.5, 1, (), 7, id="unless some were missed since"),
        pytest.param({}, 0, 5.5, 5.5, 1, (), 5, id="all that was known is decided"),
    ],
)  # fmt: skip
def test_each_start_chooses_anew(
    policies: Any, until: float, due: float, now: float, slot: float, gaps: Any, new_until: float
) -> None:
    """Among all slots that have been missed by now; what falls out is a range, in one decision."""
    row = row_of(1, until=until, execution_time=at(due))
    decision = decide.at_claim(row, MINUTELY, at(now), None, definition(**policies))
    assert isinstance(decision, decide.Start)
    assert (decision.slot, decision.gaps, decision.until) == (at(slot), gaps, at(new_until))
    assert decision.origin == "catch_up"


@pytest.mark.parametrize(
    ("overlap", "now", "slot", "until", "gaps"),
    [
        pytest.param(Overlap.skip(), 9.6, 10, None, (gap(1, 2, "late"), gap(3, 9, "overlap")), id="skip"),
        pytest.param(Overlap.skip(), 10.1, 10, None, (gap(1, 2, "late"), gap(3, 9, "overlap")), id="skip, one came"),
        pytest.param(Overlap.queue(2), 9.6, 8, at(9), (gap(1, 2, "late"), gap(3, 7, "overlap")), id="queue"),
    ],
)
def test_where_all_that_was_missed_is_too_late_overlap_goes_on(
    overlap: Overlap, now: float, slot: float, until: datetime | None, gaps: Any
) -> None:
    """What came due during a run that was too long is not missed, and begins no other catch-up."""
    row = row_of(1, until=2, execution_time=at(9.5))
    decision = decide.at_claim(row, MINUTELY, at(now), None, definition(start_within=LATE, overlap=overlap))
    assert isinstance(decision, decide.Advance)
    assert (decision.row["slot"], decision.row["catch_up_until"], decision.gaps) == (at(slot), until, gaps)
    assert decision.row["origin"] is None


def test_a_queue_leaves_out_what_is_too_late_at_once() -> None:
    """One range, and the first that may start starts; it stays a queue."""
    row = row_of(1, until=5, origin=None)
    decision = decide.at_claim(row, MINUTELY, at(5.5), None, definition(start_within=2 * MINUTE, catch_up=CatchUp()))
    assert isinstance(decision, decide.Start)
    assert (decision.slot, decision.gaps) == (at(4), (gap(1, 3, "late"),))
    assert (decision.until, decision.origin) == (at(5), None)


def test_a_deploy_may_end_a_catch_up() -> None:
    """The job as it is declared now says what becomes of the slots that are left."""
    decision = decide.at_claim(row_of(1, until=5), MINUTELY, at(5.5), None, definition(catch_up=CatchUp.latest()))
    assert isinstance(decision, decide.Start)
    assert (decision.slot, decision.collapsed, decision.until) == (at(5), 4, None)


@pytest.mark.parametrize(
    ("policies", "outcome", "until", "began", "now", "slot", "due", "new_until", "gaps"),
    [
        pytest.param({}, Succeeded(), 5, 5.2, 5.3, 1, 1, at(5), (), id="the next one"),
        pytest.param({}, Succeeded(), 2, 2.5, 3.2, 1, 1, at(3), (), id="a new one joins"),
        pytest.param({}, Succeeded(), 0, 0.9, 1.2, 1, 1, at(1), (), id="a new one joins the last one"),
        pytest.param({}, Succeeded(), 0, 0.5, 0.8, 1, 1, None, (), id="caught up"),
        pytest.param(
            {"catch_up": CatchUp.all(pace="30s")}, Succeeded(), 5, 5.2, 5.3, 1, 5.7, at(5), (), id="at its pace"
        ),
        pytest.param(
            {"catch_up": CatchUp.all(pace="30s")}, Succeeded(), 0, 0.9, 1.2, 1, 1.4, at(1), (), id="the tail as well"
        ),
        pytest.param(
            {"catch_up": CatchUp.all(pace="30s")}, Succeeded(), 1, 1.8, 1.9, 1, 2.3, at(2), (),
            id="with the one that comes during its pace",
        ),
        pytest.param({}, Succeeded(), 2, 2.5, 6.5, 1, 6.5, at(2), (), id="a long run, and others wait"),
        pytest.param({}, Succeeded(), 0, 0.5, 4.5, 5, 5, None, (gap(1, 4, "overlap"),), id="a long run, the last one"),
        pytest.param(
            {"overlap": Overlap.queue()}, Succeeded(), 0, 0.5, 4.5, 4, 4, at(4), (gap(1, 3, "overlap"),),
            id="a long run, the last one, with a queue",
        ),
        pytest.param(
            {"on_lost": "give_up"}, Died(at(3.5)), 0, 0.5, 6.5, 1, 1, at(6), (), id="slots after the end of a lease"
        ),
        pytest.param(
            {"on_lost": "give_up"}, Died(at(3.5)), 0, 0.5, 3.6, 4, 4, None, (gap(1, 3, "overlap"),),
            id="slots under a lease",
        ),
    ],
)  # fmt: skip
def test_what_each_end_leaves(
    policies: Any, outcome: AttemptOutcome, until: float, began: float, now: float,
    slot: float, due: float, new_until: datetime | None, gaps: Any,
) -> None:  # fmt: skip
    """New slots join the tail as long as the job gains on them; its overlap decides for others, after the tail."""
    ledger = LedgerEntry(outcome="running", token=1_000, final=False, aborted=0, started=at(began))
    done = decide.at_finish(row_of(0, until=until), definition(**policies), MINUTELY, outcome, at(now), ledger)
    assert done.row is not None
    found = [done.row[name] for name in ("slot", "execution_time", "catch_up_until")]
    assert (found, done.gaps) == ([at(slot), at(due), new_until], gaps)


# Whole. -----------------------------------------------------------------------------------------------------------


def lag(overlap: Overlap, catch_up: CatchUp, run: timedelta = 5 * MINUTE) -> timedelta:
    """How late the last start is, an hour after an outage of ten minutes; each run takes so long."""
    subject = job(name="slow", schedule=Every("1m"), overlap=overlap, catch_up=catch_up)(lambda ctx: None)
    late, ends = timedelta(0), dict[Claim, datetime]()
    with ManualWorker([subject], heartbeat_interval="30m", threads=20) as worker:
        worker.plan()
        worker.tick("10m")
        for _ in range(60):
            now = worker.tick("1m")
            worker.beat()
            for claim in [claim for claim, end in ends.items() if end <= now]:
                worker.finish(claim)
                del ends[claim]
            worker.settle()
            while claims := worker.poll():
                for claim in claims:
                    assert worker.begin(claim)
                    assert claim.slot is not None
                    late, ends[claim] = now - claim.slot, now + run
    return late


@pytest.mark.parametrize(
    ("overlap", "catch_up", "least", "most"),
    [
        pytest.param(Overlap.allow(2), CatchUp.all(), 20, 60, id="allow: too few places for all"),
        pytest.param(Overlap.allow(2), CatchUp.all(max=3), 0, 3, id="allow: the newest three"),
        pytest.param(Overlap.allow(2), CatchUp.all(window="8m"), 0, 8, id="allow: none that is older"),
        pytest.param(Overlap.allow(6), CatchUp.all(), 0, 1, id="allow: places enough"),
        pytest.param(Overlap.cancel_previous(), CatchUp.all(), 20, 60, id="cancel_previous: one place for all"),
        pytest.param(Overlap.cancel_previous(), CatchUp.all(max=3), 0, 3, id="cancel_previous: the newest three"),
        pytest.param(Overlap.skip(), CatchUp.all(), 0, 1, id="skip: ends by itself"),
    ],
)
def test_a_slow_job_catches_up_if_it_is_told_where_to_stop(
    overlap: Overlap, catch_up: CatchUp, least: int, most: int
) -> None:
    """Each of all slots runs, however late that is: side by side, only a limit lets slots go."""
    assert least * MINUTE <= lag(overlap, catch_up) <= most * MINUTE
