"""The days that a date pattern picks: numbered, so that they can be counted without walking them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

_CYCLE_YEARS: Final = 400
_CYCLE: Final = 146_097  # days in 400 years: the calendar then repeats, weekdays included
_BEFORE_1970: Final = 719_162  # days from 1 January of year 1, a Monday, to 1970

LAST: Final = -1


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


_LENGTHS: Final = {leap: (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31) for leap in (False, True)}
_YEAR_STARTS: Final = (0, *accumulate(366 if _is_leap(year) else 365 for year in range(1, _CYCLE_YEARS + 1)))
_YEAR_KINDS: Final = tuple((_is_leap(year), (_YEAR_STARTS[year - 1] + 1) % 7) for year in range(1, _CYCLE_YEARS + 1))


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


class Days:
    """The days of a pattern in order: `rank(day)` of them lie before a day, `at(rank)` is one of them.

    Days are numbered from 1 January 1970 = 0. Both take a few look-ups, however rare or distant the days.
    """

    __slots__ = ("_of_year", "_starts")

    def __init__(self, pattern: DatePattern) -> None:
        kinds = {kind: tuple(_days_of_year(pattern, *kind)) for kind in set(_YEAR_KINDS)}
        self._of_year = tuple(kinds[kind] for kind in _YEAR_KINDS)
        self._starts = (0, *accumulate(map(len, self._of_year)))

    def __bool__(self) -> bool:
        """Whether the pattern picks any day at all."""
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


def _days_of_year(pattern: DatePattern, leap: bool, first: int) -> Iterable[int]:
    """The days picked, counted from 1 January = 0, in a year that begins on weekday `first`."""
    start = 0
    for month, length in enumerate(_LENGTHS[leap], start=1):
        if month in pattern.months:
            yield from (start + day - 1 for day in pattern.in_month(length, (first + start) % 7))
        start += length


@lru_cache(maxsize=1024)
def days_of(pattern: DatePattern) -> Days:
    """The days of a pattern, computed once for all schedules that share it."""
    return Days(pattern)
