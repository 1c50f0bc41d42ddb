"""When a schedule has slots, in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from itertools import pairwise
from typing import Final

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
from slotwise.schedules.calendars import Calendar
from slotwise.schedules.combinators import AnyOf, Arranged, Between, Spread, Succession
from slotwise.schedules.cron import Cron
from slotwise.schedules.cron_fields import (
    FIELDS,
    HOUR,
    LAST,
    MINUTE,
    SECOND,
    Field,
    has_hash,
)
from slotwise.schedules.description import few_times, local_moment
from slotwise.schedules.local_time import Daily, LocalSchedule, time_text

_BY_NAME: Final = "(H is decided by the name of the job)"
_EVERY_HOUR: Final = " of every hour"
_WEEKDAYS: Final = (
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)
_MONTHS: Final = (
    "",
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_ORDINALS: Final = {
    1: "first",
    2: "second",
    3: "third",
    4: "fourth",
    5: "fifth",
    LAST: "last",
}


def _times(schedule: Cron) -> str:
    if any(map(has_hash, schedule.texts[:3])):
        clock = zip(FIELDS[2::-1], schedule.texts[2::-1], strict=True)
        parts = [f"{field.name} {text}" for field, text in clock if text != "0"]
        return f"At {listed(parts)} {_BY_NAME}"
    if times := few_times(schedule):
        return f"At {listed(times)}"
    seconds, minutes, hours = schedule.values[:3]
    has_seconds = list(seconds) != [0]
    parts = [_units(SECOND, seconds)] if has_seconds else []
    if len(minutes) < 60 or not has_seconds:
        parts.append(_units(MINUTE, minutes))
    if len(hours) < 24:
        parts.append(_units(HOUR, hours))
    elif parts[-1].startswith("at minute"):
        parts[-1] += _EVERY_HOUR
    told = ", ".join(parts)
    return told[0].upper() + told[1:]


def _units(field: Field, values: Sequence[int]) -> str:
    size = field.high + 1
    steps = {later - earlier for earlier, later in pairwise(values)}
    step = min(steps, default=size)
    if len(steps) != 1 or len(values) * step != size:
        if field is HOUR:
            return f"in the hours {ranges(values)}"
        return f"at {field.name}{'s' if len(values) > 1 else ''} {ranges(values)}"
    if step == 1:
        return f"every {field.name}"
    every = f"every {step} {field.name}s"
    if not values[0]:
        return every
    return (
        f"{every} from {values[0]:02}:00 on"
        if field is HOUR
        else f"{every} from :{values[0]:02}"
    )


def _dates(schedule: Cron) -> str:
    months = _months(schedule)
    of_month = _month_days(schedule)
    of_week = _week_days(schedule)
    both = schedule.dates.both
    within = f" in {months}" if months else ""
    restricted = [days for days in (of_month, of_week) if days]
    if len(restricted) < (1 if both else 2):
        return f" every day{within}"
    if not of_month:
        return f"{', ' if ' to ' in of_week else ' on '}{of_week}{within}"
    days = f" on {of_month} of {months or 'the month'}"
    if not of_week:
        return days
    if both:
        return f"{days} if it is {of_week}"
    return f"{days}, and also{within} on {of_week} (either is enough)"


def _months(schedule: Cron) -> str:
    """The months; empty if it is all of them."""
    if has_hash(schedule.texts[4]):
        return f"{schedule.texts[4]} {_BY_NAME}"
    months = schedule.values[4]
    return "" if len(months) == 12 else ranges(months, _MONTHS)


def _month_days(schedule: Cron) -> str:
    """The days of a month; empty if it is all of them."""
    if has_hash(schedule.texts[3]):
        return f"day {schedule.texts[3]} {_BY_NAME}"
    values = schedule.values[3]
    dates = schedule.dates
    if len(values) == 31:
        return ""
    parts = [f"day{'s' if len(values) > 1 else ''} {ranges(values)}"] if values else []
    parts += [
        f"the day {left} before the last" if left else "the last day"
        for left in sorted(dates.from_end)
    ]
    parts += [
        f"the weekday nearest to day {day}" if day < 31 else "the last weekday"
        for day in sorted(dates.nearest)
    ]
    return listed(parts)


def _week_days(schedule: Cron) -> str:
    """The days of a week, Sunday at its end; empty if it is all of them."""
    if has_hash(schedule.texts[5]):
        return f"weekday {schedule.texts[5]} {_BY_NAME}"
    values = sorted(day or 7 for day in schedule.values[5])
    if len(values) == 7:
        return ""
    parts = [ranges(values, _WEEKDAYS)] if values else []
    parts += [
        f"the {_ORDINALS[number]} {_WEEKDAYS[day]} of the month"
        for day, number in sorted(schedule.dates.nth)
    ]
    return listed(parts)


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    *earlier, last = parts or [""]
    return f"{', '.join(earlier)} and {last}" if earlier else last


def ranges(values: Sequence[int], names: Sequence[str] = ()) -> str:
    """The values, or their names; three or more that follow each other as a range."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][-1] == value - 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    parts: list[str] = []
    for run in runs:
        told = [names[value] if names else str(value) for value in run]
        parts += [f"{told[0]} to {told[-1]}"] if len(told) > 2 else told
    return listed(parts)


