"""The slots to come as people look at them: by the clocks of a zone, with the changes of these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Literal
from zoneinfo import ZoneInfo

from slotwise.model.records import FOREVER, from_micros, to_micros
from slotwise.schedules.base import DAY, END, Schedule
from slotwise.schedules.description import clock
from slotwise.schedules.local_time import Walk
from slotwise.schedules.zones import Span, changes_between, span_at

_FAR: Final = timedelta(days=366)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlookEntry:
    """A line of an outlook, with ``local`` time.

    ``kind``: a ``slot``, one that a calendar excludes (``skipped``), a change of the ``clocks``,
    or a local time that is ``missing`` because of one.
    """

    kind: Literal["slot", "skipped", "clocks", "missing"]
    instant: datetime
    local: str
    note: str = ""


def outlook(
    schedule: Schedule, after: datetime, count: int, zone: ZoneInfo
) -> Iterator[OutlookEntry]:
    """Yield the next ``count`` slots after an instant, by the clocks of a zone, and the changes of
    its clocks between them.
    """
    t = after
    for slot in islice(schedule.slots(after, FOREVER), count):
        yield from _clocks(schedule, t, slot, zone)
        runs = schedule.runs(slot)
        notes = [slot_note(schedule, slot, zone)]
        if not runs:
            notes.insert(0, "does not run: not a business day")
        yield OutlookEntry(
            kind="slot" if runs else "skipped",
            instant=slot,
            local=clock(slot, zone),
            note="; ".join(filter(None, notes)),
        )
        t = slot


def slot_note(schedule: Schedule, slot: datetime, zone: ZoneInfo) -> str:
    """Return what a change of the clocks has done to this slot, and which calendar lists no days of
    its year; else an empty string.
    """
    day = slot.astimezone(zone).date()
    notes = [_moved(schedule, slot), _pass(slot, zone)]
    bound = filter(None, schedule.calendars.values())
    if ended := [one.name for one in bound if one.ends_before(day)]:
        notes.append(f"calendar {', '.join(ended)} lists no days of {day.year}")
    return "; ".join(filter(None, notes))


def _clocks(
    schedule: Schedule, a: datetime, b: datetime, zone: ZoneInfo
) -> Iterator[OutlookEntry]:
    """The changes of the clocks after `a` up to and including `b`; of a longer time, those of the
    year before `b`.
    """
    low = to_micros(max(a, b - _FAR)) + 1
    high = min(to_micros(b) + 1, END)
    for change in changes_between(zone, low, high):
        instant = from_micros(change.start)
        yield OutlookEntry(
            kind="clocks",
            instant=instant,
            local=clock(instant, zone),
            note=_told(change),
        )
        for walk in _walks(schedule):
            if walk.gap == "skip" and walk.zone == zone:
                for local in walk.swallowed(change):
                    yield OutlookEntry(
                        kind="missing",
                        instant=instant,
                        local=str(_local(local)),
                        note="does not exist",
                    )


def _told(change: Span) -> str:
    by = change.offset - change.before
    form = "%Y-%m-%d %H:%M" if abs(by) >= DAY else "%H:%M"
    before = _local(change.start + change.before)
    after = _local(change.start + change.offset)
    way = "forward" if by > 0 else "back"
    return f"clocks go {way} from {before:{form}} to {after:{form}}"


def _moved(schedule: Schedule, slot: datetime) -> str:
    """Which local times have this slot because they do not exist; with their date, where it is
    another one.
    """
    at = to_micros(slot)
    found = {
        (local, walk.zone) for walk in _walks(schedule) for local in walk.moved_to(at)
    }
    moved: dict[str, None] = {}
    for local, zone in sorted(found, key=lambda one: one[0]):
        is_same_day = local // DAY == (at + span_at(zone, at).offset) // DAY
        moved[str(_local(local).time() if is_same_day else _local(local))] = None
    return f"for {', '.join(moved)}, which does not exist" if moved else ""


def _pass(slot: datetime, zone: ZoneInfo) -> str:
    """Whether the clocks say this twice, and which time it is."""
    local = slot.astimezone(zone)
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        return ""
    return "the second time" if local.fold else "the first time"


def _walks(schedule: Schedule) -> Iterator[Walk]:
    for leaf in schedule.leaves():
        if isinstance(leaf.line, Walk):
            yield leaf.line


def _local(micros: int) -> datetime:
    """A local time, given as if the clocks showed UTC."""
    return from_micros(micros).replace(tzinfo=None)
