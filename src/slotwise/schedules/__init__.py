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

from slotwise.schedules.base import Disabled, Every, FixedDelay, Once, Schedule
from slotwise.schedules.combinators import AnyOf, spread_out, succeed
from slotwise.schedules.cron import Cron
from slotwise.schedules.days import Calendar, Roll
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
