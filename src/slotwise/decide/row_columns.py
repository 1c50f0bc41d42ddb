"""The columns of a row that waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from slotwise.model.records import FOREVER, Row
from slotwise.model.vocabulary import PLANNED, Outcome, RowState
from slotwise.schedules import Schedule
from slotwise.schedules.base import due_at, slot_after

#: Columns that a row keeps unless its transition changes them.
_CARRIED = (
    "execution_time",
    "slot",
    "next_slot",
    "watermark",
    "schedule",
    "origin",
    "collapsed",
    "catch_up_until",
    "unheld_since",
    "attempt",
    "lost_count",
    "trying_since",
    "state",
    "consecutive_failures",
    "last_success",
    "last_failure",
)
#: Columns that a plan row resets when it goes on to its next slot.
_FORGOTTEN: dict[str, object] = {
    "origin": None,
    "collapsed": 0,
    "catch_up_until": None,
    "unheld_since": None,
    "attempt": 0,
    "lost_count": 0,
    "trying_since": None,
}


def carried(row: Row) -> dict[str, Any]:
    """Return the columns of a row that keeps its slot."""
    kept = {name: getattr(row, name) for name in _CARRIED} | dict.fromkeys(
        ("parked_due", "last_error", "called_off")
    )
    # The number of the operation stays if it has paused the row, or created it.
    is_requested = (
        row.state == RowState.PAUSED if row.is_plan else row.origin not in PLANNED
    )
    return kept | {"control": row.control if is_requested else None}


def again(row: Row, due: datetime) -> dict[str, object]:
    """Return the columns of a row that waits for the same slot again, due at ``due`` or at an
    operator's wish.
    """
    return carried(row) | {"execution_time": row.wanted_due or due}


def waiting(
    row: Row,
    schedule: Schedule,
    watermark: datetime | None,
    slot: datetime | None = None,
) -> dict[str, Any]:
    """Return the columns of a plan row that waits for ``slot``, or the one after ``watermark``, or
    for none.
    """
    remaining = schedule.settled(watermark) if watermark else schedule
    following = slot or (remaining.next_after(watermark) if watermark else None)
    decided = {"watermark": watermark or row.watermark, "schedule": str(remaining)}
    return carried(row) | _FORGOTTEN | ahead(remaining, following) | decided


def ahead(schedule: Schedule, slot: datetime | None) -> dict[str, Any]:
    """Return when a plan row with this slot, or with none, is due."""
    if slot is None:
        return {"execution_time": FOREVER, "slot": None, "next_slot": None}
    return {
        "execution_time": due_at(schedule, slot),
        "slot": slot,
        "next_slot": slot_after(schedule, slot),
    }


def counters(row: Row, outcome: Outcome, now: datetime) -> dict[str, object]:
    """Return what the row counts of an ending of its slot."""
    match outcome:
        case Outcome.SUCCEEDED:
            return {"consecutive_failures": 0, "last_success": now}
        case Outcome.CANCELLED | Outcome.SKIPPED:
            return {}
        case _:
            return {
                "consecutive_failures": row.consecutive_failures + 1,
                "last_failure": now,
            }
