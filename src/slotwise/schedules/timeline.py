"""The time line: spans of a zone with one offset, and lines of slots; in microseconds since 1970, from 1900 to 8999.

Every schedule has its slots as a line. Schedules made of others combine their lines.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, timezone
from functools import lru_cache
from itertools import chain, pairwise
from typing import Final, NamedTuple, NoReturn, Protocol
from zoneinfo import ZoneInfo, available_timezones

from slotwise.errors import InvalidSchedule
from slotwise.model.records import EARLIEST, FOREVER, TICK, from_micros, to_micros

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
BEGINNING: Final = to_micros(EARLIEST)
"""Schedules know no slot before this instant…"""
END: Final = to_micros(FOREVER)
"""… and none from this one on."""

_LONGEST_NAME: Final = 64
_MACHINE_DEPENDENT: Final = frozenset({"localtime", "posixrules", "Factory"})
_CHUNK: Final = 45  # a chunk of the time line is 2**45 microseconds, about 407 days
_PROBE: Final = 2 * DAY  # the shortest span in the whole tz database is just under 7 days
_MARGIN: Final = 3 * DAY  # no change of offset is felt further away than two days
_PORTION: Final = 4 * DAY  # few enough one-second slots to hold in memory


class Span(NamedTuple):
    """UTC from `start` to before `end` with one `offset`; `before` and `after` are its neighbours' offsets."""

    start: int
    end: int
    offset: int
    before: int
    after: int


def zone_named(tz: str | ZoneInfo | timezone) -> ZoneInfo:
    """Return the zone of an IANA name. Raise InvalidSchedule with near matches."""
    name = tz.key if isinstance(tz, ZoneInfo) else "UTC" if tz is UTC else tz
    if not isinstance(name, str) or (not name and name is not tz):  # the text form has only the name
        raise InvalidSchedule(f'{tz!r:.60} is not a time zone with a name; write tz="Europe/Vienna" or a ZoneInfo')
    if len(name) > _LONGEST_NAME:
        raise InvalidSchedule(
            f"a time zone name of {len(name)} characters ({name[:20]!r}…); names are like Europe/Vienna"
        )
    if name not in _MACHINE_DEPENDENT:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    raise InvalidSchedule(f"unknown time zone {name!r}{_near(name)}; names are like Europe/Vienna or UTC")


def span_at(zone: ZoneInfo, instant: int) -> Span:
    """The span that holds an instant. A long one may come in pieces, cut well away from every change."""
    for span in _spans(zone, instant >> _CHUNK):
        if instant < span.end:
            return span
    raise AssertionError(f"no span of {zone.key} holds {instant}")


def changes_between(zone: ZoneInfo, low: int, high: int) -> Iterator[Span]:
    """The spans that begin with another offset than the one before, with `low <= start < high`."""
    span = span_at(zone, low)
    while span.start < high:
        if span.start >= low and span.offset != span.before:
            yield span
            low = span.start + 1  # the next piece of a long span may begin with the same change
        if span.end >= END:
            return
        span = span_at(zone, span.end)


def _near(name: str) -> str:
    known = {zone.lower(): zone for zone in sorted(available_timezones() - _MACHINE_DEPENDENT)}
    cities = {zone.rsplit("/", 1)[-1]: known[zone] for zone in known}
    near = [known[match] for match in difflib.get_close_matches(name.lower(), known, cutoff=0.75)]
    near += [cities[match] for match in difflib.get_close_matches(name.lower(), cities, cutoff=0.8)]
    return f" (did you mean {' or '.join(dict.fromkeys(near[:3]))}?)" if near else ""


@lru_cache(maxsize=8192)
def _spans(zone: ZoneInfo, chunk: int) -> tuple[Span, ...]:
    """The spans that meet a chunk, in order; each begins and ends at a change, or well outside the chunk."""
    fixed = zone.utcoffset(None)
    if fixed is not None:
        offset = fixed // TICK
        return (Span(BEGINNING, END, offset, offset, offset),)
    changes = [change for near in (chunk - 1, chunk, chunk + 1) for change in _changes(zone, near)]
    start, end = (chunk - 1 << _CHUNK) + _MARGIN, (chunk + 2 << _CHUNK) - _MARGIN
    return tuple(
        Span(low, high, _offset(zone, low), before=_offset(zone, low - 1), after=_offset(zone, high))
        for low, high in pairwise([start, *changes, end])
        if low < high and high > chunk << _CHUNK and low < chunk + 1 << _CHUNK
    )


