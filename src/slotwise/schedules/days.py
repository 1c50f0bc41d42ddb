"""Days: those that a date pattern picks, business calendars, and the days arranged around these.

Days are numbered, so they are counted without walking. Weekends recur, so their effect is computed once per kind of
year. The effect of each listed day of a calendar is computed around it, and kept in two lists of differences.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import isleap, monthrange
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Final, Literal, TypeAlias

from slotwise.errors import InvalidSchedule
from slotwise.schedules.cron_fields import LAST, WEEKDAY, quoted

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
    """The days of a month that a pattern picks. Weekdays count from Sunday = 0.

    `from_end` has distances from the month's last day, `nearest` days that move to the nearest weekday (31: the last),
    `nth` pairs of a weekday and its number (LAST: the last one). `both`: a date must satisfy both fields, not just one.
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
        of_month |= {length - distance for distance in self.from_end if distance < length}
        of_month |= {_nearest_working_day(min(day, length), length, first) for day in self.nearest}
        of_week = {day for day in range(1, length + 1) if (first + day - 1) % 7 in self.weekdays}
        for weekday, number in self.nth:
            matching = range((weekday - first) % 7 + 1, length + 1, 7)
            if number <= len(matching):
                of_week.add(matching[number if number == LAST else number - 1])
        return of_month & of_week if self.both else of_month | of_week


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
    """Sorted days, numbered from 1 January 1970 = 0; `pick` gives those of a year, for all years of the same kind.

    `rank(day)` counts the days before a day, `at(rank)` is its inverse; both take a few look-ups.
    """

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


DaySet: TypeAlias = Days | ChangedDays


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


MOST_DAYS: Final = 1000
"""So many days fit into one calendar: it travels inside the text of each schedule that uses it."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,39}")
_SNAPSHOT: Final = re.compile(r"(?P<name>[^@\[\]]+)@(?P<revision>[0-9]{1,18})\[(?P<weekend>\S+)(?P<years>( \S+)*)\]")
_YEAR: Final = re.compile(r"([0-9]{4}):((?:[0-9]{4},)*[0-9]{4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """Days that are not worked on: a weekend, by default Saturday and Sunday, and single days.

    Weekdays count from Sunday = 0. `revision` rises with each change in the database. Raises InvalidSchedule.
    """

    name: str
    revision: int = 0
    weekend: frozenset[int] = frozenset({0, 6})
    days: frozenset[date] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weekend", frozenset(self.weekend))
        object.__setattr__(self, "days", frozenset(self.days))
        calendar_name(self.name)
        if not self.weekend < frozenset(range(7)):
            raise InvalidSchedule(f"calendar {self.name}: a week needs a working day, and weekdays are 0–6")
        if len(self.days) > MOST_DAYS:
            raise InvalidSchedule(
                f"calendar {self.name}: {len(self.days)} days, at most {MOST_DAYS}; weekends need not be listed, "
                "nor years long gone"
            )

    def is_business_day(self, day: date) -> bool:
        """Whether it is worked on that day."""
        return day not in self.days and day.isoweekday() % 7 not in self.weekend

    def ends_before(self, day: date) -> bool:
        """Whether the day is in a later year than all listed ones: its holidays are unknown."""
        return bool(self.days) and max(self.days).year < day.year

    def __str__(self) -> str:
        """Name, revision and all that counts: `AT@3[SAT,SUN 2026:0101,0106]`."""
        return f"{self.name}@{self.revision}[{f'{weekend_text(self.weekend)} {days_text(self.days)}'.rstrip()}]"


def calendar_name(name: object) -> str:
    """The name, if it can be one. Raises InvalidSchedule."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSchedule(
            f"calendar name {quoted(str(name))}: at most 40 letters, digits, dots, dashes and underscores, as AT"
        )
    return name


def weekend_text(weekend: Iterable[int]) -> str:
    """The days of a weekend by name, `-` for none."""
    return ",".join(WEEKDAY.names[day] for day in sorted(weekend, key=lambda day: day or 7)) or "-"


def days_text(days: Iterable[date]) -> str:
    """Days by year: `2026:0101,0106 2027:0101`."""
    years = groupby(sorted(days), key=lambda day: day.year)
    return " ".join(f"{year:04}:{','.join(f'{day:%m%d}' for day in days)}" for year, days in years)


def parse_weekend(text: str) -> frozenset[int]:
    """The weekdays of `SAT,SUN`; none of `-`. Raises InvalidSchedule."""
    if text.strip() == "-":
        return frozenset()
    return frozenset(WEEKDAY.value(name.strip().upper()) for name in text.split(","))


