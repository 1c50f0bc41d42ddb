"""Days arranged around a calendar: left out, rolled to a business day, or the n-th business day of a month.

Weekends come back for ever, so what they do to a pattern is computed once, for each kind of year. The listed
days of a calendar are few: around each, what they change is worked out, and the difference kept in two lists.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Final, Literal, Protocol

from slotwise.schedules.business.calendar import Calendar
from slotwise.schedules.days import (
    ChangedDays,
    Days,
    DaySet,
    month_around,
    years_of_each_kind,
)

Roll = Literal["skip", "drop", "following", "preceding", "modified_following"]

_EPOCH: Final = date(1970, 1, 1)


class BusinessDays:
    """The days that are worked on: all but weekends and the listed days."""

    def __init__(self, weekend: frozenset[int], listed: Iterable[int] = ()) -> None:
        self.listed = tuple(sorted(day for day in listed if _weekday(day) not in weekend))
        self._days = ChangedDays(_weeks(weekend), self.listed, ()) if self.listed else _weeks(weekend)

    def __contains__(self, day: int) -> bool:
        return self._days.rank(day + 1) > self._days.rank(day)

    def following(self, day: int) -> int:
        """The day itself if it is one, else the next one."""
        return self._days.at(self._days.rank(day))

    def preceding(self, day: int) -> int:
        """The day itself if it is one, else the one before."""
        return self._days.at(self._days.rank(day + 1) - 1)

    def within(self, first: int, last: int) -> list[int]:
        return self._days.within(first, last)


class Arrangement(Hashable, Protocol):
    """What a calendar does to days."""

    def picked(self, days: DaySet, business: BusinessDays, first: int, last: int) -> Iterable[int]:
        """The days from `first` up to and including `last` that come out of it."""

    def around(self, business: BusinessDays, listed: int) -> tuple[int, int]:
        """The first and last day at which a listed day can make a difference."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Only those that are business days."""

    def picked(self, days: DaySet, business: BusinessDays, first: int, last: int) -> Iterable[int]:
        return (day for day in days.within(first, last) if day in business)

    def around(self, business: BusinessDays, listed: int) -> tuple[int, int]:
        del business
        return listed, listed


@dataclass(frozen=True, slots=True)
class Rolled:
    """Those that are not business days move to one; several that meet are one."""

    roll: Roll

    def picked(self, days: DaySet, business: BusinessDays, first: int, last: int) -> Iterable[int]:
        reach = business.preceding(first - 1), business.following(last + 1)
        moved = {self._moved(day, business) for day in days.within(*reach)}
        return (day for day in moved if first <= day <= last)

    def _moved(self, day: int, business: BusinessDays) -> int:
        if self.roll == "preceding":
            return business.preceding(day)
        moved = business.following(day)
        if self.roll == "modified_following" and moved > month_around(day)[1]:
            return business.preceding(day)
        return moved

    def around(self, business: BusinessDays, listed: int) -> tuple[int, int]:
        return business.preceding(listed), business.following(listed)


@dataclass(frozen=True, slots=True)
class Numbered:
    """Only those that are the n-th business day of their month; counted from its end if n is negative."""

    n: int

    def picked(self, days: DaySet, business: BusinessDays, first: int, last: int) -> Iterable[int]:
        wanted = set(days.within(first, last))
        while first <= last:
            begin, end = month_around(first)
            open_days = business.within(begin, end)
            if abs(self.n) <= len(open_days):
                yield from wanted & {open_days[self.n - 1 if self.n > 0 else self.n]}
            first = end + 1

    def around(self, business: BusinessDays, listed: int) -> tuple[int, int]:
        del business
        return month_around(listed)


@lru_cache(maxsize=1024)
def arranged(days: DaySet, arrangement: Arrangement, calendars: tuple[Calendar, ...]) -> DaySet:
    """What these calendars together make of the days; computed once for all schedules that share it."""
    weekend = frozenset[int]().union(*(calendar.weekend for calendar in calendars))
    listed = {(day - _EPOCH).days for calendar in calendars for day in calendar.days}
    usual, business = BusinessDays(weekend), BusinessDays(weekend, listed)
    missing: set[int] = set()
    added: set[int] = set()
    for first, last in {arrangement.around(business, day) for day in business.listed}:
        expected = set(arrangement.picked(days, usual, first, last))
        found = set(arrangement.picked(days, business, first, last))
        missing |= expected - found
        added |= found - expected
    recurring = _every_year(days, arrangement, weekend)
    return ChangedDays(recurring, missing, added) if missing or added else recurring


@lru_cache(maxsize=1024)
def _every_year(days: DaySet, arrangement: Arrangement, weekend: frozenset[int]) -> Days:
    """What is left of the days where a calendar lists none."""
    usual = BusinessDays(weekend)
    return Days(
        {
            kind: tuple(sorted(day - first for day in arrangement.picked(days, usual, first, last)))
            for kind, first, last in years_of_each_kind()
        }
    )


@lru_cache(maxsize=128)
def _weeks(weekend: frozenset[int]) -> Days:
    return Days(
        {
            kind: tuple(day - first for day in range(first, last + 1) if _weekday(day) not in weekend)
            for kind, first, last in years_of_each_kind()
        }
    )


def _weekday(day: int) -> int:
    """Sunday = 0; 1 January 1970 was a Thursday."""
    return (day + 4) % 7
