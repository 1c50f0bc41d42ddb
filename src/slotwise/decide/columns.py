"""What a row waits for, as the columns that a transition writes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from slotwise.decide.slot_choice import due_at, slot_after
from slotwise.model.records import FOREVER, Row
from slotwise.model.vocabulary import PLANNED, State
from slotwise.schedules import Schedule


def again(row: Row, due: datetime, *, attempt: int | None = None) -> dict[str, Any]:
    """The same slot once more, due at ``due``, or when somebody wished meanwhile."""
    return {
        **carried(row),
        "execution_time": row.wanted_due or due,
        "attempt": row.attempt if attempt is None else attempt,
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
        "unheld_since": row.unheld_since,
        "attempt": row.attempt,
        "lost_count": row.lost_count,
        "trying_since": row.trying_since,
        "state": row.state,
        "control": row.control if _is_ordered(row) else None,
        "parked_due": None,
        "consecutive_failures": row.consecutive_failures,
        "last_success": row.last_success,
        "last_failure": row.last_failure,
        "last_error": None,
    }


def _is_ordered(row: Row) -> bool:
    """Whether the row keeps the number of an operation beyond this ending: of its pause, or of what made the row."""
    return row.state == State.PAUSED if row.is_plan else row.origin not in PLANNED


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
        "unheld_since": None,
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
