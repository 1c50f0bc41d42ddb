"""What a row waits for, as the columns that a transition writes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from slotwise.definition import Definition
from slotwise.execution import FOREVER, LedgerEntry, Row
from slotwise.missed import due_at, slot_after
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


def catching_up(
    row: Row, definition: Definition, schedule: Schedule, base: datetime, now: datetime, ledger: LedgerEntry | None
) -> dict[str, Any]:
    """The next missed slot, in its pace; slots that came due during the catch-up join the tail, without one."""
    slot = schedule.settled(base).next_after(base)
    columns = waiting(row, schedule, slot, watermark=base)
    if slot is None or columns["execution_time"] > now or row.catch_up_until is None:
        return columns
    due, pace = columns["execution_time"], definition.catch_up.pace
    if pace is not None and slot <= row.catch_up_until:
        due = max(slot, (ledger.started if ledger and ledger.started else now) + pace)
    return {**columns, "execution_time": due, "catch_up_until": row.catch_up_until, "origin": "catch_up"}


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