def parse_calendar(text: str) -> Calendar | str:
    """A calendar's whole text, or a mere name: a calendar that is still to be bound. Raises InvalidSchedule."""
    text = text.strip()
    if "@" not in text:
        return calendar_name(text)
    match = _SNAPSHOT.fullmatch(text)
    if match is None:
        raise InvalidSchedule(f"calendar {quoted(text)}: write a name, or AT@3[SAT,SUN 2026:0101,0106]")
    return calendar_of(match["name"], int(match["revision"]), match["weekend"], match["years"])


def calendar_of(name: str, revision: int, weekend: str, days: str) -> Calendar:
    """The calendar of texts as `weekend_text` and `days_text` write them. Raises InvalidSchedule."""
    found = frozenset(day for year in days.split() for day in _days(year))
    return Calendar(name=name, revision=revision, weekend=parse_weekend(weekend), days=found)


def _days(text: str) -> Iterable[date]:
    match = _YEAR.fullmatch(text)
    if match is None:
        raise InvalidSchedule(f"calendar year {quoted(text)}: write 2026:0101,0106")
    for day in match[2].split(","):
        try:
            yield date.fromisoformat(match[1] + day)
        except ValueError:
            raise InvalidSchedule(f"calendar day {quoted(match[1] + day)}: there is no such date") from None


Roll = Literal["skip", "drop", "following", "preceding", "modified_following"]


class BusinessDays:
    """The days that are worked on: all but weekends and the listed days."""

    def __init__(self, weekend: frozenset[int], listed: Iterable[int] = ()) -> None:
        self.listed = tuple(sorted(day for day in listed if weekday(day) not in weekend))
        self._days = ChangedDays(_weeks(weekend), self.listed, ()) if self.listed else _weeks(weekend)
        self.within = self._days.within

    def following(self, day: int) -> int:
        """The day itself if it is one, else the next one."""
        return self._days.at(self._days.rank(day))

    def preceding(self, day: int) -> int:
        """The day itself if it is one, else the one before."""
        return self._days.at(self._days.rank(day + 1) - 1)

    def rolled(self, day: int, roll: Roll) -> int:
        """The day to which a slot of this day moves."""
        following = self.following(day)
        if roll == "preceding" or (roll == "modified_following" and following > month_around(day)[1]):
            return self.preceding(day)
        return following


#: What calendars do to days: a roll, or only the n-th business day of each month (from its end if negative).
Arrangement: TypeAlias = Roll | int


def _picked(days: DaySet, how: Arrangement, business: BusinessDays, first: int, last: int) -> Iterator[int]:
    """The days from `first` up to and including `last` that come out of it, in no order."""
    if isinstance(how, int):
        wanted = set(days.within(first, last))
        while first <= last:
            begin, end = month_around(first)
            open_days = business.within(begin, end)
            if abs(how) <= len(open_days):
                yield from wanted & {open_days[how - 1 if how > 0 else how]}
            first = end + 1
    elif how in ("skip", "drop"):
        yield from (day for day in days.within(first, last) if business.following(day) == day)
    else:
        reach = business.preceding(first - 1), business.following(last + 1)
        moved = {business.rolled(day, how) for day in days.within(*reach)}
        yield from (day for day in moved if first <= day <= last)


@lru_cache(maxsize=1024)
def arranged(days: DaySet, how: Arrangement, calendars: tuple[Calendar, ...]) -> DaySet:
    """What these calendars together make of the days; computed once for all schedules that share it."""
    weekend = frozenset[int]().union(*(calendar.weekend for calendar in calendars))
    usual = BusinessDays(weekend)
    business = BusinessDays(
        weekend, {day.toordinal() - _BEFORE_1970 - 1 for calendar in calendars for day in calendar.days}
    )

    def around(listed: int) -> tuple[int, int]:
        """The first and last day at which a listed day can make a difference."""
        return (
            month_around(listed) if isinstance(how, int) else (business.preceding(listed), business.following(listed))
        )

    missing: set[int] = set()
    added: set[int] = set()
    for first, last in set(map(around, business.listed)):
        expected, found = (set(_picked(days, how, one, first, last)) for one in (usual, business))
        missing |= expected - found
        added |= found - expected
    recurring = _every_year(days, how, weekend)
    return ChangedDays(recurring, missing, added) if missing or added else recurring


@lru_cache(maxsize=1024)
def _every_year(days: DaySet, how: Arrangement, weekend: frozenset[int]) -> Days:
    usual = BusinessDays(weekend)
    return Days(lambda first, last: _picked(days, how, usual, first, last))


@lru_cache(maxsize=128)
def _weeks(weekend: frozenset[int]) -> Days:
    return Days(lambda first, last: (day for day in range(first, last + 1) if weekday(day) not in weekend))
