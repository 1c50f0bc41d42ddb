"""Schedules for people, in a few words: ``02:00 Europe/Vienna``; and the zone in which they read
slots.
"""

from __future__ import annotations

import re
from datetime import datetime, time
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
from slotwise.schedules.combinators import AnyOf, Between, BusinessDay, Excluding, Spread
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


def short_text(schedule: Schedule | str) -> str:
    """Return the schedule that applies last in a few words; a text that cannot be parsed is
    returned as it is.
    """
    found = readable(schedule) if isinstance(schedule, str) else schedule
    return str(schedule) if found is None else _short(found.last)


def _short(schedule: Schedule) -> str:
    match schedule:
        case Cron():
            times = ", ".join(few_times(schedule))
            weekday = schedule.texts[5]
            daily = times if weekday in "*?" else f"{times} {weekday}"
            is_plain = times and schedule.texts[4] == "*" and schedule.texts[3] in "*?"
            return f"{daily if is_plain else schedule.expression} {schedule.zone.key}"
        case Daily():
            return f"{', '.join(map(time_text, schedule.times))} {schedule.zone.key}"
        case Every():
            anchor = (
                "" if schedule.anchor == EPOCH else f" from {instant_text(schedule.anchor)}"
            )
            return f"every {_spaced(format_duration(schedule.interval))}{anchor}"
        case FixedDelay():
            return f"{_spaced(format_duration(schedule.delay))} after each run"
        case Once():
            return f"once at {instant_text(schedule.at)}"
        case Disabled():
            return "never"
        case AnyOf():
            return "; ".join(map(_short, schedule.schedules))
        case Between():
            bounds = (("from", schedule.start), ("until", schedule.end))
            told = [
                f" {word} {local_moment(bound, schedule)}"
                for word, bound in bounds
                if bound is not None
            ]
            return f"{_short(schedule.schedule)}{''.join(told)}"
        case Spread():
            return f"{_short(schedule.schedule)}, {_spaced(format_duration(schedule.by))} later"
        case Excluding():
            return (
                f"{_short(schedule.schedule)} excluding "
                f"{', '.join(schedule.calendars)} ({schedule.roll})"
            )
        case BusinessDay():
            of = f" of {', '.join(schedule.calendars)}" if schedule.calendars else ""
            nth = "last business day" if schedule.n == -1 else f"business day {schedule.n}"
            return f"{_short(schedule.schedule)}, {nth}{of}"
    return str(schedule)


def _spaced(duration: str) -> str:
    """``1h30m`` becomes ``1 h 30 min``."""
    found = re.findall(r"([0-9.]+)([a-z]+)", duration)
    return (
        " ".join(f"{number} {'min' if unit == 'm' else unit}" for number, unit in found)
        or duration
    )


def local_moment(instant: datetime, schedule: Schedule) -> str:
    """The instant by the clocks of the schedule's zone, with its offset."""
    zone = schedule.local_zone or UTC
    return (
        instant_text(instant) if zone.key == "UTC" else instant.astimezone(zone).isoformat()
    )


def few_times(schedule: Cron) -> list[str]:
    """The times of day of an expression, if they are few and do not depend on the job's name."""
    seconds, minutes, hours = schedule.values[:3]
    if (
        any(map(has_hash, schedule.texts[:3]))
        or len(seconds) * len(minutes) * len(hours) > _MOST_TIMES
    ):
        return []
    return [time_text(time(*found)) for found in product(hours, minutes, seconds)]


def clock(instant: datetime, zone: ZoneInfo) -> str:
    """What the clocks of a zone say: `2026-03-29 03:00:00 CEST`."""
    local = instant.astimezone(zone)
    return f"{local.replace(tzinfo=None).isoformat(' ')} {local.tzname()}"
