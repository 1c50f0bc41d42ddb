"""The slot that a person names: an instant copied from a listing, or a day."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from itertools import islice
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from slotwise import InvalidSchedule, parse_schedule

if TYPE_CHECKING:
    from slotwise.cli.shared.values import Written
    from slotwise.inspect import Inspection


def exact_slot(inspect: Inspection, name: str, id: str, given: datetime) -> datetime:
    """The stored slot for an instant that was copied from a listing.

    Listings show milliseconds, but the slot of a trigger has microseconds.
    """
    width = timedelta(milliseconds=1) if given.microsecond else timedelta(seconds=1)
    found = inspect.slots_within(name, given, given + width, id=id)
    return found[0] if len(found) == 1 and given not in found else given


def slot_of_day(
    inspect: Inspection, name: str, id: str, given: Written, zone: ZoneInfo
) -> datetime | None:
    """Return the only slot of a day, if the text is a date."""
    try:
        day = date.fromisoformat(given.text)
    except ValueError:
        return None
    start, end = _bounds(day, zone)
    found = set(inspect.slots_within(name, start, end, id=id))
    if (line := inspect.job(name, id=id)) is not None:
        found |= set(_two_slots(line.schedule, start, end))
    return found.pop() if len(found) == 1 else None


def _bounds(day: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
    after = day + timedelta(days=1)
    return datetime.combine(day, time(), zone), datetime.combine(after, time(), zone)


def _two_slots(schedule: str, start: datetime, end: datetime) -> list[datetime]:
    """Return the first two slots of a schedule in a time; none if it cannot be read."""
    tick = timedelta(microseconds=1)
    try:
        slots = parse_schedule(schedule).slots(start - tick, end - tick)
    except InvalidSchedule:
        return []
    return list(islice(slots, 2))
