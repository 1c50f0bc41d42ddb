"""Reads Quartz's expressions."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from slotwise import AnyOf, Cron, InvalidSchedule, Schedule
from slotwise.spi import quoted, zone_named

_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_TICK: Final = timedelta(microseconds=1)
_DIGITS: Final = re.compile(r"(?<![#/0-9])[0-9]+")
_NO_COUNTERPART: Final = re.compile(r"L-[0-9]+W|(29|30|31)W")
_YEARS: Final = re.compile(r"([0-9]{4})(?:-([0-9]{4}))?")
_ANY: Final = ("*", "?")


def quartz_schedule(expression: str, tz: str | ZoneInfo) -> Schedule:
    """Return the schedule with the slots of a Quartz expression; see `Cron.quartz`."""
    zone = zone_named(tz)
    second, minute, hour, *days, years = _fields(expression)
    if zone.utcoffset(None) is None:  # Quartz goes by the clocks, also with intervals
        times = second, minute.replace("*", "0-59"), hour.replace("*", "0-23")
        found = Cron(" ".join((*times, *days)), zone, gap="skip", fold="second")
    else:
        found = Cron(" ".join((second, minute, hour, *days)), zone)
    return found if years in _ANY else _in_years(found, years)


def _fields(expression: str) -> tuple[str, ...]:
    """The seven fields, with names of weekdays. Raises InvalidSchedule."""
    texts = re.sub(r"(?<![^\s,])/", "*/", expression.upper()).split()
    if len(texts) not in (6, 7):
        raise InvalidSchedule(
            f"{quoted(expression)} has {len(texts)} fields; Quartz has 6 (second minute hour "
            "day-of-month month day-of-week), or 7 with a year"
        )
    day, weekday = texts[3], texts[5]
    if day not in _ANY and weekday not in _ANY:
        raise InvalidSchedule(
            f"{quoted(expression)}: Quartz requires ? in one of the two day fields"
        )
    if match := _NO_COUNTERPART.search(day):
        raise InvalidSchedule(
            f"Quartz's {match[0]} has no counterpart; write other days"
        )
    texts[5] = "SAT" if weekday == "L" else _DIGITS.sub(_quartz_weekday, weekday)
    return (*texts, "*")[:7]


def _quartz_weekday(digits: re.Match[str]) -> str:
    if not 1 <= int(digits[0]) <= 7:
        raise InvalidSchedule(
            f"Quartz's day-of-week must be 1–7 or SUN–SAT, got {quoted(digits[0])}"
        )
    return _WEEKDAYS[int(digits[0]) - 1]


def _in_years(schedule: Cron, years: str) -> Schedule:
    """Raises InvalidSchedule if none of these years has a slot."""
    parts: list[Schedule] = []
    for item in years.split(","):
        match = _YEARS.fullmatch(item)
        if match is None:
            raise InvalidSchedule(
                f"year {quoted(item)}: write 2026, 2026-2028 or a list"
            )
        first = datetime(int(match[1]), 1, 1, tzinfo=schedule.zone)
        end = datetime(int(match[2] or match[1]) + 1, 1, 1, tzinfo=schedule.zone)
        if schedule.count_between(first - _TICK, end - _TICK):
            parts.append(schedule.between(first, end))
    if not parts:
        raise InvalidSchedule(f"{schedule} has no slot in {years}")
    return parts[0] if len(parts) == 1 else AnyOf(*parts)
