"""Schedules for people; and the zone in which they read slots."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from slotwise.schedules.base import Schedule
from slotwise.schedules.text import readable

UTC: Final = ZoneInfo("UTC")


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
    return str(schedule) if found is None else found.last.in_words()


def explain_schedule(schedule: Schedule) -> list[str]:
    """Return sentences that say when a schedule has slots."""
    return schedule.sentences()


def clock(instant: datetime, zone: ZoneInfo) -> str:
    """What the clocks of a zone say: `2026-03-29 03:00:00 CEST`."""
    local = instant.astimezone(zone)
    return f"{local.replace(tzinfo=None).isoformat(' ')} {local.tzname()}"