_GAP: Final = {
    "end": "comes right after the gap",
    "shift": "comes later by the length of the gap",
    "skip": "does not come",
}
_FOLD: Final = {
    "first": "comes the first time",
    "second": "comes the second time",
    "both": "comes both times",
}
_ROLLS: Final = {
    "skip": "its slot does not run, and the ledger says why",
    "drop": "there is no slot at all",
    "following": "it moves to the next business day, same local time",
    "preceding": "it moves to the previous business day, same local time",
    "modified_following": "it moves to the next business day, same local time; if that is in "
    "another month, to the previous one",
}


@singledispatch
def explain_schedule(schedule: Schedule) -> list[str]:
    """Return sentences that say when a schedule has slots."""
    return [str(schedule)]


@explain_schedule.register
def _(schedule: Cron) -> list[str]:
    words = f"{_times(schedule)}{_dates(schedule)}"
    return _by_clocks(schedule, words.replace(f"{_EVERY_HOUR} every day", _EVERY_HOUR))


@explain_schedule.register
def _(schedule: Daily) -> list[str]:
    times = listed([time_text(one) for one in schedule.times])
    return _by_clocks(schedule, f"At {times} every day")


@explain_schedule.register
def _(schedule: Every) -> list[str]:
    begin = "1970" if schedule.anchor == EPOCH else instant_text(schedule.anchor)
    interval = format_duration(schedule.interval)
    return [
        f"Every {interval} of real time, counted from {begin}.",
        "Changes of clocks do not matter.",
    ]


@explain_schedule.register
def _(schedule: FixedDelay) -> list[str]:
    delay = format_duration(schedule.delay)
    return [f"{delay} after the end of the previous run, by the database's clock."]


@explain_schedule.register
def _(schedule: Once) -> list[str]:
    at = instant_text(schedule.at)
    late = "a job that is planned later runs at once, unless the slot ran already"
    return [f"Once, at {at}; {late}."]


@explain_schedule.register
def _(schedule: Disabled) -> list[str]:
    return ["Never: the job keeps its row and does not run."]


@explain_schedule.register
def _(schedule: AnyOf) -> list[str]:
    parts = [
        f"  {number}. {' '.join(explain_schedule(part))}"
        for number, part in enumerate(schedule.schedules, 1)
    ]
    return ["At the slots of any of these; those that coincide are one:", *parts]


@explain_schedule.register
def _(schedule: Between) -> list[str]:
    bounds = []
    if schedule.start is not None:
        bounds.append(f"from {local_moment(schedule.start, schedule)} on")
    if schedule.end is not None:
        bounds.append(f"before {local_moment(schedule.end, schedule)}")
    return [*explain_schedule(schedule.schedule), f"Only {' and '.join(bounds)}."]


@explain_schedule.register
def _(schedule: Spread) -> list[str]:
    by = format_duration(schedule.by)
    return [*explain_schedule(schedule.schedule), f"Each run is due {by} after its slot."]


@explain_schedule.register
def _(schedule: Arranged) -> list[str]:
    calendars = listed([_calendar(*one) for one in schedule.calendars.items()])
    if isinstance(schedule.how, str):
        told = (
            f"Around {calendars}: if a slot falls on a day off, {_ROLLS[schedule.how]}."
        )
    else:
        of = f" of {calendars}" if calendars else " (Monday to Friday)"
        told = f"Only on the {_nth(schedule.how)} of the month{of}."
    return [*explain_schedule(schedule.schedule), told]


@explain_schedule.register
def _(schedule: Succession) -> list[str]:
    before = " ".join(explain_schedule(schedule.before))
    after = " ".join(explain_schedule(schedule.after))
    until = local_moment(schedule.at, schedule.before)
    return [f"Up to {until}: {before}", f"Then: {after}"]


def _by_clocks(schedule: LocalSchedule, words: str) -> list[str]:
    first = f"{words}, by the clocks of {schedule.zone.key}."
    has_changes = schedule.zone.utcoffset(None) is None
    return [first, _clock_changes(schedule)] if has_changes else [first]


def _clock_changes(schedule: LocalSchedule) -> str:
    if schedule.fixed:
        return (
            f"When clocks change, a time that does not exist {_GAP[schedule.gap]}, and "
            f"one that exists twice {_FOLD[schedule.fold]}."
        )
    return (
        "When clocks change, real time continues: it fires in both passes of a "
        "repeated hour, and not in an hour that does not exist."
    )


def _nth(n: int) -> str:
    if n == -1:
        return "last business day"
    number = abs(n)
    suffix = "th"
    if number not in (11, 12, 13):
        suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, suffix)
    ordinal = f"{number}{suffix} business day"
    return ordinal if n > 0 else f"{ordinal} from the end"


def _calendar(name: str, bound: Calendar | None) -> str:
    if bound is None:
        return f"calendar {name} (its days are in the database)"
    days = f"{len(bound.days)} day{'' if len(bound.days) == 1 else 's'}"
    if bound.worked:
        days = f"{days}, {len(bound.worked)} worked in spite of the weekend"
    return f"calendar {name} ({days}, weekend {bound.weekend_text}, revision {bound.revision})"
