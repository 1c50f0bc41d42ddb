"""Days that a pattern picks, numbered, so that they are counted without walking.

Years of one kind are alike, weekdays included, so their days are picked once per kind. The years
in which the listed days of a calendar matter are picked one by one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from calendar import isleap, monthrange
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import MAXYEAR, date
from functools import lru_cache
from itertools import accumulate
from typing import Final, TypeAlias

from slotwise.schedules.cron_fields import LAST

_BEFORE_1970: Final = 719_162  # days from 1 January of year 1, a Monday, to 1970

#: After 400 years all recurs.
_LENGTHS: Final = [365 + isleap(year) for year in range(1, 401)]
#: The first day of each year, from year 1 on.
_YEAR_STARTS: Final = (*accumulate((_LENGTHS * 25)[:MAXYEAR], initial=-_BEFORE_1970),)


def weekday(day: int) -> int:
    """Sunday = 0; 1 January 1970 was a Thursday."""
    return (day + 4) % 7


#: The kind of each year: the weekday on which it begins, plus 7 for a leap year.
_KINDS: Final = tuple(
    weekday(_YEAR_STARTS[year - 1]) + 7 * isleap(year) for year in range(1, 401)
)
_SPECIMENS: Final = {kind: place for place, kind in enumerate(_KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatePattern:
    """The days of a month that a pattern picks. Weekdays count from Sunday = 0.

    `from_end` has distances from the month's last day, `nearest` days that move to the nearest
    weekday (31: the last), `nth` pairs of a weekday and its number (LAST: the last one). `both`: a
    date must satisfy both fields, not just one.
    """

    months: frozenset[int]
    days: frozenset[int]
    from_end: frozenset[int] = frozenset()
    nearest: frozenset[int] = frozenset()
    weekdays: frozenset[int]
    nth: frozenset[tuple[int, int]] = frozenset()
    both: bool

    def in_month(self, length: int, first: int) -> set[int]:
        """The days picked in a month of this length that begins on weekday `first`."""
        of_month = {day for day in self.days if day <= length}
        of_month |= {
            length - distance for distance in self.from_end if distance < length
        }
        of_month |= {
            _nearest_working_day(min(day, length), length, first)
            for day in self.nearest
        }
        of_week = {
            day
            for day in range(1, length + 1)
            if (first + day - 1) % 7 in self.weekdays
        }
        for weekday, number in self.nth:
            matching = range((weekday - first) % 7 + 1, length + 1, 7)
            if number <= len(matching):
                of_week.add(matching[number if number == LAST else number - 1])
        return of_month & of_week if self.both else of_month | of_week


EVERY_DAY: Final = DatePattern(
    months=frozenset(range(1, 13)),
    days=frozenset(range(1, 32)),
    weekdays=frozenset(range(7)),
    both=True,
)


def _nearest_working_day(day: int, length: int, first: int) -> int:
    """Monday to Friday, within the month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


#: Gives the days that it picks, from the first one up to and including the second one.
Pick: TypeAlias = Callable[[int, int], Iterable[int]]


class Days:
    """Sorted days, numbered from 1 January 1970 = 0: those that `usual` picks for a year, and all
    years of its kind.

    In years with one of the `unusual_days`, those that `unusual` picks. `rank(day)` counts the
    days before a day, `at(rank)` is its inverse; both take a few look-ups.
    """

    __slots__ = ("_ranks", "_unusual", "kinds")

    def __init__(
        self,
        usual: Pick,
        unusual: Pick | None = None,
        unusual_days: Iterable[int] = (),
    ) -> None:
        self.kinds = {
            kind: _of_year(place, usual) for kind, place in _SPECIMENS.items()
        }
        self._unusual = {
            place: _of_year(place, unusual or usual)
            for place in set(map(_year_of, unusual_days))
        }
        lengths = [len(self.kinds[kind]) for kind in _KINDS] * (MAXYEAR // 400 + 1)
        for place, days in self._unusual.items():
            lengths[place] = len(days)
        self._ranks = array("i", accumulate(lengths, initial=0))

    def __bool__(self) -> bool:
        return any(
            self.kinds.values()
        )  # those that recur; a few days of certain years make no schedule

    def _in_year(self, place: int) -> tuple[int, ...]:
        found = self._unusual.get(place)
        return self.kinds[_KINDS[place % 400]] if found is None else found

    def rank(self, day: int) -> int:
        place = _year_of(day)
        return self._ranks[place] + bisect_left(
            self._in_year(place), day - _YEAR_STARTS[place]
        )

    def at(self, rank: int) -> int:
        place = bisect_right(self._ranks, rank) - 1
        return _YEAR_STARTS[place] + self._in_year(place)[rank - self._ranks[place]]

    def within(self, first: int, last: int) -> list[int]:
        """All of them from the first one up to and including the second one."""
        found: list[int] = []
        for place in range(_year_of(first), _year_of(last) + 1):
            start = _YEAR_STARTS[place]
            days = self._in_year(place)
            found += [
                start + day
                for day in days[
                    bisect_left(days, first - start) : bisect_right(days, last - start)
                ]
            ]
        return found

    def following(self, day: int) -> int:
        """The day itself if it is one of them, else the next one."""
        return self.at(self.rank(day))

    def preceding(self, day: int) -> int:
        """The day itself if it is one of them, else the one before."""
        return self.at(self.rank(day + 1) - 1)


def number_of(day: date) -> int:
    """The number of a date; 1 January 1970 is 0."""
    return day.toordinal() - _BEFORE_1970 - 1


def _year_of(day: int) -> int:
    """The place of its year in the lists of years."""
    return bisect_right(_YEAR_STARTS, day) - 1


def _of_year(place: int, pick: Pick) -> tuple[int, ...]:
    """The days that it picks in a year, counted from 0."""
    first, end = _YEAR_STARTS[place : place + 2]
    return tuple(sorted(day - first for day in pick(first, end - 1)))


@lru_cache(maxsize=1024)
def days_of(pattern: DatePattern) -> Days:
    """The days of a pattern, computed once for all schedules that share it."""

    def pick(first: int, last: int) -> Iterable[int]:
        for month in range(1, 13):
            begin, end = month_around(first)
            if month in pattern.months:
                yield from (
                    begin + day - 1
                    for day in pattern.in_month(end - begin + 1, weekday(begin))
                )
            first = end + 1

    return Days(pick)


def month_around(day: int) -> tuple[int, int]:
    """The first and the last day of the month of a day."""
    found = date.fromordinal(day + _BEFORE_1970 + 1)
    first = day - found.day + 1
    return first, first + monthrange(found.year, found.month)[1] - 1
