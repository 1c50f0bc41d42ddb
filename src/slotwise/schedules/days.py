"""The days that a date pattern picks: numbered, so that they can be counted without walking them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

_CYCLE_YEARS: Final = 400
_CYCLE: Final = 146_097  # days in 400 years: the calendar then repeats, weekdays included
_BEFORE_1970: Final = 719_162  # days from 1 January of year 1, a Monday, to 1970

LAST: Final = -1


class YearKind(NamedTuple):
    """Years that are alike, weekdays included; `first` is the weekday of 1 January, Sunday = 0."""

    leap: bool
    first: int


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


_LENGTHS: Final = {leap: (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31) for leap in (False, True)}
_YEAR_STARTS: Final = (0, *accumulate(366 if _is_leap(year) else 365 for year in range(1, _CYCLE_YEARS + 1)))
_YEAR_KINDS: Final = tuple(
    YearKind(_is_leap(year), (_YEAR_STARTS[year - 1] + 1) % 7) for year in range(1, _CYCLE_YEARS + 1)
)
_SPECIMENS: Final = {kind: year for year, kind in enumerate(_YEAR_KINDS, start=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatePattern:
    """Which days of a month are meant. Weekdays count from Sunday = 0.

    `from_end` holds distances from the month's last day (`L-3` is 3), `nearest` days that move to the nearest
    working day, `nth` pairs of a weekday and its number in the month (LAST: the last one). `both` asks a day
    to satisfy the days of the month *and* the weekdays; otherwise one of them is enough.
    """

    months: frozenset[int]
    days: frozenset[int]
    from_end: frozenset[int] = frozenset()
    nearest: frozenset[int] = frozenset()
    last_working_day: bool = False
    weekdays: frozenset[int]
    nth: frozenset[tuple[int, int]] = frozenset()
    both: bool

    def in_month(self, length: int, first: int) -> list[int]:
        """The days picked in a month of this length that begins on weekday `first`."""
        of_month, of_week = self._of_month(length, first), self._of_week(length, first)
        return sorted(of_month & of_week if self.both else of_month | of_week)

    def _of_month(self, length: int, first: int) -> set[int]:
        picked = {day for day in self.days if day <= length}
        picked |= {length - distance for distance in self.from_end if distance < length}
        picked |= {_nearest_working_day(min(day, length), length, first) for day in self.nearest}
        if self.last_working_day:
            picked.add(max(day for day in range(length - 2, length + 1) if 1 <= (first + day - 1) % 7 <= 5))
        return picked

    def _of_week(self, length: int, first: int) -> set[int]:
        picked = {day for day in range(1, length + 1) if (first + day - 1) % 7 in self.weekdays}
        for weekday, number in self.nth:
            matching = range((weekday - first) % 7 + 1, length + 1, 7)
            if number <= len(matching):
                picked.add(matching[number if number == LAST else number - 1])
        return picked


EVERY_DAY: Final = DatePattern(
    months=frozenset(range(1, 13)), days=frozenset(range(1, 32)), weekdays=frozenset(range(7)), both=True
)


def _nearest_working_day(day: int, length: int, first: int) -> int:
    """Monday to Friday, within the month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


class DaySet(Hashable, Protocol):
    """Days in order, numbered from 1 January 1970 = 0: `rank(day)` of them lie before a day, `at(rank)` is one.

    Both take a few look-ups, however rare or distant the days. `within` lists those of a while, both ends included.
    """

    def __bool__(self) -> bool:
        """Whether there is any day at all."""

    def rank(self, day: int) -> int: ...
    def at(self, rank: int) -> int: ...
    def within(self, first: int, last: int) -> list[int]: ...


class Days:
    """Days that are the same in all years of a kind: for each, those picked, counted from 1 January = 0."""

    __slots__ = ("_of_year", "_starts")

    def __init__(self, kinds: Mapping[YearKind, tuple[int, ...]]) -> None:
        self._of_year = tuple(kinds[kind] for kind in _YEAR_KINDS)
        self._starts = (0, *accumulate(map(len, self._of_year)))

    def __bool__(self) -> bool:
        return self._starts[-1] > 0

    def rank(self, day: int) -> int:
        cycle, day = divmod(day + _BEFORE_1970, _CYCLE)
        year = bisect_right(_YEAR_STARTS, day) - 1
        before = self._starts[year] + bisect_left(self._of_year[year], day - _YEAR_STARTS[year])
        return cycle * self._starts[-1] + before

    def at(self, rank: int) -> int:
        cycle, rank = divmod(rank, self._starts[-1])
        year = bisect_right(self._starts, rank) - 1
        day = _YEAR_STARTS[year] + self._of_year[year][rank - self._starts[year]]
        return cycle * _CYCLE + day - _BEFORE_1970

    def within(self, first: int, last: int) -> list[int]:
        found: list[int] = []
        place = first
        while place <= last:
            cycle, day = divmod(place + _BEFORE_1970, _CYCLE)
            year = bisect_right(_YEAR_STARTS, day) - 1
            start = cycle * _CYCLE + _YEAR_STARTS[year] - _BEFORE_1970
            picked = self._of_year[year]
            found += [
                start + day for day in picked[bisect_left(picked, place - start) : bisect_right(picked, last - start)]
            ]
            place = start + _YEAR_STARTS[year + 1] - _YEAR_STARTS[year]
        return found


class ChangedDays:
    """Days of which some are missing and to which some are added: two short lists, each sorted."""

    __slots__ = ("_added", "_days", "_missing")

    def __init__(self, days: DaySet, missing: Iterable[int], added: Iterable[int]) -> None:
        self._days, self._missing, self._added = days, sorted(missing), sorted(added)

    def __bool__(self) -> bool:
        return bool(self._days)  # what comes back for ever; a few days of certain years do not make a schedule

    def rank(self, day: int) -> int:
        return self._days.rank(day) - bisect_left(self._missing, day) + bisect_left(self._added, day)

    def at(self, rank: int) -> int:
        low, high = self._days.at(rank - len(self._added)), self._days.at(rank + len(self._missing))
        return low + bisect_left(range(low, high), rank + 1, key=lambda day: self.rank(day + 1))

    def within(self, first: int, last: int) -> list[int]:
        added = self._added[bisect_left(self._added, first) : bisect_right(self._added, last)]
        return sorted({*self._days.within(first, last)}.difference(self._missing).union(added))


@lru_cache(maxsize=1024)
def days_of(pattern: DatePattern) -> Days:
    """The days of a pattern, computed once for all schedules that share it."""
    return Days({kind: tuple(_days_of_year(pattern, *kind)) for kind in _SPECIMENS})


def _days_of_year(pattern: DatePattern, leap: bool, first: int) -> Iterable[int]:
    """The days picked, counted from 1 January = 0, in a year that begins on weekday `first`."""
    start = 0
    for month, length in enumerate(_LENGTHS[leap], start=1):
        if month in pattern.months:
            yield from (start + day - 1 for day in pattern.in_month(length, (first + start) % 7))
        start += length


def years_of_each_kind() -> Iterable[tuple[YearKind, int, int]]:
    """One year of each kind, with the numbers of its first and last day."""
    for kind, year in _SPECIMENS.items():
        yield kind, _YEAR_STARTS[year - 1] - _BEFORE_1970, _YEAR_STARTS[year] - _BEFORE_1970 - 1


def month_around(day: int) -> tuple[int, int]:
    """The first and the last day of the month of a day."""
    found = date.fromordinal(day + _BEFORE_1970 + 1)
    first = day - found.day + 1
    return first, first + _LENGTHS[_is_leap(found.year)][found.month - 1] - 1
