"""Business calendars: which days are not worked on. A value, and its text inside a schedule's text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby
from typing import Final

from slotwise.errors import InvalidSchedule
from slotwise.schedules.cron.fields import WEEKDAY, quoted

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