@lru_cache(maxsize=8192)
def _changes(zone: ZoneInfo, chunk: int) -> tuple[int, ...]:
    probes = [*range(chunk << _CHUNK, chunk + 1 << _CHUNK, _PROBE), chunk + 1 << _CHUNK]
    offsets = [_offset(zone, probe) for probe in probes]
    found = zip(pairwise(probes), pairwise(offsets), strict=True)
    return tuple(
        low + bisect_left(range(low, high), True, key=lambda instant: _offset(zone, instant) != old)
        for (low, high), (old, new) in found
        if old != new
    )


def _offset(zone: ZoneInfo, instant: int) -> int:
    offset = from_micros(instant).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // TICK


class Line(Protocol):
    """Slots in order; every method asks for those with `low <= slot < high`: none if `high` is below `low`.

    `Schedule` keeps both within BEGINNING and END.
    """

    def first(self, low: int, high: int) -> int | None: ...
    def last(self, low: int, high: int) -> int | None: ...
    def count(self, low: int, high: int) -> int: ...

    def within(self, low: int, high: int) -> Iterable[int]:
        """All of them, in no order; for a few."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Every `step`, through `start`."""

    start: int
    step: int

    def first(self, low: int, high: int) -> int | None:
        found = low + (self.start - low) % self.step
        return found if found < high else None

    def last(self, low: int, high: int) -> int | None:
        found = high - 1 - (high - 1 - self.start) % self.step
        return found if found >= low else None

    def count(self, low: int, high: int) -> int:
        return max(0, (high - 1 - self.start) // self.step - (low - 1 - self.start) // self.step)

    def within(self, low: int, high: int) -> Iterable[int]:
        return range(low + (self.start - low) % self.step, high, self.step)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a line with `start <= slot < end`."""

    line: Line
    start: int
    end: int

    def first(self, low: int, high: int) -> int | None:
        return self.line.first(*self._within(low, high))

    def last(self, low: int, high: int) -> int | None:
        return self.line.last(*self._within(low, high))

    def count(self, low: int, high: int) -> int:
        return self.line.count(*self._within(low, high))

    def within(self, low: int, high: int) -> Iterable[int]:
        return self.line.within(*self._within(low, high))

    def _within(self, low: int, high: int) -> tuple[int, int]:
        return max(low, self.start), min(high, self.end)


NOTHING: Final = Window(Grid(0, DAY), 0, 0)


@dataclass(frozen=True, slots=True)
class Delay:
    """One slot: `by` after the end of a run. The tick after that end is `low`; without an end there is no slot."""

    by: int

    def first(self, low: int, high: int) -> int | None:
        found = low - 1 + self.by
        return found if found < high else None

    def last(self, low: int, high: int) -> int | None:
        return None if low == BEGINNING else self.first(low, high)

    def count(self, low: int, high: int) -> int:
        return len(self.within(low, high))

    def within(self, low: int, high: int) -> list[int]:
        found = self.first(low, high)
        return [] if found is None else [found]


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
        return self.before.count(low, min(high, self.at)) + self.after.count(max(low, self.at), high)

    def within(self, low: int, high: int) -> Iterable[int]:
        return chain(self.before.within(low, min(high, self.at)), self.after.within(max(low, self.at), high))


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
        return sum(len(self.within(start, min(start + _PORTION, high))) for start in range(low, high, _PORTION))

    def within(self, low: int, high: int) -> set[int]:
        return set().union(*(line.within(low, high) for line in self.lines))


@dataclass(frozen=True, slots=True)
class Unbound:
    """The line of a schedule that lacks something until it is bound: asking it is an error that says what."""

    lack: str

    def _refuse(self, low: object = None, high: object = None) -> NoReturn:
        raise InvalidSchedule(self.lack)

    first = last = count = within = _refuse
