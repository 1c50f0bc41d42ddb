"""What a schedule means, in words."""

from __future__ import annotations

from datetime import datetime
from functools import singledispatch
from typing import Final

from slotwise.model.durations import format_duration
from slotwise.schedules.any_of import AnyOf
from slotwise.schedules.base import Schedule
from slotwise.schedules.between import Between
from slotwise.schedules.business.arranged import Arranged, BusinessDay, Excluding
from slotwise.schedules.business.calendar import Calendar, weekend_text
from slotwise.schedules.cron.cron import Cron
from slotwise.schedules.cron.cron_words import cron_words, listed
from slotwise.schedules.daily import Daily
from slotwise.schedules.disabled import Disabled
from slotwise.schedules.every import Every
from slotwise.schedules.fixed_delay import FixedDelay
from slotwise.schedules.instants import EPOCH
from slotwise.schedules.local_time import LocalSchedule
from slotwise.schedules.once import Once
from slotwise.schedules.spread import Spread
from slotwise.schedules.succession import Succession, parts_of

_GAP: Final = {
    "end": "comes right after the gap",
    "shift": "comes later by the length of the gap",
    "skip": "does not come",
}
_FOLD: Final = {"first": "comes the first time", "second": "comes the second time", "both": "comes both times"}
_ROLLS: Final = {
    "skip": "its slot exists, does not run, and the ledger says so",
    "drop": "there is no slot at all",
    "following": "it moves to the next business day, same local time",
    "preceding": "it moves to the business day before, same local time",
    "modified_following": "it moves to the next business day, same local time; where that is in another month, "
    "to the one before",
}


@singledispatch
def explain(schedule: Schedule) -> list[str]:
    """Sentences that say when a schedule fires."""
    return [str(schedule)]


@explain.register
def _cron(schedule: Cron) -> list[str]:
    words = cron_words(schedule.expression, schedule.day_rule)
    return [f"{words}, by the clocks of {schedule.zone.key}.", *_clock_changes(schedule)]


@explain.register
def _daily(schedule: Daily) -> list[str]:
    times = [time.isoformat("seconds").removesuffix(":00") for time in schedule.times]
    return [f"At {listed(times)} every day, by the clocks of {schedule.zone.key}.", *_clock_changes(schedule)]


def _clock_changes(schedule: LocalSchedule) -> list[str]:
    if _is_without_changes(schedule):
        return []
    if not schedule.fixed:
        return [
            "When clocks change, real time goes on: it fires in both passes of a repeated hour, and what a gap "
            "swallows does not exist."
        ]
    return [
        f"When clocks change, a time that does not exist {_GAP[schedule.gap]}, and one that exists twice "
        f"{_FOLD[schedule.fold]}."
    ]


def _is_without_changes(schedule: LocalSchedule) -> bool:
    return schedule.zone.utcoffset(None) is not None


@explain.register
def _every(schedule: Every) -> list[str]:
    begin = "1970" if schedule.anchor == EPOCH else _moment(schedule.anchor)
    return [
        f"Every {format_duration(schedule.interval)} of real time, on a grid that counts from {begin}.",
        "Changes of clocks do not matter.",
    ]


@explain.register
def _fixed_delay(schedule: FixedDelay) -> list[str]:
    return [f"{format_duration(schedule.delay)} after the end of the run before, by the database's clock."]


@explain.register
def _once(schedule: Once) -> list[str]:
    return [f"Once, at {_moment(schedule.at)}; a job that is planned later runs at once, unless the slot ran already."]


@explain.register
def _disabled(schedule: Disabled) -> list[str]:
    del schedule
    return ["Never: the job keeps its row and does not run."]


@explain.register
def _any_of(schedule: AnyOf) -> list[str]:
    parts = [f"  {number}. {' '.join(explain(part))}" for number, part in enumerate(schedule.schedules, start=1)]
    return ["At the slots of any of these; those that coincide are one:", *parts]


@explain.register
def _between(schedule: Between) -> list[str]:
    start = f"from {_moment(schedule.start)} on" if schedule.start else ""
    end = f"before {_moment(schedule.end)}" if schedule.end else ""
    return [*explain(schedule.schedule), f"Only {' and '.join(filter(None, (start, end)))}."]


@explain.register
def _spread(schedule: Spread) -> list[str]:
    return [*explain(schedule.schedule), f"Each run is due {format_duration(schedule.by)} after its slot."]


@explain.register
def _excluding(schedule: Excluding) -> list[str]:
    told = f"Around {_calendars(schedule)}: where a slot falls on a day that is not worked on, {_ROLLS[schedule.roll]}."
    return [*explain(schedule.schedule), told]


@explain.register
def _business_day(schedule: BusinessDay) -> list[str]:
    around = f" of {_calendars(schedule)}" if schedule.calendars else " (Monday to Friday)"
    return [*explain(schedule.schedule), f"Only on the {_nth(schedule.n)} of the month{around}."]


@explain.register
def _succession(schedule: Succession) -> list[str]:
    return [
        f"Up to {_moment(part.until)}: {' '.join(explain(part.schedule))}"
        if part.until
        else f"Then: {' '.join(explain(part.schedule))}"
        for part in parts_of(schedule)
    ]


def _nth(n: int) -> str:
    if n == -1:
        return "last business day"
    ordinal = f"{abs(n)}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(abs(n) % 10 if not 10 < abs(n) < 14 else 0, 'th') }"
    return f"{ordinal} business day" if n > 0 else f"{ordinal} business day from the end"


def _calendars(schedule: Arranged) -> str:
    return listed([_calendar(name, bound) for name, bound in schedule.calendars.items()])


def _calendar(name: str, bound: Calendar | None) -> str:
    if bound is None:
        return f"calendar {name} (its days are in the database)"
    days = f"{len(bound.days)} day{'' if len(bound.days) == 1 else 's'}"
    return f"calendar {name} ({days}, weekend {weekend_text(bound.weekend)}, revision {bound.revision})"


def _moment(instant: datetime) -> str:
    return f"{instant.replace(tzinfo=None).isoformat(' ')} UTC"
