"""What a pause and other operations make of a row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from slotwise.decide.claim import Advance, ahead, cut, past, span, undecided
from slotwise.model.records import FOREVER, TICK, Gap, Row, Transition
from slotwise.model.vocabulary import Reason, State
from slotwise.schedules import Disabled, Once, Schedule
from slotwise.schedules.base import due_at, slot_after
from slotwise.schedules.text import readable


def parked(row: Row, transition: Transition) -> Transition:
    """A row that was paused while it was held sleeps from now on, whatever it waits for."""
    columns = transition.row
    if row.state != State.PAUSED or columns is None or columns["state"] != State.PAUSED:
        return transition
    return replace(transition, row={**columns, **asleep(columns["execution_time"])})


def asleep(due: datetime) -> dict[str, object]:
    """Where a paused row stands: far away for whoever does not know of states, its due time kept."""
    return {"state": State.PAUSED, "execution_time": FOREVER, "parked_due": due}


def passing(row: Row, schedule: Schedule, until: datetime, reason: Reason) -> Advance | None:
    """The slots of a plan row up to ``until`` that have not begun, to be skipped; None: there are none.

    A slot that was begun before goes on with its retry, and only those after it are passed.
    """
    first = _first_unbegun(row, schedule)
    if first is None or first > until:
        return None
    schedule = schedule if row.attempt else undecided(schedule, row.slot, row.watermark)
    last = first if schedule.from_end else schedule.latest_before(until + TICK, floor=first - TICK) or first
    return _passing(row, schedule, span(schedule, first, last, reason), until)


def skipping(row: Row, schedule: Schedule, now: datetime) -> Advance | None:
    """The next slot that has not begun, to be skipped; None: there is none. The row may be held."""
    slot = _first_unbegun(row, schedule)
    if slot is None:
        return None
    schedule = schedule if row.attempt else undecided(schedule, row.slot, row.watermark)
    return _passing(row, schedule, Gap(first=slot, last=slot, count=1, reason=Reason.OPERATOR), now)


def _first_unbegun(row: Row, schedule: Schedule) -> datetime | None:
    """The row's slot, or, where that was begun, the slot after it and after all that are decided."""
    if row.slot is None or not row.attempt:
        return row.slot
    return None if schedule.from_end else schedule.next_after(max(row.slot, row.watermark or row.slot))


def _passing(row: Row, schedule: Schedule, gap: Gap, now: datetime) -> Advance:
    if row.attempt:  # held, or waiting for its retry: its slot stays, the one that comes after it is moved
        return Advance(gaps=(gap,), row={"watermark": gap.last, "next_slot": slot_after(schedule, gap.last)})
    assert row.slot is not None
    columns = past(replace(row, slot=gap.last), schedule)
    if schedule.from_end:
        columns |= ahead(schedule, schedule.settled(gap.last).next_after(max(now, gap.last)))
    elif columns["slot"] is not None:
        columns |= _same_line(row, schedule, columns["slot"])
    columns["execution_time"] = max(columns["execution_time"], _put_off_until(row, schedule))
    del columns["state"], columns["control"]  # a pause goes on
    return Advance(gaps=cut(schedule, (gap,), row.slot, row.watermark or row.slot), row=columns)


def _same_line(row: Row, schedule: Schedule, slot: datetime) -> dict[str, object]:
    """What stays if ``slot`` belongs to the row's tail, or to its queue, as the one before it."""
    if row.catch_up_until is not None and slot <= row.catch_up_until:
        return {"catch_up_until": row.catch_up_until, "origin": row.origin, "unheld_since": row.unheld_since}
    is_queued = row.unheld_since is not None and slot + schedule.wait(slot) <= row.unheld_since
    return {"unheld_since": row.unheld_since} if is_queued else {}


def _put_off_until(row: Row, schedule: Schedule) -> datetime:
    """When the row was to start, if that is later than its slot is due: min_interval holds for the next one as well."""
    due = row.due
    return due if row.slot is not None and due > due_at(schedule, row.slot) else datetime.min.replace(tzinfo=UTC)


def owed_by(row: Row) -> Schedule:
    """The schedule of a row's text; of one that nobody can read no more is known than the slot that it waits for."""
    return readable(row.schedule) or (Disabled() if row.slot is None else Once(row.slot))
