"""Business calendars, and days arranged around those that they do not work on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import lru_cache, partial
from itertools import groupby
from typing import Final, Literal, TypeAlias

from slotwise.errors import InvalidSchedule
from slotwise.model.plugged_in import plugged_in
from slotwise.schedules.cron_fields import WEEKDAY, quoted
from slotwise.schedules.days import Days, month_around, number_of, weekday

MOST_DAYS: Final = 1000
"""So many days fit into one calendar: it travels inside the text of each schedule that uses it."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,39}")
_SNAPSHOT: Final = re.compile(
    r"(?P<name>[^@\[\]]+)@(?P<revision>[0-9]{1,18})\[(?P<weekend>\S+)(?P<days>( \S+)*)\]"
)
_YEAR: Final = re.compile(r"([0-9]{4}):((?:[0-9]{4},)*[0-9]{4})")
_WORKED: Final = re.compile(r"\+([0-9]{4}-[0-9]{2}-[0-9]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """Days that are not worked on: a weekend, by default Saturday and Sunday, and single days;
    `worked` are days of a weekend on which work is done nevertheless.

    Weekdays count from Sunday = 0. `revision` rises with each change in the database. Raises
    InvalidSchedule.
    """

    name: str
    revision: int = 0
    weekend: frozenset[int] = frozenset({0, 6})
    days: frozenset[date] = field(default_factory=frozenset)
    worked: frozenset[date] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        for name in ("weekend", "days", "worked"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        calendar_name(self.name)
        if not self.weekend < frozenset(range(7)):
            raise self._invalid("a week needs a working day, and weekdays are 0–6")
        if both := self.days & self.worked:
            raise self._invalid(f"{min(both)} is worked and not worked; remove one")
        if (count := len(self.days | self.worked)) > MOST_DAYS:
            raise self._invalid(
                f"{count} days, at most {MOST_DAYS}; weekends need not be listed, nor years "
                "long gone"
            )

    def _invalid(self, what: str) -> InvalidSchedule:
        return InvalidSchedule(f"calendar {self.name}: {what}")

    @classmethod
    def country(cls, code: str, years: Iterable[int] | None = None) -> Calendar:
        """Return the public holidays of a country (``AT``), a part of it (``DE-BY``) or a market
        (``XNYS``), under that name; by default from 2025 to three years ahead.

        Needs the extra ``calendars``. Raises ConfigurationError without it, and for an unknown
        code, with near matches.
        """
        source = plugged_in("slotwise.calendar_sources", "country")
        found = source(code, years or range(2025, datetime.now(UTC).year + 4))
        return cls(
            name=code.upper(),
            weekend=found.weekend,
            days=found.days,
            worked=found.worked,
        )

    def is_business_day(self, day: date) -> bool:
        """Whether it is worked on that day."""
        is_usual = day not in self.days and day.isoweekday() % 7 not in self.weekend
        return is_usual or day in self.worked

    def ends_before(self, day: date) -> bool:
        """Whether the day is in a later year than all listed ones: its holidays are unknown."""
        return bool(self.days) and max(self.days).year < day.year

    @property
    def weekend_text(self) -> str:
        """The days of the weekend by name, as `SAT,SUN`; `-` for none."""
        days = sorted(self.weekend, key=lambda day: day or 7)
        return ",".join(WEEKDAY.names[day] for day in days) or "-"

    @property
    def days_text(self) -> str:
        """The days by year, then those worked on: `2026:0101,0106 2027:0101 +2026-01-10`."""
        years = groupby(sorted(self.days), key=lambda day: day.year)
        texts = [
            f"{year:04}:{','.join(map('{:%m%d}'.format, days))}"
            for year, days in years
        ]
        return " ".join([*texts, *(f"+{day}" for day in sorted(self.worked))])

    @staticmethod
    def parse_weekend(text: str) -> frozenset[int]:
        """Return the weekdays of `SAT,SUN`; none of `-`. Raises InvalidSchedule."""
        if text.strip() == "-":
            return frozenset()
        return frozenset(
            WEEKDAY.value(name.strip().upper()) for name in text.split(",")
        )

    def as_json(self) -> dict[str, object]:
        """Name, revision, weekend and days, as `slotwise calendar show --json` prints them."""
        return {
            "calendar": self.name,
            "revision": self.revision,
            "weekend": self.weekend_text,
            "days": [day.isoformat() for day in sorted(self.days)],
            "worked": [day.isoformat() for day in sorted(self.worked)],
        }

    def __str__(self) -> str:
        """Name, revision and all that counts: `AT@3[SAT,SUN 2026:0101,0106 +2026-01-10]`."""
        content = f"{self.weekend_text} {self.days_text}".rstrip()
        return f"{self.name}@{self.revision}[{content}]"


def calendar_name(name: object) -> str:
    """The name, if it can be one. Raises InvalidSchedule."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSchedule(
            f"calendar name {quoted(str(name))}: at most 40 letters, digits, dots, "
            "dashes and underscores, as AT"
        )
    return name


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
        match["name"], int(match["revision"]), match["weekend"], match["days"]
    )


