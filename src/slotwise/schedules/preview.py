"""The slots to come as people look at them: by the clocks of a zone, with what changes of the clocks do to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Literal
from zoneinfo import ZoneInfo

from slotwise.schedules.base import EPOCH, Schedule, floor_second
from slotwise.schedules.combinators import AnyOf, Between, Spread, Succession
from slotwise.schedules.local_time import Walk
from slotwise.schedules.timeline import DAY, END, LineSchedule, changes_between, span_at

Kind = Literal["slot", "skipped", "clocks", "missing"]

_FAR: Final = timedelta(days=366)
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A slot; one that does not run (skipped); a change of the clocks; a local time that has no slot (missing).

    `local` is what the clocks say at `instant`, which is in UTC.
    """

    kind: Kind
    instant: datetime
    local: str
    note: str = ""


def outlook(schedule: Schedule, after: datetime, count: int, zone: ZoneInfo) -> Iterator[Entry]:
    """The next `count` slots after an instant, by the clocks of a zone, and the changes of its clocks between them."""
    t = after
    for slot in islice(schedule.slots(after, _NEVER), count):
        yield from _clocks(schedule, t, slot, zone)
        runs = schedule.runs(slot)
        notes = ("" if runs else "does not run: not a business day", marked(schedule, slot, zone))
        note = "; ".join(filter(None, notes))
        yield Entry(kind="slot" if runs else "skipped", instant=slot, local=clock(slot, zone), note=note)
        t = slot


def marked(schedule: Schedule, slot: datetime, zone: ZoneInfo) -> str:
    """What a change of the clocks has done to this slot; an empty text: nothing."""
    return "; ".join(filter(None, (_moved(schedule, slot), _pass(slot, zone))))


def clock(instant: datetime, zone: ZoneInfo) -> str:
    """What the clocks of a zone say: `2026-03-29 03:00:00 CEST`."""
    local = instant.astimezone(zone)
    return f"{local.replace(tzinfo=None).isoformat(' ')} {local.tzname()}"


def _clocks(schedule: Schedule, a: datetime, b: datetime, zone: ZoneInfo) -> Iterator[Entry]:
    """The changes of the clocks after `a` up to and including `b`; of a longer time, those of the year before `b`."""
    low, high = floor_second(max(a, b - _FAR)) + 1, min(floor_second(b) + 1, END)
    for span in changes_between(zone, low, high):
        instant = EPOCH + timedelta(seconds=span.start)
        form = "%Y-%m-%d %H:%M" if abs(span.offset - span.before) >= DAY else "%H:%M"
        before, after = (f"{_local(span.start + offset):{form}}" for offset in (span.before, span.offset))
        told = f"clocks go {'forward' if span.offset > span.before else 'back'} from {before} to {after}"
        yield Entry(kind="clocks", instant=instant, local=clock(instant, zone), note=told)
        for walk in _walks(schedule):
            if walk.gap == "skip" and walk.zone == zone:
                for local in walk.swallowed(span.start):
                    yield Entry(kind="missing", instant=instant, local=f"{_local(local)}", note="does not exist")


def _moved(schedule: Schedule, slot: datetime) -> str:
    """Which local times have this slot because they do not exist; with their date, where it is another one."""
    at = floor_second(slot)
    found = {(local, walk.zone) for walk in _walks(schedule) for local in walk.moved_to(at)}
    moved = dict.fromkeys(
        str(_local(local) if local // DAY != (at + span_at(zone, at).offset) // DAY else _local(local).time())
        for local, zone in sorted(found, key=lambda one: one[0])
    )
    return f"for {', '.join(moved)}, which does not exist" if moved else ""


def _pass(slot: datetime, zone: ZoneInfo) -> str:
    """Whether the clocks say this twice, and which time it is."""
    local = slot.astimezone(zone)
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        return ""
    return "the second time" if local.fold else "the first time"


def _walks(schedule: Schedule) -> Iterator[Walk]:
    """The lines in local time that a schedule consists of."""
    match schedule:
        case AnyOf():
            yield from (walk for part in schedule.schedules for walk in _walks(part))
        case Between() | Spread():
            yield from _walks(schedule.schedule)
        case Succession():
            yield from (*_walks(schedule.before), *_walks(schedule.after))
        case LineSchedule() if isinstance(schedule.line, Walk):
            yield schedule.line


def _local(seconds: int) -> datetime:
    """A local time, given in seconds as if the clocks showed UTC."""
    return (EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None)
