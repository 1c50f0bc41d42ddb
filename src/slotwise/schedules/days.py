"""Days: those that a date pattern picks, business calendars, and the days arranged around these.

Days are numbered, so they are counted without walking. Years of one kind are alike, weekdays
included, so their days are picked once per kind. The years in which the listed days of a calendar
matter are picked one by one.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from calendar import isleap, monthrange
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import MAXYEAR, date
from functools import lru_cache, partial
from itertools import accumulate, groupby
from typing import Final, Literal, TypeAlias

from slotwise.errors import InvalidSchedule
from slotwise.schedules.cron_fields import LAST, WEEKDAY, quoted

_BEFORE_1970: Final = 719_162  # days from 1 January of year 1, a Monday, to 1970

#: The first day of each year, from year 1 on.
_YEAR_STARTS: Final = tuple(
    accumulate(
        (365 + isleap(year) for year in range(1, MAXYEAR + 1)), initial=-_BEFORE_1970
    )
)


def weekday(day: int) -> int:
    """Sunday = 0; 1 January 1970 was a Thursday."""
    return (day + 4) % 7


#: The kind of each year: the weekday on which it begins, plus 7 for a leap year. After 400 years
#: all recurs.
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
        of_month |= {length - distance for distance in self.from_end if distance < length}
        of_month |= {
            _nearest_working_day(min(day, length), length, first) for day in self.nearest
        }
        of_week = {
            day for day in range(1, length + 1) if (first + day - 1) % 7 in self.weekdays
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
        self, usual: Pick, unusual: Pick | None = None, unusual_days: Iterable[int] = ()
    ) -> None:
        self.kinds = {kind: _of_year(place, usual) for kind, place in _SPECIMENS.items()}
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


MOST_DAYS: Final = 1000
"""So many days fit into one calendar: it travels inside the text of each schedule that uses it."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,39}")
_SNAPSHOT: Final = re.compile(
    r"(?P<name>[^@\[\]]+)@(?P<revision>[0-9]{1,18})\[(?P<weekend>\S+)(?P<years>( \S+)*)\]"
)
_YEAR: Final = re.compile(r"([0-9]{4}):((?:[0-9]{4},)*[0-9]{4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """Days that are not worked on: a weekend, by default Saturday and Sunday, and single days.

    Weekdays count from Sunday = 0. `revision` rises with each change in the database. Raises
    InvalidSchedule.
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
            raise InvalidSchedule(
                f"calendar {self.name}: a week needs a working day, and weekdays are 0–6"
            )
        if len(self.days) > MOST_DAYS:
            raise InvalidSchedule(
                f"calendar {self.name}: {len(self.days)} days, at most "
                f"{MOST_DAYS}; weekends need not be listed, "
                "nor years long gone"
            )

    def is_business_day(self, day: date) -> bool:
        """Whether it is worked on that day."""
        return day not in self.days and day.isoweekday() % 7 not in self.weekend

    def ends_before(self, day: date) -> bool:
        """Whether the day is in a later year than all listed ones: its holidays are unknown."""
        return bool(self.days) and max(self.days).year < day.year

    @property
    def weekend_text(self) -> str:
        """The days of the weekend by name, as `SAT,SUN`; `-` for none."""
        days = sorted(self.weekend, key=lambda day: day or 7)
        return ",".join(WEEKDAY.names[day] for day in days) or "-"

    @staticmethod
    def parse_weekend(text: str) -> frozenset[int]:
        """Return the weekdays of `SAT,SUN`; none of `-`. Raises InvalidSchedule."""
        if text.strip() == "-":
            return frozenset()
        return frozenset(WEEKDAY.value(name.strip().upper()) for name in text.split(","))

    def as_json(self) -> dict[str, object]:
        """Name, revision, weekend and days, as `slotwise calendar show --json` prints them."""
        return {
            "calendar": self.name,
            "revision": self.revision,
            "weekend": self.weekend_text,
            "days": [day.isoformat() for day in sorted(self.days)],
        }

    def __str__(self) -> str:
        """Name, revision and all that counts: `AT@3[SAT,SUN 2026:0101,0106]`."""
        content = f"{self.weekend_text} {days_text(self.days)}".rstrip()
        return f"{self.name}@{self.revision}[{content}]"


def calendar_name(name: object) -> str:
    """The name, if it can be one. Raises InvalidSchedule."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSchedule(
            f"calendar name {quoted(str(name))}: at most 40 letters, digits, dots, "
            "dashes and underscores, as AT"
        )
    return name


def days_text(days: Iterable[date]) -> str:
    """Days by year: `2026:0101,0106 2027:0101`."""
    years = groupby(sorted(days), key=lambda day: day.year)
    return " ".join(
        f"{year:04}:{','.join(f'{day:%m%d}' for day in days)}" for year, days in years
    )


def parse_calendar(text: str) -> Calendar | str:
    """A calendar's whole text, or a mere name: a calendar that is still to be bound. Raises
    InvalidSchedule.
    """
    text = text.strip()
    if "@" not in text:
        return calendar_name(text)
    match = _SNAPSHOT.fullmatch(text)
    if match is None:
        raise InvalidSchedule(
            f"calendar {quoted(text)}: write a name, or AT@3[SAT,SUN 2026:0101,0106]"
        )
    return calendar_of(
        match["name"], int(match["revision"]), match["weekend"], match["years"]
    )


def calendar_of(name: str, revision: int, weekend: str, days: str) -> Calendar:
    """The calendar of its weekend's text and what `days_text` writes. Raises InvalidSchedule."""
    found = frozenset(day for year in days.split() for day in _days(year))
    return Calendar(
        name=name, revision=revision, weekend=Calendar.parse_weekend(weekend), days=found
    )


def _days(text: str) -> Iterable[date]:
    match = _YEAR.fullmatch(text)
    if match is None:
        raise InvalidSchedule(f"calendar year {quoted(text)}: write 2026:0101,0106")
    for day in match[2].split(","):
        try:
            yield date.fromisoformat(match[1] + day)
        except ValueError:
            raise InvalidSchedule(
                f"calendar day {quoted(match[1] + day)}: there is no such date"
            ) from None


Roll = Literal["skip", "drop", "following", "preceding", "modified_following"]


def _rolled(day: int, roll: Roll, business: Days) -> int:
    """The business day to which a slot of this day moves."""
    following = business.following(day)
    if roll == "preceding" or (
        roll == "modified_following" and following > month_around(day)[1]
    ):
        return business.preceding(day)
    return following


#: What calendars do to days: a roll, or only the n-th business day of each month (from its end if
#: negative).
Arrangement: TypeAlias = Roll | int


def _picked(
    days: Days, how: Arrangement, business: Days, first: int, last: int
) -> Iterator[int]:
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
        yield from set(days.within(first, last)).intersection(business.within(first, last))
    else:
        reach = business.preceding(first - 1), business.following(last + 1)
        stay = set(business.within(*reach))
        moved = {
            day if day in stay else _rolled(day, how, business)
            for day in days.within(*reach)
        }
        yield from (day for day in moved if first <= day <= last)


@lru_cache(maxsize=1024)
def arranged(days: Days, how: Arrangement, calendars: tuple[Calendar, ...]) -> Days:
    """What these calendars together make of the days; computed once for all schedules that
    share it.
    """
    weekend = frozenset[int]().union(*(calendar.weekend for calendar in calendars))
    listed = [
        day.toordinal() - _BEFORE_1970 - 1
        for calendar in calendars
        for day in calendar.days
    ]
    usual = _business_days(weekend)
    business = _business_days(weekend, frozenset(listed))
    if not business:
        return business
    changed = [
        near
        for day in listed
        for near in (business.preceding(day), day, business.following(day))
    ]
    return Days(
        partial(_picked, days, how, usual), partial(_picked, days, how, business), changed
    )


@lru_cache(maxsize=128)
def _business_days(weekend: frozenset[int], listed: frozenset[int] = frozenset()) -> Days:
    """The days that are worked on: all but weekends and the listed days."""

    def usual(first: int, last: int) -> Iterable[int]:
        return (day for day in range(first, last + 1) if weekday(day) not in weekend)

    return Days(usual, lambda first, last: set(usual(first, last)) - listed, listed)
