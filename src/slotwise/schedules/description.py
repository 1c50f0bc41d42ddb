"""Schedules for people, in a few words: ``02:00 Europe/Vienna``; and the zone in which they read
slots.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from functools import singledispatch
from itertools import product
from typing import Final
from zoneinfo import ZoneInfo

from slotwise.model.durations import format_duration
from slotwise.model.records import EPOCH
from slotwise.schedules.base import (
    Disabled,
    Every,
    FixedDelay,
    Once,
    Schedule,
    instant_text,
)
from slotwise.schedules.combinators import AnyOf, Arranged, Between, Spread
from slotwise.schedules.cron import Cron
from slotwise.schedules.cron_fields import has_hash
from slotwise.schedules.local_time import Daily, time_text
from slotwise.schedules.text import readable

UTC: Final = ZoneInfo("UTC")
_MOST_TIMES: Final = 8


def zone_of(schedule: Schedule | str | None) -> ZoneInfo:
    """Return the zone in which people read the slots of a schedule, or of its text; UTC if it has
    none or several.
    """
    found = readable(schedule) if isinstance(schedule, str) else schedule
    return UTC if found is None else found.last.local_zone or UTC


def describe_schedule(schedule: Schedule | str) -> str:
    """Return the schedule that applies last in a few words; a text that cannot be parsed is
    returned as it is.
    """
    found = readable(schedule) if isinstance(schedule, str) else schedule
    return str(schedule) if found is None else _short(found.last)


@singledispatch
def _short(schedule: Schedule) -> str:
    return str(schedule)


@_short.register
def _(schedule: Cron) -> str:
    _, _, _, day, month, weekday = schedule.texts
    times = ", ".join(few_times(schedule))
    if not times or month != "*" or day not in "*?":
        return f"{schedule.expression} {schedule.zone.key}"
    if weekday not in "*?":
        times = f"{times} {weekday}"
    return f"{times} {schedule.zone.key}"


@_short.register
def _(schedule: Daily) -> str:
    return f"{', '.join(map(time_text, schedule.times))} {schedule.zone.key}"


@_short.register
def _(schedule: Every) -> str:
    every = f"every {_spaced(schedule.interval)}"
    is_usual = schedule.anchor == EPOCH
    return every if is_usual else f"{every} from {instant_text(schedule.anchor)}"


@_short.register
def _(schedule: FixedDelay) -> str:
    return f"{_spaced(schedule.delay)} after each run"


@_short.register
def _(schedule: Once) -> str:
    return f"once at {instant_text(schedule.at)}"


@_short.register
def _(schedule: Disabled) -> str:
    return "never"


@_short.register
def _(schedule: AnyOf) -> str:
    return "; ".join(map(_short, schedule.schedules))


@_short.register
def _(schedule: Between) -> str:
    text = _short(schedule.schedule)
    if schedule.start is not None:
        text += f" from {local_moment(schedule.start, schedule)}"
    if schedule.end is not None:
        text += f" until {local_moment(schedule.end, schedule)}"
    return text


@_short.register
def _(schedule: Spread) -> str:
    return f"{_short(schedule.schedule)}, {_spaced(schedule.by)} later"


@_short.register
def _(schedule: Arranged) -> str:
    calendars = ", ".join(schedule.calendars)
    text = _short(schedule.schedule)
    if isinstance(schedule.how, str):
        return f"{text} excluding {calendars} ({schedule.how})"
    nth = "last business day" if schedule.how == -1 else f"business day {schedule.how}"
    return f"{text}, {nth}{f' of {calendars}' if calendars else ''}"


def _spaced(duration: timedelta) -> str:
    """``1 h 30 min``, where `format_duration` writes ``1h30m``."""
    text = format_duration(duration)
    parts = re.findall(r"([0-9.]+)([a-z]+)", text)
    words = [f"{number} {'min' if unit == 'm' else unit}" for number, unit in parts]
    return " ".join(words) or text


def local_moment(instant: datetime, schedule: Schedule) -> str:
    """The instant by the clocks of the schedule's zone, with its offset."""
    zone = schedule.local_zone or UTC
    return (
        instant_text(instant)
        if zone.key == "UTC"
        else instant.astimezone(zone).isoformat()
    )


def few_times(schedule: Cron) -> list[str]:
    """The times of day of an expression, if they are few and do not depend on the job's name."""
    seconds, minutes, hours = schedule.values[:3]
    count = len(seconds) * len(minutes) * len(hours)
    if count > _MOST_TIMES or any(map(has_hash, schedule.texts[:3])):
        return []
    return [time_text(time(*found)) for found in product(hours, minutes, seconds)]


def clock(instant: datetime, zone: ZoneInfo) -> str:
    """What the clocks of a zone say: `2026-03-29 03:00:00 CEST`."""
    local = instant.astimezone(zone)
    return f"{local.replace(tzinfo=None).isoformat(' ')} {local.tzname()}"
