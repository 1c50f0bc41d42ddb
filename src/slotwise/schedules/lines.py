"""Lines: slots at whole seconds of real time, and how lines are laid over one another.

All instants here are whole seconds since 1970. What lies before 1900 or after 8999 does not exist.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, reduce
from operator import or_
from typing import NoReturn, Protocol

from slotwise.errors import InvalidSchedule
from slotwise.schedules.base import Schedule
from slotwise.schedules.instants import EPOCH, ceiling_second, floor_second
from slotwise.schedules.zones import BEGINNING, DAY, END


class Line(Protocol):
    """Slots in order; every method asks for those with `low <= slot < high`."""

    def first(self, low: int, high: int) -> int | None: ...
    def last(self, low: int, high: int) -> int | None: ...
    def count(self, low: int, high: int) -> int: ...

    def bits(self, low: int, high: int) -> int:
        """The slots as the bits of a number, that of `low` first; for a day or so."""


class LineSchedule(Schedule, ABC):
    """A schedule whose slots are a line."""

    __slots__ = ("_line",)
    _line: Line

    def next_after(self, t: datetime) -> datetime | None:
        return _instant(self._line.first(max(floor_second(t) + 1, BEGINNING), END))

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        low = BEGINNING if floor is None else max(floor_second(floor) + 1, BEGINNING)
        return _instant(self._line.last(low, min(ceiling_second(t), END)))

    def count_between(self, a: datetime, b: datetime) -> int:
        return self._line.count(max(floor_second(a) + 1, BEGINNING), min(floor_second(b) + 1, END))

    @property
    def line(self) -> Line:
        return self._line


@dataclass(frozen=True, slots=True)
class Grid:
    """Every `step` seconds, through `start`."""

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

    def bits(self, low: int, high: int) -> int:
        return _comb(self.step, high - low) << (self.start - low) % self.step & (1 << high - low) - 1


@lru_cache(maxsize=64)
def _comb(step: int, width: int) -> int:
    """A bit at each `step`, from 0 up to `width`."""
    teeth, reach = 1, step
    while reach < width:
        teeth, reach = teeth | teeth << reach, reach * 2
    return teeth


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a line with `start <= slot < end`."""

    line: Line
    start: int
    end: int

    def first(self, low: int, high: int) -> int | None:
        low, high = self._within(low, high)
        return self.line.first(low, high) if low < high else None

    def last(self, low: int, high: int) -> int | None:
        low, high = self._within(low, high)
        return self.line.last(low, high) if low < high else None

    def count(self, low: int, high: int) -> int:
        low, high = self._within(low, high)
        return self.line.count(low, high) if low < high else 0

    def bits(self, low: int, high: int) -> int:
        first, end = self._within(low, high)
        return self.line.bits(first, end) << first - low if first < end else 0

    def _within(self, low: int, high: int) -> tuple[int, int]:
        return max(low, self.start), min(high, self.end)


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
        """Sparse lines are walked, dense ones compared day by day: a year of seconds takes milliseconds."""
        low, high = max(low, BEGINNING), min(high, END)
        if low >= high:
            return 0
        counts = [(line, line.count(low, high)) for line in self.lines]
        few = 2 + 4 * (high - low) // DAY
        dense = [line for line, count in counts if count > few]
        sparse = {slot for line, count in counts if count <= few for slot in _walked(line, low, high)}
        apart = sum(all(line.first(slot, slot + 1) is None for line in dense) for slot in sparse)
        if len(dense) < 2:
            return apart + sum(line.count(low, high) for line in dense)
        days = ((day, min(day + DAY, high)) for day in range(low, high, DAY))
        return apart + sum(_all_bits(dense, *day).bit_count() for day in days)

    def bits(self, low: int, high: int) -> int:
        return _all_bits(self.lines, low, high)


def _all_bits(lines: Sequence[Line], low: int, high: int) -> int:
    return reduce(or_, (line.bits(low, high) for line in lines), 0)


def _walked(line: Line, low: int, high: int) -> Iterator[int]:
    slot = line.first(low, high)
    while slot is not None:
        yield slot
        slot = line.first(slot + 1, high)


@dataclass(frozen=True, slots=True)
class Unbound:
    """The line of a schedule that lacks something until it is bound: asking it is an error that says what."""

    lack: str

    def first(self, low: int, high: int) -> int | None:
        self._refuse()

    def last(self, low: int, high: int) -> int | None:
        self._refuse()

    def count(self, low: int, high: int) -> int:
        self._refuse()

    def bits(self, low: int, high: int) -> int:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidSchedule(self.lack)


def _instant(seconds: int | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)
