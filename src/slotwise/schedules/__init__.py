"""Schedules: when jobs are due.

Cron(expression, tz=…)      a cron expression
Daily("02:00", …, tz=…)     at these local times
Every("5m")                 at a fixed rate
FixedDelay("2m")            after the end of the run
Disabled()                  never
succeed(a, instant, b)      a up to the instant, then b
parse_schedule(text)        the schedule of a text
"""

from slotwise.schedules.base import Schedule
from slotwise.schedules.cron import Cron
from slotwise.schedules.daily import Daily
from slotwise.schedules.delay import FixedDelay
from slotwise.schedules.disabled import Disabled
from slotwise.schedules.every import Every
from slotwise.schedules.succession import succeed
from slotwise.schedules.text import parse_schedule

__all__ = ["Cron", "Daily", "Disabled", "Every", "FixedDelay", "Schedule", "parse_schedule", "succeed"]
