"""Slots that came while nobody held the job though it was due: they are catch-up's, whatever the row waited for.

A row that waits for the next attempt of its slot, or for a slot of its queue, may be due for long before somebody
takes it: all workers are down. What comes due until then was not overlapped by anything. So of the slots after the one
in hand those up to ``after`` came while it was held, or waited for its time; those up to ``until`` were missed; and the
later ones came while it was held again. Where a slot's life has more than one absence, all between them is one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from slotwise.model.records import TICK, LedgerEntry, Row
from slotwise.model.vocabulary import Origin
from slotwise.schedules import Schedule


def with_absence(row: Row, schedule: Schedule | None, ledger: LedgerEntry | None) -> Row:
    """The held row, with what was missed until its claim, as far as any slot was."""
    after, began = _alone_since(row, schedule), ledger.started if ledger else None
    is_closed = row.missed_until is not None
    if after is not None and began is not None and schedule is not None and _any(row, schedule, after, began):
        return replace(row, missed_after=row.missed_after if is_closed else after, missed_until=began)
    return row if is_closed or row.missed_after is None else replace(row, missed_after=None)


def newest_missed(row: Row, schedule: Schedule, base: datetime) -> datetime | None:
    """The newest slot after ``base`` that was missed; None: there is none."""
    if row.missed_after is None or row.missed_until is None:
        return None
    wait = schedule.wait(base)
    floor = max(base, row.missed_after - wait)
    return schedule.running.latest_before(row.missed_until - wait + TICK, floor=floor)


def absent_from(row: Row, lease_end: datetime) -> dict[str, Any]:
    """The columns of a lost row that waits for its next attempt: nobody has held it since."""
    return {"missed_after": row.missed_after or lease_end, "missed_until": None}


def _alone_since(row: Row, schedule: Schedule | None) -> datetime | None:
    """Since when the row was due, or free, before this claim; None: its claim has decided about all that had come."""
    if row.missed_after is not None and row.missed_until is None:
        return row.missed_after
    if row.attempt > 1:
        return row.execution_time
    if row.catch_up_until is None or row.origin == Origin.CATCH_UP or schedule is None:
        return None
    # In a queue: whoever put it in order decided about all that had come. See missed_among.
    return row.execution_time if row.missed_until else row.catch_up_until + schedule.wait(row.catch_up_until)


def _any(row: Row, schedule: Schedule, after: datetime, until: datetime) -> bool:
    if row.slot is None or schedule.from_end:
        return False
    probe = replace(row, missed_after=after, missed_until=until)
    return newest_missed(probe, schedule, max(row.slot, row.watermark or row.slot)) is not None
