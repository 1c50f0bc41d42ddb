"""Schedules: pure functions from an instant to the next slot, with a text form. Imports model and
errors.
"""

from slotwise.schedules.base import Disabled, Every, FixedDelay, Once, Schedule
from slotwise.schedules.calendars import Calendar, Roll
from slotwise.schedules.combinators import AnyOf, spread_out, succeed
from slotwise.schedules.cron import Cron
from slotwise.schedules.local_time import Daily
from slotwise.schedules.text import parse_schedule

__all__ = [
    "AnyOf",
    "Calendar",
    "Cron",
    "Daily",
    "Disabled",
    "Every",
    "FixedDelay",
    "Once",
    "Roll",
    "Schedule",
    "parse_schedule",
    "spread_out",
    "succeed",
]
