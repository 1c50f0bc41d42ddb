"""Business calendars, and the days arranged around them: left out, rolled, or the n-th business day of a month.

A calendar is a value with a text form inside a schedule's text. Weekends recur for ever, so their effect on a
pattern is computed once for each kind of year. The listed days of a calendar are few: the change that each of them
makes is computed around it, and the differences are kept in two lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from itertools import groupby
from typing import Final, Literal, TypeAlias

from slotwise.errors import InvalidSchedule
from slotwise.schedules.cron_fields import WEEKDAY, quoted
from slotwise.schedules.days import ChangedDays, Days, DaySet, month_around, weekday

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
            yield date(int(match[1]), int(day[:2]), int(day[2:]))
        except ValueError:
            raise InvalidSchedule(f"calendar day {quoted(match[1] + day)}: there is no such date") from None


Roll = Literal["skip", "drop", "following", "preceding", "modified_following"]

_EPOCH: Final = date(1970, 1, 1)


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
    business = BusinessDays(weekend, {(day - _EPOCH).days for calendar in calendars for day in calendar.days})

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
    """What is left of the days where a calendar lists none."""
    usual = BusinessDays(weekend)
    return Days(lambda first, last: _picked(days, how, usual, first, last))


@lru_cache(maxsize=128)
def _weeks(weekend: frozenset[int]) -> Days:
    return Days(lambda first, last: (day for day in range(first, last + 1) if weekday(day) not in weekend))
