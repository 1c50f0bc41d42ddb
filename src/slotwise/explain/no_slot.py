"""Say what excludes an instant from a schedule: a field, a time of day, a calendar or a bound.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from slotwise.model.durations import format_duration, short_duration
from slotwise.model.records import EPOCH, TICK
from slotwise.schedules import Cron, Daily, Every, Schedule
from slotwise.schedules.base import instant_text
from slotwise.schedules.combinators import Arranged, Between, Spread
from slotwise.schedules.cron_fields import DAY, FIELDS, MONTH, WEEKDAY
from slotwise.schedules.local_time import Walk
from slotwise.schedules.words import time_text


def why_no_slot(schedule: Schedule, instant: datetime) -> Iterator[str]:
    """Yield sentences that say what excludes the instant; none if nothing simple does."""
    schedule = schedule.last
    match schedule:
        case Every():
            beside = (instant - schedule.anchor) % schedule.interval
            interval = format_duration(schedule.interval)
            yield f"It is {short_duration(beside)} after a multiple of {interval}."
        case Daily():
            if (
                local := instant.astimezone(schedule.zone)
            ).time() not in schedule.times:
                times = " and ".join(map(time_text, schedule.times))
                yield f"The time of day is {local:%H:%M:%S}, and the schedule has {times}."
        case Cron():
            yield from _fields(schedule, instant)
        case Between() if schedule.start is not None and instant < schedule.start:
            yield f"The schedule begins at {instant_text(schedule.start)}."
        case Between() if schedule.end is not None and instant >= schedule.end:
            yield f"The schedule ended before {instant_text(schedule.end)}."
        case Arranged() if schedule.schedule.next_after(instant - TICK) == instant:
            names = ", ".join(schedule.calendars) or "Monday to Friday"
            day = instant.astimezone(schedule.schedule.zone)
            why = (
                "is a day off"
                if isinstance(schedule.how, str)
                else "is not the wanted business day of the month"
            )
            yield f"{day:%A %Y-%m-%d} {why}, by the calendar {names}."
        case Between() | Spread() | Arranged():
            yield from why_no_slot(schedule.schedule, instant)


def _fields(schedule: Cron, instant: datetime) -> Iterator[str]:
    """Name each field that excludes the instant; day and weekday are one rule."""
    local = instant.astimezone(schedule.zone)
    now = (local.second, local.minute, local.hour, local.day, local.month, 0)
    fields = list(zip(FIELDS, schedule.texts, now, schedule.values, strict=True))
    for field, text, value, values in fields:
        if field not in (DAY, WEEKDAY) and value not in values:
            yield f"Its {field.name} field {text} excludes {value}."
    line = schedule.line
    day = (local.date() - EPOCH.date()).days
    has_month = any(
        field is MONTH and value in values for field, _, value, values in fields
    )
    if has_month and isinstance(line, Walk) and not line.pattern.days.within(day, day):
        given = [
            f"{field.name} {text}"
            for field, text, *_ in fields
            if field in (DAY, WEEKDAY) and text not in "*?"
        ]
        yield (
            f"Its {(' and ' if schedule.dates.both else ' or ').join(given)} excludes "
            f"{local:%A}, day {local.day}."
        )
