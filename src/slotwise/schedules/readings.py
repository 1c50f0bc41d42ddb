"""How Quartz, Spring, croniter and Debian's cron read an expression that slotwise reads in its own
way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.model.records import TICK
from slotwise.schedules.base import Schedule
from slotwise.schedules.combinators import AnyOf, Arranged
from slotwise.schedules.cron import Cron
from slotwise.schedules.cron_fields import WEEKDAY, quoted
from slotwise.schedules.local_time import Walk
from slotwise.schedules.text import readable
from slotwise.schedules.zones import zone_named

_DIGITS: Final = re.compile(r"(?<![#/0-9])[0-9]+")
_NO_COUNTERPART: Final = re.compile(r"L-[0-9]+W|(29|30|31)W")
_YEARS: Final = re.compile(r"([0-9]{4})(?:-([0-9]{4}))?")
_OPEN_STEP: Final = re.compile(r"(?<![0-9A-Z-])([0-9]|[A-Z]{3})/")
_STARRED_STEP: Final = re.compile(r"\*/([0-9]+)")
_ANY: Final = ("*", "?")


def quartz_schedule(expression: str, tz: str | ZoneInfo) -> Schedule:
    """Return the schedule with the slots of a Quartz expression; see `Cron.quartz`."""
    texts = re.sub(r"(?<![^\s,])/", "*/", expression.upper()).split()
    if len(texts) not in (6, 7):
        raise InvalidSchedule(
            f"{quoted(expression)} has {len(texts)} fields; Quartz has 6 (second minute hour "
            "day-of-month month day-of-week), or 7 with a year"
        )
    second, minute, hour, day, month, weekday = texts[:6]
    if day not in _ANY and weekday not in _ANY:
        raise InvalidSchedule(
            f"{quoted(expression)}: Quartz requires ? in one of the two day fields"
        )
    if match := _NO_COUNTERPART.search(day):
        raise InvalidSchedule(f"Quartz's {match[0]} has no counterpart; write other days")
    weekday = "SAT" if weekday == "L" else _DIGITS.sub(_quartz_weekday, weekday)
    zone = zone_named(tz)
    if not _has_changes(zone):
        found = Cron(" ".join((second, minute, hour, day, month, weekday)), zone)
    else:  # Quartz goes by the clocks also where slotwise continues in real time
        times = second, minute.replace("*", "0-59"), hour.replace("*", "0-23")
        fields = " ".join((*times, day, month, weekday))
        found = Cron(fields, zone, gap="skip", fold="second")
    years = texts[6] if len(texts) == 7 else "*"
    return found if years in _ANY else _in_years(found, years)


def _has_changes(zone: ZoneInfo) -> bool:
    return zone.utcoffset(None) is None


def _quartz_weekday(digits: re.Match[str]) -> str:
    if not 1 <= int(digits[0]) <= 7:
        raise InvalidSchedule(
            f"Quartz's day-of-week must be 1–7 or SUN–SAT, got {quoted(digits[0])}"
        )
    return WEEKDAY.names[int(digits[0]) - 1]


def _in_years(schedule: Cron, years: str) -> Schedule:
    """Raises InvalidSchedule if none of these years has a slot."""
    parts: list[Schedule] = []
    for item in years.split(","):
        match = _YEARS.fullmatch(item)
        if match is None:
            raise InvalidSchedule(f"year {quoted(item)}: write 2026, 2026-2028 or a list")
        first = datetime(int(match[1]), 1, 1, tzinfo=schedule.zone)
        end = datetime(int(match[2] or match[1]) + 1, 1, 1, tzinfo=schedule.zone)
        if schedule.count_between(first - TICK, end - TICK):
            parts.append(schedule.between(first, end))
    if not parts:
        raise InvalidSchedule(f"{schedule} has no slot in {years}")
    return parts[0] if len(parts) == 1 else AnyOf(*parts)


def other_readings(schedule: Schedule | str) -> list[str]:
    """Return a sentence for each scheduler that reads a cron expression of a schedule, or of its
    text, otherwise: with the text that has that scheduler's slots.

    Only where an expression may come from there: six fields, `?`, or two restricted day fields.
    """
    known = readable(schedule) if isinstance(schedule, str) else schedule
    found: list[str] = []
    for leaf in known.last.leaves() if known else ():
        cron = leaf.schedule if isinstance(leaf, Arranged) else leaf
        if isinstance(cron, Cron):
            found += _readings(cron)
    return list(dict.fromkeys(found))


def _readings(schedule: Cron) -> Iterator[str]:
    day, weekday = schedule.texts[3], schedule.texts[5]
    has_seconds = len(schedule.expression.split()) == 6
    is_restricted = day not in _ANY and weekday not in _ANY
    if not is_restricted and (has_seconds or "?" in (day, weekday)):
        yield from _quartz_reading(schedule)
    if has_seconds:
        yield from _spring_readings(schedule)
        if "?" not in (day, weekday):
            yield from _croniter_reading(schedule)
    elif is_restricted and schedule.day_rule == "or" and "*" in (day[0], weekday[0]):
        vixie = Cron(schedule.expression, schedule.zone, day_rule="vixie")
        yield f"If it is from Debian's cron, where both days must match, write: {vixie}"


def _spring_readings(schedule: Cron) -> Iterator[str]:
    """Both days must match; steps of weekdays end with 7, Sunday; until 5.3 days count from 0."""
    *times, day, month, weekday = schedule.texts
    weekday = _OPEN_STEP.sub(r"\1-7/", weekday)
    old_day = _STARRED_STEP.sub(r"\1-31/\1", day)
    since_5_3 = [*times, day, month, weekday.replace("*/", "1-7/")]
    before = [*times, old_day, month, weekday]
    seen = [_picked(schedule)]
    for version, texts in (("", since_5_3), (" before 5.3", before)):
        with suppress(InvalidSchedule):
            found = Cron(" ".join(texts), schedule.zone, day_rule="and")
            if _picked(found) not in seen:
                seen.append(_picked(found))
                yield f"If it is from Spring{version}, with its rules for days, write: {found}"


def _picked(schedule: Cron) -> object:
    """The times and the days that an expression picks, however it is written."""
    days = schedule.line.pattern.days.kinds if isinstance(schedule.line, Walk) else None
    return schedule.values[:3], days


def _quartz_reading(schedule: Cron) -> Iterator[str]:
    try:
        quartz = quartz_schedule(" ".join(schedule.texts), schedule.zone)
    except InvalidSchedule as error:
        if "counterpart" in str(
            error
        ):  # else Quartz would refuse it, so it is from elsewhere
            yield f"{error}."
        return
    if isinstance(quartz, Cron) and _rules(quartz) != _rules(schedule):
        yield f"If it is from Quartz, where day 1 is Sunday and gaps are skipped, write: {quartz}"


def _rules(schedule: Cron) -> object:
    if not _has_changes(schedule.zone):
        return _picked(schedule)
    return _picked(schedule), schedule.fixed, schedule.gap, schedule.fold


def _croniter_reading(schedule: Cron) -> Iterator[str]:
    fields = schedule.expression.split()
    with suppress(InvalidSchedule):
        found = Cron(" ".join([fields[5], *fields[:5]]), schedule.zone)
        if _picked(found) != _picked(schedule):
            yield f"If it is from croniter, where the last field has the seconds, write: {found}"
