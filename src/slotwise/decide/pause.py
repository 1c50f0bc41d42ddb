"""What a row becomes by a pause and by operations that skip slots."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from slotwise.decide.claim import Advance, past_slot
from slotwise.decide.row_columns import ahead
from slotwise.decide.slot_choice import span, undecided, without_decided
from slotwise.model.records import FOREVER, TICK, Row, Transition
from slotwise.model.vocabulary import Reason, RowState
from slotwise.schedules import Disabled, Once, Schedule
from slotwise.schedules.base import due_at, slot_after
from slotwise.schedules.text import readable


def parked(row: Row, transition: Transition) -> Transition:
    """Pause a row that was paused while it was held."""
    columns = transition.row
    if (
        row.state != RowState.PAUSED
        or columns is None
        or columns["state"] != RowState.PAUSED
    ):
        return transition
    return replace(transition, row={**columns, **asleep(columns["execution_time"])})


def asleep(due: datetime) -> dict[str, object]:
    """Return the columns of a paused row. Programs that ignore ``state`` do not find it due."""
    return {"state": RowState.PAUSED, "execution_time": FOREVER, "parked_due": due}


def as_decided(row: Row, newest: datetime | None) -> Row:
    """Return a plan row without the slots up to ``newest``, which the ledger has decided beyond a
    restored row.
    """
    schedule = readable(row.schedule)
    if newest is None or row.slot is None:
        return row
    is_own = (
        newest == row.slot and not row.attempt
    )  # its watermark has been there since a claim that was handed back
    if not is_own and newest <= (row.watermark or row.slot - TICK):
        return row
    if (
        schedule is None or schedule.from_end or row.picked or row.attempt
    ):  # a slot that has begun stays
        return replace(row, watermark=newest)
    return replace(row, slot=schedule.next_after(newest), watermark=newest, attempt=0)


def passing(
    row: Row, schedule: Schedule, until: datetime, reason: Reason
) -> Advance | None:
    """Skip the slots of a plan row to ``until`` that have not begun; None: there are none."""
    first = _first_unbegun(row, schedule)
    return (
        None
        if first is None or first > until
        else _passing(row, schedule, first, until, reason, until)
    )


def skipping(row: Row, schedule: Schedule, now: datetime) -> Advance | None:
    """Skip the next slot of a plan row, which may be held, that has not begun; None: there is
    none.
    """
    slot = _first_unbegun(row, schedule)
    return (
        None
        if slot is None
        else _passing(row, schedule, slot, slot, Reason.OPERATOR, now)
    )


def _first_unbegun(row: Row, schedule: Schedule) -> datetime | None:
    """Return the row's slot, or if that has begun, the next slot that is not decided."""
    if row.slot is None or not row.attempt:
        return row.slot
    return (
        None
        if schedule.from_end
        else schedule.next_after(max(row.slot, row.watermark or row.slot))
    )


def _passing(
    row: Row,
    schedule: Schedule,
    first: datetime,
    until: datetime,
    reason: Reason,
    now: datetime,
) -> Advance:
    schedule = (
        schedule if row.attempt else undecided(schedule, row.slot, row.watermark)
    )
    last = (
        first
        if schedule.from_end
        else schedule.latest_before(until + TICK, floor=first - TICK) or first
    )
    gap = span(schedule, first, last, reason)
    if row.attempt:  # its slot has begun and stays
        return Advance(
            gaps=(gap,),
            row={"watermark": gap.last, "next_slot": slot_after(schedule, gap.last)},
        )
    assert row.slot is not None
    columns = past_slot(replace(row, slot=gap.last), schedule)
    if schedule.from_end:
        columns |= ahead(
            schedule, schedule.settled(gap.last).next_after(max(now, gap.last))
        )
    elif columns["slot"] is not None:
        columns |= _same_line(row, schedule, columns["slot"])
    if row.due > due_at(
        schedule, row.slot
    ):  # min_interval has moved it, and applies to the next slot as well
        columns["execution_time"] = max(columns["execution_time"], row.due)
    del columns["state"], columns["control"]  # a pause goes on
    return Advance(
        gaps=without_decided(schedule, (gap,), row.slot, row.watermark or row.slot),
        row=columns,
    )


def _same_line(row: Row, schedule: Schedule, slot: datetime) -> dict[str, object]:
    """Return the columns that stay if ``slot`` also belongs to the row's tail or queue.

    A slot behind the end of a tail is a new one, however soon it comes due.
    """
    if row.catch_up_until is not None:
        if slot > row.catch_up_until:
            return {}
        return {
            "catch_up_until": row.catch_up_until,
            "origin": row.origin,
            "unheld_since": row.unheld_since,
        }
    is_queued = (
        row.unheld_since is not None and slot + schedule.wait(slot) <= row.unheld_since
    )
    return {"unheld_since": row.unheld_since} if is_queued else {}


def owed_by(row: Row) -> Schedule:
    """Return the row's schedule; if this release cannot read it, one with the row's slot only."""
    return readable(row.schedule) or (
        Disabled() if row.slot is None else Once(row.slot)
    )