def calendar_of(name: str, revision: int, weekend: str, days: str) -> Calendar:
    """The calendar of its weekend's text and of its `days_text`. Raises InvalidSchedule."""
    free: set[date] = set()
    worked: set[date] = set()
    for part in days.split():
        if match := _WORKED.fullmatch(part):
            worked.add(_date(match[1]))
        elif match := _YEAR.fullmatch(part):
            free.update(_date(match[1] + day) for day in match[2].split(","))
        else:
            raise InvalidSchedule(
                f"calendar year {quoted(part)}: write 2026:0101,0106, or +2026-01-10 for a "
                "weekend day that is worked on"
            )
    return Calendar(
        name=name,
        revision=revision,
        weekend=Calendar.parse_weekend(weekend),
        days=frozenset(free),
        worked=frozenset(worked),
    )


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidSchedule(
            f"calendar day {quoted(text)}: there is no such date"
        ) from None


Roll = Literal["skip", "drop", "following", "preceding", "modified_following"]

#: What calendars do to days: a roll, or only the n-th business day of each month (from its end if
#: negative).
Arrangement: TypeAlias = Roll | int


@lru_cache(maxsize=1024)
def arranged(days: Days, how: Arrangement, calendars: tuple[Calendar, ...]) -> Days:
    """What these calendars together make of the days; computed once for all schedules that
    share it.
    """
    usual = _business_days(frozenset().union(*(one.weekend for one in calendars)))
    business, special = _business_days_of(calendars)
    if not business:
        return business
    changed = [
        near
        for day in special
        for near in (business.preceding(day), day, business.following(day))
    ]
    return Days(
        partial(_picked, days, how, usual),
        partial(_picked, days, how, business),
        changed,
    )


def _picked(
    days: Days, how: Arrangement, business: Days, first: int, last: int
) -> Iterable[int]:
    """The days from `first` up to and including `last` that come out of it, in no order."""
    if isinstance(how, int):
        return _numbered(days, how, business, first, last)
    if how in ("skip", "drop"):
        return set(days.within(first, last)).intersection(business.within(first, last))
    reach = business.preceding(first - 1), business.following(last + 1)
    moved = {_rolled(day, how, business) for day in days.within(*reach)}
    return (day for day in moved if first <= day <= last)


def _numbered(
    days: Days, n: int, business: Days, first: int, last: int
) -> Iterator[int]:
    while first <= last:
        begin, end = month_around(first)
        open_days = business.within(begin, end)
        if abs(n) <= len(open_days):
            yield from days.within(*[open_days[n - 1 if n > 0 else n]] * 2)
        first = end + 1


def _rolled(day: int, roll: Roll, business: Days) -> int:
    """The business day to which a slot of this day moves: itself, if it is one."""
    following = business.following(day)
    if roll == "preceding" or (
        roll == "modified_following" and following > month_around(day)[1]
    ):
        return business.preceding(day)
    return following


@lru_cache(maxsize=128)
def _business_days(weekend: frozenset[int]) -> Days:
    return Days(lambda first, last: _week_days(weekend, first, last))


def _week_days(weekend: frozenset[int], first: int, last: int) -> set[int]:
    return {day for day in range(first, last + 1) if weekday(day) not in weekend}


@lru_cache(maxsize=128)
def _business_days_of(calendars: tuple[Calendar, ...]) -> tuple[Days, frozenset[int]]:
    """The days on which all of these work, and those that do not go by the weekday alone."""
    weekend = frozenset[int]().union(*(one.weekend for one in calendars))
    special = {day for one in calendars for day in one.days | one.worked}
    worked = {
        number_of(day)
        for day in special
        if all(one.is_business_day(day) for one in calendars)
    }
    numbers = frozenset(map(number_of, special))

    def pick(first: int, last: int) -> Iterable[int]:
        usual = _week_days(weekend, first, last) - numbers
        return usual | {day for day in worked if first <= day <= last}

    usual = partial(_week_days, weekend)
    return Days(usual, pick, numbers), numbers
