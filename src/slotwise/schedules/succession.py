"""One schedule up to an instant, then another: what a redeploy makes of a changed schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from slotwise.schedules.base import Schedule
from slotwise.schedules.business.calendar import Calendar
from slotwise.schedules.disabled import Disabled
from slotwise.schedules.instants import MICROSECOND, in_utc, instant_text


class Part(NamedTuple):
    """A schedule that is in force after `since`, up to and including `until`; None is for ever."""

    schedule: Schedule
    since: datetime | None
    until: datetime | None

    def opening(self, t: datetime) -> datetime:
        """The instant after which this part's slots after `t` are to be looked for."""
        return t if self.since is None else max(t, self.since)

    def closing(self, t: datetime) -> datetime:
        """The last instant, up to `t`, at which this part may have a slot."""
        return t if self.until is None else min(t, self.until)

    @property
    def owns_any(self) -> bool:
        return self.since is None or self.holds(self.schedule.next_after(self.since))

    def holds(self, slot: datetime | None) -> bool:
        return slot is not None and (self.until is None or slot <= self.until)


class Succession(Schedule):
    """Schedules in a row, each in force up to and including the instant at which the next one is activated.

    Made by `succeed`. `from_end` is that of the last part.
    """

    __slots__ = ("_parts", "from_end")
    _parts: tuple[Part, ...]

    def __init__(self, parts: tuple[Part, ...]) -> None:
        text = " >> ".join(
            f"{part.schedule} >> {instant_text(part.until)}" if part.until else str(part.schedule) for part in parts
        )
        self._set(_parts=parts, _text=text, from_end=parts[-1].schedule.from_end)

    def next_after(self, t: datetime) -> datetime | None:
        for part in self._after(t):
            slot = part.schedule.next_after(part.opening(t))
            if part.holds(slot):
                return slot
        return None

    def first_after(self, t: datetime) -> datetime | None:
        for part in self._after(t):
            slot = part.schedule.first_after(part.opening(t))
            if part.holds(slot):
                return slot
        return None

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        for part in reversed(self._parts):
            low = part.since if floor is None else part.opening(floor)
            high = t if part.until is None else min(t, part.until + MICROSECOND)
            slot = part.schedule.latest_before(high, floor=low) if low is None or low < high else None
            if slot is not None:
                return slot
        return None

    def count_between(self, a: datetime, b: datetime) -> int:
        spans = ((part.schedule, part.opening(a), part.closing(b)) for part in self._parts)
        return sum(schedule.count_between(low, high) for schedule, low, high in spans if low < high)

    def slots(self, a: datetime, b: datetime) -> Iterator[datetime]:
        for part in self._parts:
            if part.opening(a) < part.closing(b):
                yield from part.schedule.slots(part.opening(a), part.closing(b))

    def settled(self, t: datetime) -> Schedule:
        return in_a_row(tuple(self._after(t)))

    def wait(self, slot: datetime) -> timedelta:
        return next(part.schedule.wait(slot) for part in self._parts if part.holds(slot))

    @property
    def last(self) -> Schedule:
        return self._parts[-1].schedule

    @property
    def running(self) -> Schedule:
        parts = tuple(part._replace(schedule=part.schedule.running) for part in self._parts)
        return self if parts == self._parts else Succession(parts)

    @property
    def calendars(self) -> Mapping[str, Calendar | None]:
        return self.last.calendars

    def bind(self, name: str, calendars: Mapping[str, Calendar] | None = None) -> Schedule:
        """What came before was bound when it came into force: only the last part follows a calendar's change."""
        *earlier, last = self._parts
        return in_a_row((*earlier, last._replace(schedule=last.schedule.bind(name, calendars))))

    def _after(self, t: datetime) -> Iterator[Part]:
        return (part for part in self._parts if part.until is None or t < part.until)


def succeed(before: Schedule, at: datetime, after: Schedule) -> Schedule:
    """`before` up to and including the instant `at`, then `after`; parts that never apply are dropped."""
    at = in_utc(at)
    earlier = [part for part in parts_of(before) if part.since is None or part.since < at]
    later = [part for part in parts_of(after) if part.until is None or part.until > at]
    earlier[-1] = earlier[-1]._replace(until=at)
    later[0] = later[0]._replace(since=at)
    return in_a_row((*earlier, *later))


def in_turn(schedules: Sequence[Schedule], instants: Sequence[datetime]) -> Schedule:
    """Each schedule up to and including its instant, then the next one: `succeed`, for a whole row of them at once."""
    turns = [Part(schedules[-1], None, None)]  # the last one first
    for schedule, at in zip(reversed(schedules[:-1]), reversed(instants), strict=True):
        while (until := turns[-1].until) is not None and until <= at:
            turns.pop()
        turns[-1] = turns[-1]._replace(since=at)
        turns.append(Part(schedule, None, at))
    return in_a_row(tuple(reversed(turns)))


def owing(schedule: Schedule, slot: datetime) -> Schedule:
    """The same from `slot` on, which the first part owns: without parts in the middle that own no later slot."""
    first, *others = parts_of(schedule.settled(slot - MICROSECOND))
    kept = [first]
    for part in others:
        if part.until is None or part.owns_any:
            kept.append(part)
        elif not kept[-1].schedule.from_end and not part._replace(schedule=kept[-1].schedule).owns_any:
            kept[-1] = kept[-1]._replace(until=part.until)
        else:  # what was in force before must not go on
            kept.append(part._replace(schedule=Disabled()))
    return in_a_row(tuple(kept))


def parts_of(schedule: Schedule) -> tuple[Part, ...]:
    return schedule._parts if isinstance(schedule, Succession) else (Part(schedule, None, None),)


def in_a_row(parts: tuple[Part, ...]) -> Schedule:
    """The parts as one schedule: the only one as it is, as nothing is left of what came before."""
    first, *others = parts
    return Succession((first._replace(since=None), *others)) if others else first.schedule
