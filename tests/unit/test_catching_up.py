"""A catch-up that goes on, as tables: what each start chooses, and what each end leaves for the
next one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.kit.decisions import at_finish
from tests.kit.decisions import claim as decide
from tests.kit.records import Died, Gap, LedgerEntry, Succeeded

from slotwise import CatchUp, Every, Overlap, job
from slotwise.inspect import RECURRING
from slotwise.spi import Claim, Definition, Row
from slotwise.testing import ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MINUTELY = Every(MINUTE)
POLL = timedelta(seconds=10)


def at(minutes: float) -> datetime:
    return NOON + minutes * MINUTE


def gap(first: float, last: float, reason: str) -> Gap:
    return Gap(
        first=at(first), last=at(last), count=int(last - first) + 1, reason=reason
    )


def definition(**policies: Any) -> Definition:
    given = {"catch_up": CatchUp.all()} | policies
    return Definition(
        name="report",
        handler=lambda ctx: None,
        is_async=False,
        schedule=MINUTELY,
        **given,
    )


def row_of(slot: float, *, until: float | None, **changes: Any) -> Row:
    """A held plan row in the middle of a catch-up."""
    given: dict[str, Any] = {
        "task_name": "report",
        "task_instance": RECURRING,
        "execution_time": at(slot),
        "version": 1_000,
        "picked": True,
        "picked_by": "host:1:a",
        "lease": MINUTE,
        "kind": "plan",
        "slot": at(slot),
        "watermark": at(slot),
        "next_slot": at(slot + 1),
        "schedule": str(MINUTELY),
        "attempt": 1,
        "origin": "catch_up",
        "catch_up_until": None if until is None else at(until),
    }
    return Row(**(given | changes))


LATE = timedelta(minutes=5)


@pytest.mark.parametrize(
    ("policies", "until", "due", "now", "slot", "gaps", "new_until"),
    [
        pytest.param({}, 5, 5.5, 5.5, 1, (), 5, id="the next one"),
        pytest.param({}, 5, 5.5, 9.5, 1, (), 9, id="with what was missed since"),
        pytest.param(
            {"catch_up": CatchUp.all(max=3)},
            3,
            3.5,
            3.5,
            1,
            (),
            3,
            id="as many as may",
        ),
        pytest.param(
            {"catch_up": CatchUp.all(max=3)},
            3,
            3.5,
            4.5,
            2,
            (gap(1, 1, "collapsed"),),
            4,
            id="one more than may",
        ),
        pytest.param(
            {"catch_up": CatchUp.all(max=3)},
            3,
            3.5,
            360.5,
            358,
            (gap(1, 357, "collapsed"),),
            360,
            id="an outage later",
        ),
        pytest.param(
            {"catch_up": CatchUp.all(max=3, window=LATE)},
            3,
            3.5,
            360.5,
            358,
            (gap(1, 355, "late"), gap(356, 357, "collapsed")),
            360,
            id="an outage later, by both limits",
        ),
        pytest.param(
            {"start_within": LATE},
            3,
            3.5,
            360.5,
            356,
            (gap(1, 355, "late"),),
            360,
            id="too late",
        ),
        pytest.param(
            {},
            2,
            5.5,
            5.5,
            1,
            (),
            2,
            id="what came due during a long run waits for overlap",
        ),
        pytest.param(
            {"catch_up": CatchUp.all(max=1)},
            2,
            5.5,
            5.5,
            2,
            (gap(1, 1, "collapsed"),),
            2,
            id="without it",
        ),
        pytest.param(
            {"overlap": Overlap.allow(2)},
            2,
            5.5,
            5.5,
            1,
            (),
            5,
            id="side by side each waits for its place",
        ),
        pytest.param(
            {},
            2,
            5.9,
            6.05,
            1,
            (),
            2,
            id="and so does one that comes within a poll interval",
        ),
        pytest.param({}, 2, 5.5, 7.5, 1, (), 7, id="unless some were missed since"),
        pytest.param({}, 0, 5.5, 5.5, 1, (), 5, id="all that was known is decided"),
    ],
)
def test_each_start_chooses_anew(
    policies: Any,
    until: float,
    due: float,
    now: float,
    slot: float,
    gaps: Any,
    new_until: float,
) -> None:
    """Among all slots that have been missed by now; what falls out is a range, in one decision."""
    row = row_of(1, until=until, execution_time=at(due), unheld_since=at(due) + POLL)
    decision = decide.at_claim(
        row, MINUTELY, at(now), None, definition(**policies), is_full=False, poll=POLL
    )
    assert isinstance(decision, decide.Start)
    assert (decision.row.slot, decision.gaps, decision.row.catch_up_until) == (
        at(slot),
        gaps,
        at(new_until),
    )
    assert decision.row.origin == "catch_up"


def test_where_nothing_of_a_tail_may_start_any_more() -> None:
    """It is over, and the next claim decides anew."""
    row = row_of(1, until=2, execution_time=at(9.5), unheld_since=at(9.5) + POLL)
    decision = decide.at_claim(
        row,
        MINUTELY,
        at(9.6),
        None,
        definition(start_within=LATE),
        is_full=False,
        poll=POLL,
    )
    assert isinstance(decision, decide.Advance)
    found = [
        decision.row[name]
        for name in ("slot", "origin", "catch_up_until", "unheld_since")
    ]
    assert (found, decision.gaps) == ([at(3), None, None, None], (gap(1, 2, "late"),))


def test_a_queue_leaves_out_what_is_too_late_at_once() -> None:
    """One range, and the first that may start starts; it stays a queue."""
    row = row_of(1, until=None, origin=None, unheld_since=at(5.2))
    policies = definition(start_within=2 * MINUTE, catch_up=CatchUp())
    decision = decide.at_claim(
        row, MINUTELY, at(5.5), None, policies, is_full=False, poll=POLL
    )
    assert isinstance(decision, decide.Start)
    assert (decision.row.slot, decision.gaps) == (at(4), (gap(1, 3, "late"),))
    assert (decision.row.catch_up_until, decision.row.origin) == (None, None)


def test_a_deploy_may_end_a_catch_up() -> None:
    """The job as it is declared now says what becomes of the slots that are left."""
    row = row_of(1, until=5, unheld_since=at(5.6))
    policies = definition(catch_up=CatchUp.latest())
    decision = decide.at_claim(
        row, MINUTELY, at(5.5), None, policies, is_full=False, poll=POLL
    )
    assert isinstance(decision, decide.Start)
    assert (
        decision.row.slot,
        decision.row.collapsed,
        decision.row.catch_up_until,
    ) == (
        at(5),
        4,
        None,
    )


PACED = {"catch_up": CatchUp.all(pace="30s")}
TOO_LATE = gap(1, 2, "late")


@pytest.mark.parametrize(
    ("policies", "row", "began", "ended", "now", "slot", "due", "until", "gaps"),
    [
        pytest.param(
            {}, {"until": 5}, 5.2, 5.3, 5.3, 1, 5.3, at(5), (), id="the next one"
        ),
        pytest.param(
            {},
            {"until": 2},
            2.5,
            3.2,
            3.2,
            1,
            3.2,
            at(2),
            (),
            id="a newer one waits for the tail's end",
        ),
        pytest.param(
            {},
            {"until": 0},
            0.9,
            1.2,
            1.2,
            1,
            1.2,
            at(1),
            (),
            id="at its end that is a new tail",
        ),
        pytest.param({}, {"until": 0}, 0.5, 0.8, 0.8, 1, 1, None, (), id="caught up"),
        pytest.param(
            PACED, {"until": 5}, 5.2, 5.3, 5.3, 1, 5.7, at(5), (), id="at its pace"
        ),
        pytest.param(
            PACED,
            {"until": 0},
            0.9,
            1.2,
            1.2,
            1,
            1.4,
            at(1),
            (),
            id="a new tail as well",
        ),
        pytest.param(
            PACED,
            {"until": 0},
            1.8,
            1.9,
            1.9,
            1,
            2.3,
            at(2),
            (),
            id="with the one that comes before it",
        ),
        pytest.param(
            {},
            {"until": 2},
            2.5,
            6.5,
            6.5,
            1,
            6.5,
            at(2),
            (),
            id="a long run, and others wait",
        ),
        pytest.param(
            {},
            {"until": 0},
            0.5,
            4.5,
            4.5,
            5,
            5,
            None,
            (gap(1, 4, "overlap"),),
            id="a long run, the last one",
        ),
        pytest.param(
            {"overlap": Overlap.queue()},
            {"until": 0},
            0.5,
            4.5,
            4.5,
            4,
            4.5,
            None,
            (gap(1, 3, "overlap"),),
            id="a long run, the last one, with a queue",
        ),
        pytest.param(
            {},
            {"until": 0},
            0.5,
            3.5,
            6.5,
            1,
            6.5,
            at(6),
            (),
            id="a long run, the last one, settled late",
        ),
        pytest.param(
            {},
            {"until": 2},
            2.5,
            2.7,
            6.5,
            1,
            6.5,
            at(6),
            (),
            id="settled late: what came since is of it",
        ),
        pytest.param(
            {},
            {"until": 1, "attempt": 2, "unheld_since": at(1.2)},
            4.5,
            5.2,
            5.2,
            1,
            5.2,
            at(5),
            (),
            id="after an absence: what came since is of it",
        ),
        pytest.param(
            {"start_within": LATE},
            {"until": 2},
            0.5,
            9.5,
            9.5,
            10,
            10,
            None,
            (TOO_LATE, gap(3, 9, "overlap")),
            id="a run so long that the others are too late",
        ),
        pytest.param(
            {"start_within": LATE},
            {"until": 2},
            9.3,
            9.5,
            9.5,
            3,
            9.5,
            at(9),
            (TOO_LATE,),
            id="the others are too late, and the job gains",
        ),
    ],
)
def test_what_each_end_leaves(
    policies: Any,
    row: dict[str, Any],
    began: float,
    ended: float,
    now: float,
    slot: float,
    due: float,
    until: datetime | None,
    gaps: Any,
) -> None:
    """The rest of the tail; after it, what came due meanwhile is a new one if the job gains on its
    schedule.
    """
    ledger = LedgerEntry(
        outcome="running", token=1_000, final=False, aborted=0, started=at(began)
    )
    done = at_finish(
        row_of(0, **row),
        definition(**policies),
        MINUTELY,
        Succeeded(),
        at(now),
        ledger,
        poll=POLL,
        ended_ago=at(now) - at(ended),
    )
    assert done.row is not None
    found = [done.row[name] for name in ("slot", "execution_time", "catch_up_until")]
    assert (found, done.gaps) == ([at(slot), at(due), until], gaps)
    is_held = until is not None or (slot <= now and due == now)
    assert done.row["unheld_since"] == (at(due) + POLL if is_held else None)


def test_an_absence_after_the_last_heartbeat_extends_the_tail() -> None:
    """Also after its last slot: the tail is not through before that is settled."""
    ledger = LedgerEntry(
        outcome="running", token=1_000, final=False, aborted=0, started=at(0.5)
    )
    row = row_of(0, until=0, last_heartbeat=at(3.5))
    done = at_finish(
        row,
        definition(on_lost="give_up"),
        MINUTELY,
        Died(),
        at(6.5),
        ledger,
        poll=POLL,
    )
    assert done.row is not None
    assert (done.row["slot"], done.row["catch_up_until"], done.gaps) == (
        at(1),
        at(6),
        (),
    )


# Whole.
# -----------------------------------------------------------------------------------------------------------


def lag(overlap: Overlap, catch_up: CatchUp, run: timedelta = 5 * MINUTE) -> timedelta:
    """How late the last start is, an hour after an outage of ten minutes; each run takes so
    long.
    """
    subject = job(
        name="slow", schedule=Every("1m"), overlap=overlap, catch_up=catch_up
    )(lambda ctx: None)
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


FURTHER = pytest.mark.extended


@pytest.mark.extended
@pytest.mark.parametrize(
    ("overlap", "catch_up", "least", "most"),
    [
        pytest.param(
            Overlap.allow(2),
            CatchUp.all(),
            20,
            60,
            id="allow: too few places for all",
            marks=FURTHER,
        ),
        pytest.param(
            Overlap.allow(2), CatchUp.all(max=3), 0, 3, id="allow: the newest three"
        ),
        pytest.param(
            Overlap.allow(2),
            CatchUp.all(window="8m"),
            0,
            8,
            id="allow: none that is older",
            marks=FURTHER,
        ),
        pytest.param(
            Overlap.allow(6),
            CatchUp.all(),
            0,
            1,
            id="allow: places enough",
            marks=FURTHER,
        ),
        pytest.param(
            Overlap.cancel_previous(),
            CatchUp.all(),
            20,
            60,
            id="cancel_previous: one place for all",
            marks=FURTHER,
        ),
        pytest.param(
            Overlap.cancel_previous(),
            CatchUp.all(max=3),
            0,
            3,
            id="cancel_previous: the newest three",
        ),
        pytest.param(Overlap.skip(), CatchUp.all(), 0, 1, id="skip: ends by itself"),
    ],
)
def test_a_slow_job_catches_up_if_it_is_told_where_to_stop(
    overlap: Overlap, catch_up: CatchUp, least: int, most: int
) -> None:
    """Each of all slots runs, however late that is: side by side, only a limit lets slots go."""
    assert least * MINUTE <= lag(overlap, catch_up) <= most * MINUTE
