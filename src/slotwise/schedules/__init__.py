"""Schedules: when jobs are due.

Cron(expression, tz=…)      a cron expression
Daily("02:00", …, tz=)      at these local times
Every("5m")                 at a fixed rate
FixedDelay("2m")            after the end of the run
Once(at)                    at one instant
Disabled()                  never
AnyOf(a, b, …)              at the slots of all of them
a.between(start, end)       … within bounds
a.excluding("AT", roll=…)   … around business calendars
a.nth_business_day(3)       … on the third business day of a month
a.last_business_day()       … on the last one
succeed(a, instant, b)      a up to the instant, then b
parse_schedule(text)        the schedule of a text
"""

from slotwise.schedules.any_of import AnyOf
from slotwise.schedules.base import Schedule
from slotwise.schedules.business.business_days import Roll
from slotwise.schedules.business.calendar import Calendar
from slotwise.schedules.cron.cron import Cron
from slotwise.schedules.daily import Daily
from slotwise.schedules.disabled import Disabled
from slotwise.schedules.every import Every
from slotwise.schedules.fixed_delay import FixedDelay
from slotwise.schedules.once import Once
from slotwise.schedules.spread import spread_out
from slotwise.schedules.succession import succeed
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
