"""Schedules made of other schedules: unions, bounds, offsets, business days, and one schedule
after another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule, located
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.records import TICK, to_micros
from slotwise.schedules.base import (
    BEGINNING,
    DAY,
    END,
    Line,
    Schedule,
    Unbound,
    Window,
    in_utc,
    instant_text,
)
from slotwise.schedules.calendars import (
    Arrangement,
    Calendar,
    Roll,
    arranged,
    calendar_name,
)
from slotwise.schedules.local_time import LocalSchedule, Walk, one_of
from slotwise.schedules.words import listed

MOST_PARTS = 32
_PORTION: Final = 4 * DAY  # few enough one-second slots to hold in memory


@dataclass(frozen=True, slots=True)
class Chain:
    """The slots of one line before an instant, and those of another one from it on."""

    before: Line
    at: int
    after: Line

    def first(self, low: int, high: int) -> int | None:
        found = self.before.first(low, min(high, self.at))
        return self.after.first(max(low, self.at), high) if found is None else found

    def last(self, low: int, high: int) -> int | None:
        found = self.after.last(max(low, self.at), high)
        return self.before.last(low, min(high, self.at)) if found is None else found

    def count(self, low: int, high: int) -> int:
        return self.before.count(low, min(high, self.at)) + self.after.count(
            max(low, self.at), high
        )

    def within(self, low: int, high: int) -> Iterable[int]:
        return chain(
            self.before.within(low, min(high, self.at)),
            self.after.within(max(low, self.at), high),
        )


@dataclass(frozen=True, slots=True)
class Union:
    """The slots of all these lines; those that coincide are one."""

    lines: tuple[Line, ...]

    def first(self, low: int, high: int) -> int | None:
        found: int | None = None
        for line in self.lines:
            earlier = line.first(low, high if found is None else found)
            found = found if earlier is None else earlier
        return found

    def last(self, low: int, high: int) -> int | None:
        found: int | None = None
        for line in self.lines:
            later = line.last(low if found is None else found + 1, high)
            found = found if later is None else later
        return found

    def count(self, low: int, high: int) -> int:
        """Listed in portions, because slots that coincide count once."""
        return sum(
            len(self.within(start, min(start + _PORTION, high)))
            for start in range(low, high, _PORTION)
        )

    def within(self, low: int, high: int) -> set[int]:
        return set().union(*(line.within(low, high) for line in self.lines))


class Combined(Schedule, ABC):
    """A schedule made of others, for each of which holds what is asked of it."""

    __slots__ = ("running", "schedules")
    schedules: tuple[Schedule, ...]
    running: Schedule

    @abstractmethod
    def _on(self, *schedules: Schedule) -> Schedule:
        """Return the same made of other schedules."""

    def _combine(self, line: Line, text: str, *schedules: Schedule) -> None:
        running = tuple(part.running for part in schedules)
        self._set(line=line, _text=text, schedules=schedules)
        self._set(running=self if running == schedules else self._on(*running))

    def leaves(self) -> Iterator[Schedule]:
        return chain.from_iterable(part.leaves() for part in self.schedules)

    @property
    def calendars(self) -> Mapping[str, Calendar | None]:
        return {
            name: found
            for part in self.schedules
            for name, found in part.calendars.items()
        }

    def bind(
        self, name: str, calendars: Mapping[str, Calendar] | None = None
    ) -> Schedule:
        return self._on(*(part.bind(name, calendars) for part in self.schedules))

    def _arranged(
        self, how: Arrangement, calendars: Sequence[Calendar | str]
    ) -> Schedule:
        return self._on(*(part._arranged(how, calendars) for part in self.schedules))

    @property
    def local_zone(self) -> ZoneInfo | None:
        zones = {part.local_zone for part in self.schedules}
        return zones.pop() if len(zones) == 1 else None


class AnyOf(Combined):
    """The slots of all these schedules; those that coincide are one. Up to 32, with slots at whole
    seconds.

    A slot runs if any of them runs it. Raises InvalidSchedule.
    """

    __slots__ = ()
    combines = True

    def __init__(self, *schedules: Schedule) -> None:
        for schedule in schedules:
            if not isinstance(schedule, Schedule):
                raise InvalidSchedule(f"AnyOf takes schedules, not {schedule!r:.60}")
        inner = (
            one.schedules if isinstance(one, AnyOf) else (one,) for one in schedules
        )
        parts = tuple(dict.fromkeys(chain.from_iterable(inner)))
        if not 1 <= len(parts) <= MOST_PARTS:
            raise InvalidSchedule(f"AnyOf of {len(parts)} schedules: 1–{MOST_PARTS}")
        for part in parts:
            if not part.combines:
                raise InvalidSchedule(
                    f"{part} cannot be combined: only slots at whole seconds of real time can"
                )
        union = Union(tuple(part.line for part in parts))
        self._combine(union, f"ANY({'; '.join(map(str, parts))})", *parts)

    def _on(self, *schedules: Schedule) -> Schedule:
        return AnyOf(*schedules)

    def in_words(self) -> str:
        return "; ".join(part.in_words() for part in self.schedules)

    def sentences(self) -> list[str]:
        parts = [
            f"  {number}. {' '.join(part.sentences())}"
            for number, part in enumerate(self.schedules, 1)
        ]
        return ["At the slots of any of these; those that coincide are one:", *parts]


_EVER: Final = datetime.min.replace(tzinfo=UTC)


class Between(Combined):
    """The slots of a schedule from `start` on and before `end`, after any roll. Raises
    InvalidSchedule without one.
    """

    __slots__ = ("combines", "end", "from_end", "schedule", "start")
    schedule: Schedule
    start: datetime | None
    end: datetime | None

    def __init__(
        self,
        schedule: Schedule,
        start: datetime | str | None,
        end: datetime | str | None,
    ) -> None:
        if start is None and end is None:
            raise InvalidSchedule("between takes a start, an end or both")
        start, low, from_text = _bound(start, BEGINNING)
        end, high, until_text = _bound(end, END)
        if start is not None and end is not None and start >= end:
            raise InvalidSchedule(
                f"between {from_text} and {until_text} there are no slots: the "
                "start must be before the end"
            )
        self._set(
            schedule=schedule,
            start=start,
            end=end,
            from_end=schedule.from_end,
            combines=schedule.combines,
        )
        window = Window(schedule.line, low, high)
        self._combine(
            window, f"BETWEEN({schedule}; {from_text}; {until_text})", schedule
        )
        if self._is_empty():
            told = [f"from {from_text} on"] if start else []
            told += [f"before {until_text}"] if end else []
            raise InvalidSchedule(
                f"{schedule} has no slot {' and '.join(told)}; choose other bounds, or - for none"
            )

    def _is_empty(self) -> bool:
        """Whether no slot is left; false where its slots are not known yet."""
        if not self.from_end:
            with suppress(InvalidSchedule):
                return self.next_after(_EVER) is None
        return False

    def _on(self, *schedules: Schedule) -> Schedule:
        return Between(schedules[0], self.start, self.end)

    def in_words(self) -> str:
        text = self.schedule.in_words()
        if self.start is not None:
            text += f" from {self.local_text(self.start)}"
        if self.end is not None:
            text += f" until {self.local_text(self.end)}"
        return text

    def sentences(self) -> list[str]:
        bounds = []
        if self.start is not None:
            bounds.append(f"from {self.local_text(self.start)} on")
        if self.end is not None:
            bounds.append(f"before {self.local_text(self.end)}")
        return [*self.schedule.sentences(), f"Only {' and '.join(bounds)}."]

    def first_after(self, t: datetime) -> datetime | None:
        slot = self.schedule.first_after(
            t if self.start is None else max(t, self.start - TICK)
        )
        if slot is None or (self.end is not None and slot >= self.end):
            return None
        if self.start is None or slot >= self.start:
            return slot
        return self.start if self.from_end else None


def _bound(
    given: datetime | str | None, otherwise: int
) -> tuple[datetime | None, int, str]:
    """A bound as an instant, as a place on the line, and as text."""
    if given is None:
        return None, otherwise, "-"
    instant = in_utc(given)
    return instant, to_micros(instant), instant_text(instant)


_MILLISECOND = timedelta(milliseconds=1)


class Spread(Combined):
    """The slots of a schedule, each due `by` later; made by `spread_out`. Raises
    InvalidSchedule.
    """

    __slots__ = ("by", "schedule")
    schedule: Schedule
    by: timedelta

    def __init__(self, schedule: Schedule, by: timedelta | str) -> None:
        with located(f"{schedule} spread by", InvalidSchedule):
            by = parse_duration(by)
        if schedule.from_end:
            raise InvalidSchedule(
                f"{schedule} starts after the end of a run; there is nothing to spread"
            )
        if by < TICK:
            raise InvalidSchedule(
                f"{schedule} spread by {format_duration(by)}; more than zero is needed"
            )
        self._set(schedule=schedule, by=by)
        self._combine(
            schedule.line, f"SPREAD({schedule}; {format_duration(by)})", schedule
        )

    def _on(self, *schedules: Schedule) -> Schedule:
        return Spread(schedules[0], self.by)

    def in_words(self) -> str:
        return f"{self.schedule.in_words()}, {format_duration(self.by)} later"

    def sentences(self) -> list[str]:
        by = format_duration(self.by)
        return [*self.schedule.sentences(), f"Each run is due {by} after its slot."]

    def first_after(self, t: datetime) -> datetime | None:
        return self.schedule.first_after(t)

    def wait(self, slot: datetime) -> timedelta:
        return self.by


def spread_out(schedule: Schedule, name: str, limit: timedelta) -> Schedule:
    """The schedule, each run due later by less than `limit`: how much is the name's own,
    everywhere and always.
    """
    from hashlib import sha256  # loads OpenSSL, for spread schedules only

    number = int.from_bytes(sha256(name.encode()).digest()[:8], "big")
    by = number % max(limit // _MILLISECOND, 1) * _MILLISECOND
    return Spread(schedule, by) if by else schedule


MOST_CALENDARS: Final = 8
_MONDAY_TO_FRIDAY: Final = Calendar(name="MON-FRI")


class Arranged(Schedule):
    """A Cron or Daily around the days that calendars do not work on; made by `schedule.excluding`
    and `schedule.nth_business_day`.

    `how` is a roll, or the number of a business day in a month. Calendars are bound, or mere names
    until then. Raises InvalidSchedule.
    """

    __slots__ = ("calendars", "how", "running", "schedule")
    schedule: LocalSchedule
    how: Arrangement
    calendars: Mapping[str, Calendar | None]
    running: Schedule
    combines = True

    def __init__(
        self,
        schedule: LocalSchedule,
        how: Arrangement,
        given: Sequence[Calendar | str],
    ) -> None:
        _check_arrangement(how, given)
        calendars: dict[str, Calendar | None] = {}
        for one in given:
            if isinstance(one, Calendar):
                calendars[one.name] = one
            else:
                calendars[calendar_name(one)] = None
        listed = ", ".join(map(str, given))
        if isinstance(how, str):
            text = f"EXCLUDING({schedule}; {listed}; {how})"
        else:
            text = f"BUSINESS_DAY({schedule}; {how}{'; ' * bool(given)}{listed})"
        self._set(
            schedule=schedule, how=how, calendars=calendars, running=self, _text=text
        )
        line = self._line()
        if how == "skip" and isinstance(
            line, Walk
        ):  # its slots exist, and do not all run
            self._set(line=schedule.line, running=Arranged(schedule, "drop", given))
        else:
            self._set(line=line)

    def _line(self) -> Line:
        """Raises InvalidSchedule if nothing is left of the schedule."""
        walk = self.schedule.line
        if not isinstance(walk, Walk):
            return walk
        unbound = [name for name, one in self.calendars.items() if one is None]
        if unbound:
            told = f"calendar {', '.join(unbound)} is not bound: its days are in the database"
            return Unbound(told)
        bound = tuple(one for one in self.calendars.values() if one is not None)
        days = arranged(walk.pattern.days, self.how, bound or (_MONDAY_TO_FRIDAY,))
        if not days:
            raise InvalidSchedule(f"{self} never fires: none of its days is left")
        return walk.on(days)

    def bind(
        self, name: str, calendars: Mapping[str, Calendar] | None = None
    ) -> Schedule:
        """One that is bound stays as it is if it is not among those given."""
        schedule = self.schedule.bind(name, calendars)
        assert isinstance(schedule, LocalSchedule)
        known = {**self.calendars, **(calendars or {})}
        found = [known[name] for name in self.calendars]
        if None in found:
            missing = list(self.calendars)[found.index(None)]
            among = ", ".join(calendars or ()) or "none"
            raise InvalidSchedule(
                f"calendar {missing} is not among those given: {among}"
            )
        return Arranged(schedule, self.how, [one for one in found if one is not None])

    @property
    def local_zone(self) -> ZoneInfo | None:
        return self.schedule.zone

    def _arranged(
        self, how: Arrangement, calendars: Sequence[Calendar | str]
    ) -> Schedule:
        raise InvalidSchedule(
            f"{self} has calendars already; pass all of them in one call"
        )

    def in_words(self) -> str:
        calendars = ", ".join(self.calendars)
        text = self.schedule.in_words()
        if isinstance(self.how, str):
            return f"{text} excluding {calendars} ({self.how})"
        nth = "last business day" if self.how == -1 else f"business day {self.how}"
        return f"{text}, {nth}{f' of {calendars}' if calendars else ''}"

    def sentences(self) -> list[str]:
        calendars = listed([_calendar(*one) for one in self.calendars.items()])
        if isinstance(self.how, str):
            roll = _ROLLS[self.how]
            told = f"Around {calendars}: if a slot falls on a day off, {roll}."
        else:
            of = f" of {calendars}" if calendars else " (Monday to Friday)"
            told = f"Only on the {_nth(self.how)} of the month{of}."
        return [*self.schedule.sentences(), told]


_ROLLS: Final = {
    "skip": "its slot does not run, and the ledger says why",
    "drop": "there is no slot at all",
    "following": "it moves to the next business day, same local time",
    "preceding": "it moves to the previous business day, same local time",
    "modified_following": "it moves to the next business day, same local time; if that is in "
    "another month, to the previous one",
}


def _nth(n: int) -> str:
    if n == -1:
        return "last business day"
    number = abs(n)
    suffix = "th"
    if number not in (11, 12, 13):
        suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, suffix)
    ordinal = f"{number}{suffix} business day"
    return ordinal if n > 0 else f"{ordinal} from the end"


def _calendar(name: str, bound: Calendar | None) -> str:
    if bound is None:
        return f"calendar {name} (its days are in the database)"
    days = f"{len(bound.days)} day{'' if len(bound.days) == 1 else 's'}"
    if bound.worked:
        days = f"{days}, {len(bound.worked)} worked in spite of the weekend"
    return f"calendar {name} ({days}, weekend {bound.weekend_text}, revision {bound.revision})"


def _check_arrangement(how: Arrangement, given: Sequence[Calendar | str]) -> None:
    if isinstance(how, str):
        one_of("roll", how, Roll)
        if not given:
            raise InvalidSchedule(
                'excluding takes calendars, as excluding("AT", roll="following")'
            )
    elif not isinstance(how, int) or isinstance(how, bool) or not 1 <= abs(how) <= 23:
        raise InvalidSchedule(
            f"business day {how!r:.20}: 1–23, or -1 to -23 from the month's end"
        )
    names = {one.name if isinstance(one, Calendar) else one for one in given}
    if len(names) != len(given) or len(given) > MOST_CALENDARS:
        raise InvalidSchedule(
            f"{len(given)} calendars: each once, and at most {MOST_CALENDARS}"
        )


class Succession(Schedule):
    """One schedule up to and including an instant, then another one; made by `succeed`. `from_end`
    is the second's.
    """

    __slots__ = ("after", "at", "before", "from_end")
    before: Schedule
    at: datetime
    after: Schedule

    def __init__(self, before: Schedule, at: datetime, after: Schedule) -> None:
        self._set(before=before, at=at, after=after, from_end=after.from_end)
        self._set(line=Chain(before.line, to_micros(at) + 1, after.line))
        self._set(_text=f"{before} >> {instant_text(at)} >> {after}")

    def first_after(self, t: datetime) -> datetime | None:
        slot = self.before.first_after(t) if t < self.at else None
        return (
            slot
            if slot is not None and slot <= self.at
            else self.after.first_after(max(t, self.at))
        )

    def slots(self, a: datetime, b: datetime) -> Iterator[datetime]:
        if a < self.at:
            yield from self.before.slots(a, min(b, self.at))
        if self.at < b:
            yield from self.after.slots(max(a, self.at), b)

    def settled(self, t: datetime) -> Schedule:
        if self.at <= t:
            return self.after.settled(t)
        before = self.before.settled(t)
        return (
            self if before is self.before else Succession(before, self.at, self.after)
        )

    def wait(self, slot: datetime) -> timedelta:
        return (self.before if slot <= self.at else self.after).wait(slot)

    @property
    def last(self) -> Schedule:
        return self.after.last

    @property
    def running(self) -> Schedule:
        before = self.before.running
        after = self.after.running
        return (
            self
            if before is self.before and after is self.after
            else Succession(before, self.at, after)
        )

    def leaves(self) -> Iterator[Schedule]:
        return chain(self.before.leaves(), self.after.leaves())

    @property
    def calendars(self) -> Mapping[str, Calendar | None]:
        return self.last.calendars

    def bind(
        self, name: str, calendars: Mapping[str, Calendar] | None = None
    ) -> Schedule:
        """What came before was bound when it came into force: only the second follows a calendar's
        change.
        """
        return Succession(self.before, self.at, self.after.bind(name, calendars))

    def sentences(self) -> list[str]:
        before = " ".join(self.before.sentences())
        after = " ".join(self.after.sentences())
        return [f"Up to {self.before.local_text(self.at)}: {before}", f"Then: {after}"]


def succeed(before: Schedule, at: datetime, after: Schedule) -> Schedule:
    """`before` up to and including the instant `at`, then `after`; one that never comes into force
    is left out.
    """
    at = in_utc(at)
    while isinstance(before, Succession) and before.at >= at:
        before = before.before
    return Succession(before, at, after.settled(at))
