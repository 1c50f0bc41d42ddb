"""The fields of a cron expression in words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import time
from itertools import pairwise, product
from typing import TYPE_CHECKING, Final

from slotwise.schedules.cron_fields import (
    FIELDS,
    HOUR,
    LAST,
    MINUTE,
    SECOND,
    Field,
    has_hash,
)
from slotwise.schedules.words import listed, ranges, time_text

if TYPE_CHECKING:
    from slotwise.schedules.cron import Cron

_MOST_TIMES: Final = 8
_BY_NAME: Final = "(H is decided by the name of the job)"
EVERY_HOUR: Final = " of every hour"
_WEEKDAYS: Final = (
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)
_MONTHS: Final = (
    "",
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_ORDINALS: Final = {
    1: "first",
    2: "second",
    3: "third",
    4: "fourth",
    5: "fifth",
    LAST: "last",
}


def times_of(schedule: Cron) -> str:
    if any(map(has_hash, schedule.texts[:3])):
        clock = zip(FIELDS[2::-1], schedule.texts[2::-1], strict=True)
        parts = [f"{field.name} {text}" for field, text in clock if text != "0"]
        return f"At {listed(parts)} {_BY_NAME}"
    if times := few_times(schedule):
        return f"At {listed(times)}"
    seconds, minutes, hours = schedule.values[:3]
    has_seconds = list(seconds) != [0]
    parts = [_units(SECOND, seconds)] if has_seconds else []
    if len(minutes) < 60 or not has_seconds:
        parts.append(_units(MINUTE, minutes))
    if len(hours) < 24:
        parts.append(_units(HOUR, hours))
    elif parts[-1].startswith("at minute"):
        parts[-1] += EVERY_HOUR
    told = ", ".join(parts)
    return told[0].upper() + told[1:]


def _units(field: Field, values: Sequence[int]) -> str:
    size = field.high + 1
    steps = {later - earlier for earlier, later in pairwise(values)}
    step = min(steps, default=size)
    if len(steps) != 1 or len(values) * step != size:
        if field is HOUR:
            return f"in the hours {ranges(values)}"
        return f"at {field.name}{'s' if len(values) > 1 else ''} {ranges(values)}"
    if step == 1:
        return f"every {field.name}"
    every = f"every {step} {field.name}s"
    if not values[0]:
        return every
    return (
        f"{every} from {values[0]:02}:00 on"
        if field is HOUR
        else f"{every} from :{values[0]:02}"
    )


def dates_of(schedule: Cron) -> str:
    months = _months(schedule)
    of_month = _month_days(schedule)
    of_week = _week_days(schedule)
    both = schedule.dates.both
    within = f" in {months}" if months else ""
    restricted = [days for days in (of_month, of_week) if days]
    if len(restricted) < (1 if both else 2):
        return f" every day{within}"
    if not of_month:
        return f"{', ' if ' to ' in of_week else ' on '}{of_week}{within}"
    days = f" on {of_month} of {months or 'the month'}"
    if not of_week:
        return days
    if both:
        return f"{days} if it is {of_week}"
    return f"{days}, and also{within} on {of_week} (either is enough)"


def _months(schedule: Cron) -> str:
    """The months; empty if it is all of them."""
    if has_hash(schedule.texts[4]):
        return f"{schedule.texts[4]} {_BY_NAME}"
    months = schedule.values[4]
    return "" if len(months) == 12 else ranges(months, _MONTHS)


def _month_days(schedule: Cron) -> str:
    """The days of a month; empty if it is all of them."""
    if has_hash(schedule.texts[3]):
        return f"day {schedule.texts[3]} {_BY_NAME}"
    values = schedule.values[3]
    dates = schedule.dates
    if len(values) == 31:
        return ""
    parts = [f"day{'s' if len(values) > 1 else ''} {ranges(values)}"] if values else []
    parts += [
        f"the day {left} before the last" if left else "the last day"
        for left in sorted(dates.from_end)
    ]
    parts += [
        f"the weekday nearest to day {day}" if day < 31 else "the last weekday"
        for day in sorted(dates.nearest)
    ]
    return listed(parts)


def _week_days(schedule: Cron) -> str:
    """The days of a week, Sunday at its end; empty if it is all of them."""
    if has_hash(schedule.texts[5]):
        return f"weekday {schedule.texts[5]} {_BY_NAME}"
    values = sorted(day or 7 for day in schedule.values[5])
    if len(values) == 7:
        return ""
    parts = [ranges(values, _WEEKDAYS)] if values else []
    parts += [
        f"the {_ORDINALS[number]} {_WEEKDAYS[day]} of the month"
        for day, number in sorted(schedule.dates.nth)
    ]
    return listed(parts)


def few_times(schedule: Cron) -> list[str]:
    """The times of day of an expression, if they are few and do not depend on the job's name."""
    seconds, minutes, hours = schedule.values[:3]
    count = len(seconds) * len(minutes) * len(hours)
    if count > _MOST_TIMES or any(map(has_hash, schedule.texts[:3])):
        return []
    return [time_text(time(*found)) for found in product(hours, minutes, seconds)]
