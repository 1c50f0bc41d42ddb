"""What follows a slot that succeeded is decided once, and is what every settlement would
decide.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from tests.kit.decisions import at_finish
from tests.kit.records import SUCCEEDED
from tests.kit.store import is_usual, onward
from tests.kit.times import slot_after, spread_out, succeed
from tests.store.bench import a_job, a_task

from slotwise import (
    Calendar,
    CatchUp,
    Cron,
    Daily,
    Every,
    FixedDelay,
    InvalidSchedule,
    Overlap,
    Retry,
    Schedule,
)
from slotwise.inspect import RECURRING
from slotwise.spi import Definition, Kind, Origin, Row

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)

SCHEDULES = [
    Every("1s"),
    Every("90m"),
    Cron("*/5 * * * *", tz="Europe/Vienna"),
    Cron("30 2 * * *", tz="Europe/Vienna"),
    Daily("09:00", tz="Europe/Vienna").excluding(
        Calendar(name="works", days=frozenset({date(2026, 1, 2)}))
    ),
    spread_out(Every("1m"), "plain", timedelta(seconds=10)),
]
POLICIES = {
    "none": {},
    "queue": {"overlap": Overlap.queue(2)},
    "queue all": {"overlap": Overlap.queue_all()},
    "all": {"catch_up": CatchUp.all(max=3)},
    "first": {"catch_up": CatchUp.first()},
    "gives up": {"on_lost": "give_up"},
    "retried": {
        "retry": Retry.exponential(max_attempts=3, initial=timedelta(seconds=1))
    },
}


@pytest.mark.parametrize("policies", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    "seen", [{}, {"origin": Origin.CATCH_UP, "collapsed": 5}], ids=["on time", "late"]
)
def test_it_is_what_a_settlement_decides_at_any_moment_before_the_next_slot(
    schedule: Schedule, policies: dict[str, Any], seen: dict[str, Any]
) -> None:
    """Whatever the job declares, whatever the row has seen before: the same columns, and no
    gap.
    """
    text, definition = str(schedule), a_job("plain", **policies)
    slot = schedule.next_after(NOON)
    assert slot is not None
    assert is_usual(definition)
    row = Row(
        task_name="plain",
        task_instance=RECURRING,
        execution_time=slot,
        version=7,
        picked=True,
        picked_by="host:1:a",
        slot=slot,
        watermark=slot,
        next_slot=slot_after(schedule, slot),
        schedule=text,
        kind=Kind.PLAN,
        attempt=1,
        consecutive_failures=3,
        last_failure=NOON,
        last_success=NOON,
        **seen,
    )
    following = onward(text, slot)
    assert following is not None
    assert following.row is not None
    for now in (slot, slot + TICK, following.row["slot"] - TICK):
        ended = at_finish(
            row, definition, schedule, SUCCEEDED, now, None, poll=timedelta(0)
        )
        assert (ended.label, ended.record, ended.gaps) == (
            following.label,
            following.record,
            (),
        )
        kept = {
            name: getattr(row, name)
            for name in ("watermark", "schedule", "last_failure")
        }
        written = {
            "attempt": 0,
            "consecutive_failures": 0,
            "last_success": now,
            "last_error": None,
        }
        empty = {
            "origin": None,
            "catch_up_until": None,
            "state": None,
            "parked_due": None,
            "trying_since": None,
        }
        empty |= {"unheld_since": None, "control": None, "called_off": None}
        assert ended.row == following.row | kept | written | empty | {
            "collapsed": 0,
            "lost_count": 0,
        }


@pytest.mark.parametrize(
    "schedule",
    [
        FixedDelay("2m"),
        succeed(Every("1m"), NOON - TICK, Every("2m")),
        Every("1m").between(None, NOON + TICK),
    ],
    ids=["fixed delay", "succession", "last slot"],
)
def test_what_depends_on_more_is_not_decided_before(schedule: Schedule) -> None:
    """A fixed delay counts from the end of the run, a changed text becomes a simpler one, a last
    slot ends the job.
    """
    assert onward(str(schedule), NOON) is None


def test_a_text_that_nobody_can_read_is_said_so_each_time() -> None:
    """It may be readable at the next look: nothing is remembered."""
    for _ in range(2):
        with pytest.raises(InvalidSchedule):
            onward("FLUX|7", NOON)


@pytest.mark.parametrize(
    "definition",
    [
        a_job("apart", min_interval="10s"),
        a_task("told", record="all"),
        a_task("kept", result_retention="1d"),
    ],
    ids=lambda found: found.name,
)
def test_some_ends_are_never_usual(definition: Definition) -> None:
    """Two starts at least so far apart; a history or a result to be kept: those look at more than
    the slot.
    """
    assert not is_usual(definition)
