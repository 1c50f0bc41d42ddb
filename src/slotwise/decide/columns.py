"""What a row waits for, as the columns that a transition writes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from slotwise.decide.slot_choice import around, choose_overlapped, due_at, passed_over, slot_after
from slotwise.jobs.definition import Definition
from slotwise.model.records import FOREVER, TICK, Gap, Row
from slotwise.model.vocabulary import Origin
from slotwise.schedules import Schedule


def again(row: Row, due: datetime, *, attempt: int | None = None, lost_count: int | None = None) -> dict[str, Any]:
    """The same slot once more, due at ``due``, or when somebody wished meanwhile."""
    return {
        **carried(row),
        "execution_time": row.wanted_due or due,
        "attempt": row.attempt if attempt is None else attempt,
        "lost_count": row.lost_count if lost_count is None else lost_count,
    }


def carried(row: Row) -> dict[str, Any]:
    """The columns that a transition may change, as they stand."""
    return {
        "execution_time": row.execution_time,
        "slot": row.slot,
        "next_slot": row.next_slot,
        "watermark": row.watermark,
        "schedule": row.schedule,
        "origin": row.origin,
        "collapsed": row.collapsed,
        "catch_up_until": row.catch_up_until,
        "missed_after": row.missed_after,
        "missed_until": row.missed_until,
        "attempt": row.attempt,
        "lost_count": row.lost_count,
        "trying_since": row.trying_since,
        "state": row.state,
        "parked_due": None,
        "consecutive_failures": row.consecutive_failures,
        "last_success": row.last_success,
        "last_failure": row.last_failure,
        "last_error": None,
    }


def is_catching_up(row: Row, definition: Definition) -> bool:
    """Whether the row's slot is one of several that were missed, and that all run."""
    return row.origin == Origin.CATCH_UP and row.catch_up_until is not None and definition.catch_up.mode == "all"


def catching_up(
    row: Row,
    definition: Definition,
    schedule: Schedule,
    base: datetime,
    now: datetime,
    began: datetime | None,
    held_until: datetime,
) -> dict[str, Any] | None:
    """The next missed slot, at its pace; None: those were all, and the slots that came due meanwhile are overlap's.

    Slots that come due between two runs join the tail, and so do those that come due during a run that was shorter
    than the interval. A longer one loses ground: its job would never catch up with what comes due while it runs. What
    does not join stands behind ``catch_up_until``, and came before the row was due. ``began``: None, if nothing has.
    """
    slot = schedule.settled(base).next_after(base)
    columns = waiting(row, schedule, slot, watermark=base)
    if slot is None or row.catch_up_until is None or columns["execution_time"] > now:
        return columns
    apart = [least for least in (definition.catch_up.pace, definition.min_interval) if least is not None]
    due = max([columns["execution_time"], *(began + least for least in apart if began is not None)])
    until, wait = row.catch_up_until, schedule.wait(base)
    newest = schedule.latest_before(max(now, due) - wait + TICK, floor=base) or slot
    if began is None or _gains(held_until - began, slot - base) or _came_after(newest + wait, held_until):
        until = newest
    elif slot > until:
        return None
    else:
        due = max(due, now)
    return {**columns, "execution_time": due, "catch_up_until": until, "origin": Origin.CATCH_UP}


def _gains(run: timedelta, interval: timedelta) -> bool:
    """Whether a job with such runs catches up with its schedule."""
    return run < interval


def _came_after(due: datetime, held_until: datetime) -> bool:
    """Whether the newest slot has come due when the run before it was over."""
    return due > held_until


def overlapped(
    row: Row, definition: Definition, schedule: Schedule, base: datetime, came: datetime
) -> tuple[dict[str, Any], tuple[Gap, ...]]:
    """What a plan row waits for after ``base``, by its overlap; and which slots up to ``came`` will not run."""
    choice = choose_overlapped(definition.overlap, schedule.running, base, came)
    gaps = around(schedule, passed_over(schedule, base + TICK, choice.slot or choice.watermark), choice.gaps)
    base = choice.watermark
    columns = waiting(row, schedule, choice.slot or schedule.settled(base).next_after(base), watermark=base)
    return {**columns, "catch_up_until": choice.until}, gaps


def missed_among(
    row: Row, definition: Definition, schedule: Schedule, base: datetime, newest: datetime, held_until: datetime
) -> tuple[dict[str, Any], tuple[Gap, ...]]:
    """What a plan row waits for after ``base`` where slots up to ``newest`` were missed while nobody held it. Those
    that had come before them are overlap's; if it keeps any, they go first.
    """
    assert row.missed_after is not None
    columns, gaps = overlapped(row, definition, schedule, base, row.missed_after - schedule.wait(base))
    columns["execution_time"] = held_until
    if columns["catch_up_until"] is not None:
        return {**columns, "missed_after": row.missed_after, "missed_until": row.missed_until}, gaps
    return {**columns, "catch_up_until": newest, "origin": Origin.CATCH_UP}, gaps


def waiting(row: Row, schedule: Schedule, slot: datetime | None, watermark: datetime | None) -> dict[str, Any]:
    """A plan row that waits for ``slot`` (None: the schedule has ended, the row stays, parked)."""
    remaining = schedule.settled(watermark) if watermark else schedule
    return {
        **carried(row),
        **ahead(remaining, slot),
        "watermark": watermark or row.watermark,
        "schedule": str(remaining),
        "origin": None,
        "collapsed": 0,
        "catch_up_until": None,
        "missed_after": None,
        "missed_until": None,
        "attempt": 0,
        "lost_count": 0,
        "trying_since": None,
    }


def ahead(schedule: Schedule, slot: datetime | None) -> dict[str, Any]:
    """The columns of a plan row that waits for ``slot``; None: for nothing any more."""
    return {
        "execution_time": FOREVER if slot is None else due_at(schedule, slot),
        "slot": slot,
        "next_slot": None if slot is None else slot_after(schedule, slot),
    }
