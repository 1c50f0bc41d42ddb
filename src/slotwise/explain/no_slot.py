"""Say why an instant is no slot of a schedule: which field, time, calendar or bound excludes it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from slotwise.model.durations import format_duration
from slotwise.schedules import AnyOf, Cron, Daily, Disabled, Every, FixedDelay, Once, Schedule
from slotwise.schedules.base import EPOCH, MICROSECOND, instant_text
from slotwise.schedules.combinators import Around, Arranged, Between, Excluding
from slotwise.schedules.cron_fields import DAY, FIELDS, MONTH, WEEKDAY
from slotwise.schedules.description import short_text
from slotwise.schedules.local_time import Walk, time_text

#: Parts of a union that are explained one by one.
MOST_PARTS = 3


def why_no_slot(schedule: Schedule, instant: datetime) -> Iterator[str]:
    """Yield sentences that say what excludes the instant; none if nothing simple does."""
    schedule = schedule.last
    match schedule:
        case Disabled() | FixedDelay():
            return
        case Once():
            yield f"Its only slot is {instant_text(schedule.at)}."
        case Every():
            beside = (instant - schedule.anchor) % schedule.interval
            yield f"It is {format_duration(beside)} after a slot of the grid of {format_duration(schedule.interval)}."
        case Daily():
            local = instant.astimezone(schedule.zone)
            if local.time() in schedule.times:
                yield _clocks(schedule.zone.key)
            else:
                times = ", ".join(map(time_text, schedule.times))
                yield f"The time of day is {local:%H:%M:%S} in {schedule.zone.key}; the schedule has {times}."
        case Cron():
            yield from _cron(schedule, instant)
        case Between() if schedule.start is not None and instant < schedule.start:
            yield f"The schedule begins at {instant_text(schedule.start)}."
        case Between() if schedule.end is not None and instant >= schedule.end:
            yield f"The schedule ended before {instant_text(schedule.end)}."
        case Around():
            yield from why_no_slot(schedule.schedule, instant)
        case Arranged():
            yield from _arranged(schedule, instant)
        case AnyOf():
            parts = schedule.schedules
            for part in parts[:MOST_PARTS]:
                yield f"Not of {short_text(part)}: {' '.join(why_no_slot(part, instant))}"
            if len(parts) > MOST_PARTS:
                yield f"Nor is it a slot of the {len(parts) - MOST_PARTS} other schedules."


def _cron(schedule: Cron, instant: datetime) -> Iterator[str]:
    """Name each field that excludes the instant."""
    local = instant.astimezone(schedule.zone)
    now = (local.second, local.minute, local.hour, local.day, local.month, 0)
    refused = [
        f"{field.name} field {text} excludes {value}"
        for field, text, value, values in zip(FIELDS, schedule.texts, now, schedule.values, strict=True)
        if field not in (DAY, WEEKDAY) and value not in values
    ]
    month_fits = not any(one.startswith(MONTH.name) for one in refused)
    if month_fits and not _has_day(schedule, local):
        rule = " and " if schedule.dates.both else " or "
        days = zip((DAY, WEEKDAY), schedule.texts[3::2], strict=True)
        given = [f"{field.name} {text}" for field, text in days if text not in "*?"]
        refused.append(f"{rule.join(given)} excludes {local:%A}, day {local.day}")
    clock = f"{local:%Y-%m-%d %H:%M:%S} in {schedule.zone.key}"
    if refused:
        yield f"The local time is {clock}: the {'; the '.join(refused)}."
    elif instant.microsecond:
        yield f"The local time is {clock} and {instant.microsecond} µs; slots are at whole seconds."
    else:
        yield _clocks(schedule.zone.key)


def _arranged(schedule: Arranged, instant: datetime) -> Iterator[str]:
    inner = schedule.schedule
    if inner.next_after(instant - MICROSECOND) != instant:
        yield from why_no_slot(inner, instant)
        return
    names = ", ".join(schedule.calendars) or "Monday to Friday"
    day = instant.astimezone(inner.zone)
    if isinstance(schedule, Excluding):
        yield f"{day:%A %Y-%m-%d} is a day off in calendar {names}, and roll={schedule.roll!r}."
    else:
        yield f"{day:%A %Y-%m-%d} is not the wanted business day of the month ({names})."


def _has_day(schedule: Cron, local: datetime) -> bool:
    line, day = schedule.line, (local.date() - EPOCH.date()).days
    return not isinstance(line, Walk) or bool(line.pattern.days.within(day, day))


def _clocks(zone: str) -> str:
    return f"The clocks of {zone} change that night: this local time comes twice, or not at all."
