"""Describe a schedule in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise, product
from typing import Final

from slotwise.model.durations import format_duration
from slotwise.schedules.base import EPOCH, Schedule
from slotwise.schedules.basic import Daily, Disabled, Every, FixedDelay, Once
from slotwise.schedules.business_days import Calendar, weekend_text
from slotwise.schedules.combinators import (
    AnyOf,
    Arranged,
    Between,
    BusinessDay,
    Excluding,
    Spread,
    Succession,
)
from slotwise.schedules.cron import Cron
from slotwise.schedules.cron_fields import (
    DAY,
    FIELDS,
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    WEEKDAY,
    DayRule,
    Field,
    both_needed,
    has_hash,
    month_days,
    week_days,
)
from slotwise.schedules.days import LAST
from slotwise.schedules.local_time import LocalSchedule

_MOST_TIMES: Final = 8
_BY_NAME: Final = "H is decided by the name of the job"
_EVERY_HOUR: Final = " of every hour"
_WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_ORDINALS: Final = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", LAST: "last"}


def cron_words(expression: str, day_rule: DayRule) -> str:
    """The expression (as `Cron.expression` has it) as the beginning of a sentence."""
    texts = expression.split()
    texts = texts if len(texts) == 6 else ["0", *texts]
    second, minute, hour, day, month, weekday = (
        field.hashed(text, None) for field, text in zip(FIELDS, texts, strict=True)
    )
    times, dates = _times(second, minute, hour), _dates(day, month, weekday, day_rule)
    return times if times.endswith(_EVERY_HOUR) and dates == " every day" else f"{times}{dates}"


# Times of day. ----------------------------------------------------------------------------------------------------


def _times(second: str, minute: str, hour: str) -> str:
    if any(map(has_hash, (second, minute, hour))):
        return _hashed_times(second, minute, hour)
    seconds, minutes, hours = (
        field.values(field.plain(text)) for field, text in ((SECOND, second), (MINUTE, minute), (HOUR, hour))
    )
    if len(seconds) * len(minutes) * len(hours) <= _MOST_TIMES:
        clocks = [f"{h:02}:{m:02}" + (f":{s:02}" if s else "") for h, m, s in product(hours, minutes, seconds)]
        return f"At {listed(clocks)}"
    if len(minutes) == 1 and seconds == [0]:
        return _hourly(hours, minutes[0])
    parts = [_units(SECOND, seconds) if seconds != [0] else "", _units(MINUTE, minutes), _hours(hours)]
    if len(minutes) == 60 and seconds != [0]:
        parts[1] = ""
    if not parts[2] and parts[1].startswith("at "):
        parts[1] += _EVERY_HOUR
    told = ", ".join(part for part in parts if part)
    return told[0].upper() + told[1:]


def _hourly(hours: list[int], minute: int) -> str:
    step = _step(hours)
    if step == 1 and len(hours) < 24:
        return f"Every hour from {hours[0]:02}:{minute:02} to {hours[-1]:02}:{minute:02}"
    if step and hours[0] < step and hours[-1] + step >= 24:
        return f"Every {f'{step} hours' if step > 1 else 'hour'} from {hours[0]:02}:{minute:02} on"
    return f"At :{minute:02} in the hours {ranges([str(hour) for hour in hours], hours)}"


def _hashed_times(second: str, minute: str, hour: str) -> str:
    named = [
        f"{field.name} {text}" for field, text in ((HOUR, hour), (MINUTE, minute), (SECOND, second)) if text != "0"
    ]
    return f"At {listed(named)} ({_BY_NAME})"


def _units(field: Field, values: list[int]) -> str:
    size = field.high + 1
    if len(values) == size:
        return f"every {field.name}"
    step = _step(values)
    if step and len(values) * step == size:
        return f"every {step} {field.name}s" + (f" from :{values[0]:02}" if values[0] else "")
    return f"at {field.name}{'s' if len(values) > 1 else ''} {ranges([str(v) for v in values], values)}"


def _hours(values: list[int]) -> str:
    if len(values) == 24:
        return ""
    step = _step(values)
    if step and len(values) * step == 24:
        return f"every {step} hours from {values[0]:02}:00 on"
    if values[-1] - values[0] == len(values) - 1:
        return f"from {values[0]:02}:00 to {values[-1]:02}:59"
    return f"in the hours {ranges([str(v) for v in values], values)}"


def _step(values: Sequence[int]) -> int | None:
    steps = {later - earlier for earlier, later in pairwise(values)}
    return steps.pop() if len(steps) == 1 else None


# Dates. -----------------------------------------------------------------------------------------------------------


def _dates(day: str, month: str, weekday: str, day_rule: DayRule) -> str:
    months = MONTH.values(MONTH.plain(month)) if not has_hash(month) else None
    of_month, of_week = _month_days(day), _week_days(weekday)
    names = "" if months and len(months) == 12 else _month_names(month, months)
    inside = f" in {names}" if names else ""
    both = both_needed(day_rule, day, weekday)
    if not (of_month or of_week if both else of_month and of_week):
        return f" every day{inside}"
    if not of_week:
        return f" on {of_month} of {names or 'the month'}"
    if not of_month:
        return f"{', ' if ' to ' in of_week else ' on '}{of_week}{inside}"
    if both:
        return f" on {of_month} of {names or 'the month'} if it is {of_week}"
    return f" on {of_month} of {names or 'the month'}, and also{inside} on {of_week} (either is enough)"


def _month_names(text: str, months: list[int] | None) -> str:
    if months is None:
        return f"{text} ({_BY_NAME})"
    return ranges([_MONTHS[number - 1] for number in months], months)


def _month_days(text: str) -> str:
    """The days of a month; empty if it is all of them."""
    if text in ("*", "?"):
        return ""
    if has_hash(text):
        return f"day {text} ({_BY_NAME})"
    found = month_days(text)
    values = DAY.values(found.plain) if found.plain else []
    if len(values) == 31:
        return ""
    parts = [f"day{'s' if len(values) > 1 else ''} {ranges([str(v) for v in values], values)}"] if values else []
    parts += [_from_end(distance) for distance in sorted(found.from_end)]
    parts += [f"the weekday nearest to day {day}" for day in sorted(found.nearest)]
    parts += ["the last weekday"] if found.last_working_day else []
    return listed(parts)


def _from_end(distance: int) -> str:
    return "the last day" if distance == 0 else f"the day {distance} before the last"


def _week_days(text: str) -> str:
    """The days of a week; empty if it is all of them."""
    if text in ("*", "?"):
        return ""
    if has_hash(text):
        return f"weekday {text} ({_BY_NAME})"
    found = week_days(text)
    values = sorted(WEEKDAY.values(found.plain), key=lambda day: day or 7) if found.plain else []
    if len(values) == 7:
        return ""
    names = ranges([_WEEKDAYS[day] for day in values], [day or 7 for day in values])
    nth = [f"the {_ORDINALS[number]} {_WEEKDAYS[day]} of the month" for day, number in sorted(found.nth)]
    return listed([*filter(None, [names]), *nth])


# Lists. -----------------------------------------------------------------------------------------------------------


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    *earlier, last = parts or [""]
    return f"{', '.join(earlier)} and {last}" if earlier else last


def ranges(names: Sequence[str], values: Sequence[int]) -> str:
    """The names of these values; three or more that follow each other as a range."""
    runs: list[list[int]] = []
    for index, value in enumerate(values):
        if runs and values[runs[-1][-1]] == value - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts: list[str] = []
    for run in runs:
        parts += [f"{names[run[0]]} to {names[run[-1]]}"] if len(run) > 2 else [names[index] for index in run]
    return listed(parts)


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


def explain(schedule: Schedule) -> list[str]:
    """Return sentences that say when a schedule fires."""
    match schedule:
        case Cron():
            words = cron_words(schedule.expression, schedule.day_rule)
            return [f"{words}, by the clocks of {schedule.zone.key}.", *_clock_changes(schedule)]
        case Daily():
            times = [time.isoformat("seconds").removesuffix(":00") for time in schedule.times]
            return [f"At {listed(times)} every day, by the clocks of {schedule.zone.key}.", *_clock_changes(schedule)]
        case Every():
            begin = "1970" if schedule.anchor == EPOCH else _moment(schedule.anchor)
            grid = f"Every {format_duration(schedule.interval)} of real time, on a grid that counts from {begin}."
            return [grid, "Changes of clocks do not matter."]
        case FixedDelay():
            return [f"{format_duration(schedule.delay)} after the end of the run before, by the database's clock."]
        case Once():
            at = _moment(schedule.at)
            return [f"Once, at {at}; a job that is planned later runs at once, unless the slot ran already."]
        case Disabled():
            return ["Never: the job keeps its row and does not run."]
        case AnyOf():
            parts = [f"  {number}. {' '.join(explain(part))}" for number, part in enumerate(schedule.schedules, 1)]
            return ["At the slots of any of these; those that coincide are one:", *parts]
        case Between():
            start = f"from {_moment(schedule.start)} on" if schedule.start else ""
            end = f"before {_moment(schedule.end)}" if schedule.end else ""
            return [*explain(schedule.schedule), f"Only {' and '.join(filter(None, (start, end)))}."]
        case Spread():
            return [*explain(schedule.schedule), f"Each run is due {format_duration(schedule.by)} after its slot."]
        case Excluding():
            closed, roll = _calendars(schedule), _ROLLS[schedule.roll]
            told = f"Around {closed}: where a slot falls on a day off, {roll}."
            return [*explain(schedule.schedule), told]
        case BusinessDay():
            around = f" of {_calendars(schedule)}" if schedule.calendars else " (Monday to Friday)"
            return [*explain(schedule.schedule), f"Only on the {_nth(schedule.n)} of the month{around}."]
        case Succession():
            before, after = " ".join(explain(schedule.before)), " ".join(explain(schedule.after))
            return [f"Up to {_moment(schedule.at)}: {before}", f"Then: {after}"]
    return [str(schedule)]


def _clock_changes(schedule: LocalSchedule) -> list[str]:
    if schedule.zone.utcoffset(None) is not None:  # one offset for ever
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
