"""The days that a date pattern picks: numbered, so that they can be counted without walking them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import isleap, monthrange
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import accumulate
from typing import Final, Protocol

from slotwise.schedules.cron_fields import LAST

_CYCLE_YEARS: Final = 400
_CYCLE: Final = 146_097  # days in 400 years: the calendar then repeats, weekdays included
_BEFORE_1970: Final = 719_162  # days from 1 January of year 1, a Monday, to 1970

_YEAR_STARTS: Final = (0, *accumulate(365 + isleap(year) for year in range(1, _CYCLE_YEARS + 1)))
#: Years of one kind are alike, weekdays included: whether it is a leap year, and the weekday on which it begins.
_YEAR_KINDS: Final = tuple((isleap(year), _YEAR_STARTS[year - 1] % 7) for year in range(1, _CYCLE_YEARS + 1))
_SPECIMENS: Final = {kind: year for year, kind in enumerate(_YEAR_KINDS)}


def weekday(day: int) -> int:
    """Sunday = 0; 1 January 1970 was a Thursday."""
    return (day + 4) % 7


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

    def in_month(self, length: int, first: int) -> set[int]:
        """The days picked in a month of this length that begins on weekday `first`."""
        of_month, of_week = self._of_month(length, first), self._of_week(length, first)
        return of_month & of_week if self.both else of_month | of_week

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
    """Days that are the same in all years of a kind; `pick` gives those between the first and last day of a year."""

    __slots__ = ("_of_year", "_starts")

    def __init__(self, pick: Callable[[int, int], Iterable[int]]) -> None:
        kinds = {}
        for kind, year in _SPECIMENS.items():
            first, end = (start - _BEFORE_1970 for start in _YEAR_STARTS[year : year + 2])
            kinds[kind] = tuple(sorted(day - first for day in pick(first, end - 1)))
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
            days = self._of_year[year]
            found += [start + day for day in days[bisect_left(days, place - start) : bisect_right(days, last - start)]]
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

    def pick(first: int, last: int) -> Iterable[int]:
        for month in range(1, 13):
            begin, end = month_around(first)
            if month in pattern.months:
                yield from (begin + day - 1 for day in pattern.in_month(end - begin + 1, weekday(begin)))
            first = end + 1

    return Days(pick)


def month_around(day: int) -> tuple[int, int]:
    """The first and the last day of the month of a day."""
    found = date.fromordinal(day + _BEFORE_1970 + 1)
    first = day - found.day + 1
    return first, first + monthrange(found.year, found.month)[1] - 1
