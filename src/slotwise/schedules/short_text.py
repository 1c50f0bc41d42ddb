"""A schedule as people write it, for a column of a listing: ``02:00 Europe/Vienna``, ``every 3 s``.

The complete text form (``str``) also has what nobody reads: the days of a calendar, the anchor of a grid.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.model.durations import format_duration
from slotwise.schedules.base import EPOCH, Schedule, instant_text
from slotwise.schedules.basic import Daily, Disabled, Every, FixedDelay, Once
from slotwise.schedules.combinators import AnyOf, Between, BusinessDay, Excluding, Spread
from slotwise.schedules.cron import Cron
from slotwise.schedules.text import parse_schedule

UTC: Final = ZoneInfo("UTC")
#: Minute and hour of an expression that fires once a day.
_ONCE_A_DAY: Final = re.compile(r"([0-9]{1,2}) ([0-9]{1,2}) \* \* \*")


def zone_of(schedule: Schedule | str | None) -> ZoneInfo:
    """Return the zone in which people read the slots of a schedule, or of its text; UTC if it has none or several."""
    if isinstance(schedule, str):
        try:
            schedule = parse_schedule(schedule)
        except InvalidSchedule:
            return UTC
    return UTC if schedule is None else schedule.last.local_zone or UTC


def short_text(schedule: Schedule | str) -> str:
    """Return the schedule that applies last in a few words; a text that cannot be parsed is returned as it is."""
    if isinstance(schedule, str):
        try:
            schedule = parse_schedule(schedule)
        except InvalidSchedule:
            return str(schedule)
    return _short(schedule)


def _short(schedule: Schedule) -> str:
    schedule = schedule.last
    match schedule:
        case Cron():
            daily = _ONCE_A_DAY.fullmatch(schedule.expression)
            times = f"{int(daily[2]):02}:{int(daily[1]):02}" if daily else schedule.expression
            return f"{times} {schedule.zone.key}"
        case Daily():
            times = ", ".join(time.isoformat("seconds").removesuffix(":00") for time in schedule.times)
            return f"{times} {schedule.zone.key}"
        case Every():
            anchor = "" if schedule.anchor == EPOCH else f" from {instant_text(schedule.anchor)}"
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
            return f"{_short(schedule.schedule)}{_bound('from', schedule.start)}{_bound('until', schedule.end)}"
        case Spread():
            return f"{_short(schedule.schedule)}, {_spaced(format_duration(schedule.by))} later"
        case Excluding():
            return f"{_short(schedule.schedule)} excluding {', '.join(schedule.calendars)} ({schedule.roll})"
        case BusinessDay():
            of = f" of {', '.join(schedule.calendars)}" if schedule.calendars else ""
            nth = "last business day" if schedule.n == -1 else f"business day {schedule.n}"
            return f"{_short(schedule.schedule)}, {nth}{of}"
    return str(schedule)


def _spaced(duration: str) -> str:
    """``1h30m`` becomes ``1 h 30 min``."""
    found = re.findall(r"([0-9.]+)([a-z]+)", duration)
    return " ".join(f"{number} {'min' if unit == 'm' else unit}" for number, unit in found) or duration


def _bound(word: str, instant: datetime | None) -> str:
    return "" if instant is None else f" {word} {instant_text(instant)}"
