"""Schedules in sentences, and as slots in local time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Final, Literal
from zoneinfo import ZoneInfo

from slotwise.model.durations import format_duration
from slotwise.model.records import EPOCH, from_micros, to_micros
from slotwise.schedules.base import (
    DAY,
    END,
    Disabled,
    Every,
    FixedDelay,
    Once,
    Schedule,
    instant_text,
)
from slotwise.schedules.combinators import (
    AnyOf,
    Arranged,
    Between,
    BusinessDay,
    Combined,
    Excluding,
    Spread,
    Succession,
)
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
from slotwise.schedules.days import weekend_text
from slotwise.schedules.description import UTC, clock, few_times, local_moment
from slotwise.schedules.local_time import Daily, LocalSchedule, Walk, time_text
from slotwise.schedules.zones import changes_between, span_at

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
)
_MONTHS: Final = (
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


def _cron(schedule: Cron) -> str:
    times = _times(schedule)
    dates = _dates(schedule)
    return (
        times
        if times.endswith(_EVERY_HOUR) and dates == " every day"
        else f"{times}{dates}"
    )


def _times(schedule: Cron) -> str:
    seconds, minutes, hours = schedule.values[:3]
    if any(map(has_hash, schedule.texts[:3])):
        clock = reversed(tuple(zip(FIELDS, schedule.texts[:3], strict=False)))
        return (
            "At "
            f"{listed([f'{field.name} {text}' for field, text in clock if text != '0'])} "
            f"{_BY_NAME}"
        )
    if times := few_times(schedule):
        return f"At {listed(times)}"
    parts = [
        _units(SECOND, seconds) if list(seconds) != [0] else "",
        _units(MINUTE, minutes),
        _units(HOUR, hours),
    ]
    if len(minutes) == 60 and parts[0]:
        parts[1] = ""
    if len(hours) == 24:
        parts[2] = ""
        parts[1] += _EVERY_HOUR if parts[1].startswith("at ") else ""
    told = ", ".join(filter(None, parts))
    return told[0].upper() + told[1:]


def _units(field: Field, values: Sequence[int]) -> str:
    size = field.high + 1
    steps = {later - earlier for earlier, later in pairwise(values)}
    step = min(steps, default=size)
    if len(steps) == 1 and len(values) * step == size:
        start = f" from {values[0]:02}:00 on" if field is HOUR else f" from :{values[0]:02}"
        return (
            f"every {step} {field.name}s{start if values[0] else ''}"
            if step > 1
            else f"every {field.name}"
        )
    if field is HOUR:
        return f"in the hours {ranges(values)}"
    return f"at {field.name}{'s' if len(values) > 1 else ''} {ranges(values)}"


def _dates(schedule: Cron) -> str:
    _, _, _, day, month, weekday = schedule.texts
    months = schedule.values[4]
    names = (
        f"{month} {_BY_NAME}"
        if has_hash(month)
        else ""
        if len(months) == 12
        else ranges(months, ["", *_MONTHS])
    )
    of_month = f"day {day} {_BY_NAME}" if has_hash(day) else _month_days(schedule)
    of_week = f"weekday {weekday} {_BY_NAME}" if has_hash(weekday) else _week_days(schedule)
    inside = f" in {names}" if names else ""
    if not (of_month or of_week if schedule.dates.both else of_month and of_week):
        return f" every day{inside}"
    if not of_week:
        return f" on {of_month} of {names or 'the month'}"
    if not of_month:
        return f"{', ' if ' to ' in of_week else ' on '}{of_week}{inside}"
    if schedule.dates.both:
        return f" on {of_month} of {names or 'the month'} if it is {of_week}"
    return (
        f" on {of_month} of {names or 'the month'}, and also{inside} on {of_week} "
        "(either is enough)"
    )


def _month_days(schedule: Cron) -> str:
    """The days of a month; empty if it is all of them."""
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
    values = sorted(day or 7 for day in schedule.values[5])
    if len(values) == 7:
        return ""
    nth = [
        f"the {_ORDINALS[number]} {_WEEKDAYS[day]} of the month"
        for day, number in sorted(schedule.dates.nth)
    ]
    return listed([*filter(None, [ranges(values, [*_WEEKDAYS, _WEEKDAYS[0]])]), *nth])


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
    told = [[names[value] if names else str(value) for value in run] for run in runs]
    return listed(
        [
            one
            for run in told
            for one in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)
        ]
    )


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
    "modified_following": "it moves to the next business day, same local time; if that is in another "
    "month, "
    "to the previous one",
}


def explain(schedule: Schedule) -> list[str]:
    """Return sentences that say when a schedule fires."""
    match schedule:
        case Cron():
            return [
                f"{_cron(schedule)}, by the clocks of {schedule.zone.key}.",
                *_clock_changes(schedule),
            ]
        case Daily():
            words = f"At {listed([time_text(one) for one in schedule.times])} every day"
            return [
                f"{words}, by the clocks of {schedule.zone.key}.",
                *_clock_changes(schedule),
            ]
        case Every():
            begin = "1970" if schedule.anchor == EPOCH else instant_text(schedule.anchor)
            grid = f"Every {format_duration(schedule.interval)} of real time, counted from {begin}."
            return [grid, "Changes of clocks do not matter."]
        case FixedDelay():
            return [
                f"{format_duration(schedule.delay)} after the end of the previous "
                "run, by the database's clock."
            ]
        case Once():
            at = instant_text(schedule.at)
            return [
                f"Once, at {at}; a job that is planned later runs at once, unless "
                "the slot ran already."
            ]
        case Disabled():
            return ["Never: the job keeps its row and does not run."]
        case AnyOf():
            parts = [
                f"  {number}. {' '.join(explain(part))}"
                for number, part in enumerate(schedule.schedules, 1)
            ]
            return ["At the slots of any of these; those that coincide are one:", *parts]
        case Between():
            start = (
                f"from {local_moment(schedule.start, schedule)} on"
                if schedule.start
                else ""
            )
            end = f"before {local_moment(schedule.end, schedule)}" if schedule.end else ""
            return [
                *explain(schedule.schedule),
                f"Only {' and '.join(filter(None, (start, end)))}.",
            ]
        case Spread():
            return [
                *explain(schedule.schedule),
                f"Each run is due {format_duration(schedule.by)} after its slot.",
            ]
        case Excluding():
            closed = _calendars(schedule)
            roll = _ROLLS[schedule.roll]
            told = f"Around {closed}: if a slot falls on a day off, {roll}."
            return [*explain(schedule.schedule), told]
        case BusinessDay():
            around = (
                f" of {_calendars(schedule)}"
                if schedule.calendars
                else " (Monday to Friday)"
            )
            return [
                *explain(schedule.schedule),
                f"Only on the {_nth(schedule.n)} of the month{around}.",
            ]
        case Succession():
            before = " ".join(explain(schedule.before))
            after = " ".join(explain(schedule.after))
            return [
                f"Up to {local_moment(schedule.at, schedule.before)}: {before}",
                f"Then: {after}",
            ]
    return [str(schedule)]


def _clock_changes(schedule: LocalSchedule) -> list[str]:
    if schedule.zone.utcoffset(None) is not None:  # its offset never changes
        return []
    if not schedule.fixed:
        return [
            "When clocks change, real time continues: it fires in both passes of "
            "a repeated hour, and not in an "
            "hour that does not exist."
        ]
    return [
        f"When clocks change, a time that does not exist {_GAP[schedule.gap]}, and "
        "one that exists twice "
        f"{_FOLD[schedule.fold]}."
    ]


def _nth(n: int) -> str:
    if n == -1:
        return "last business day"
    ordinal = f"{abs(n)}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(abs(n) % 10 if not 10 < abs(n) < 14 else 0, 'th') }"
    return f"{ordinal} business day" if n > 0 else f"{ordinal} business day from the end"


def _calendars(schedule: Arranged) -> str:
    told = []
    for name, bound in schedule.calendars.items():
        what = "its days are in the database"
        if bound is not None:
            days = f"{len(bound.days)} day{'' if len(bound.days) == 1 else 's'}"
            what = (
                f"{days}, weekend {weekend_text(bound.weekend)}, revision {bound.revision}"
            )
        told.append(f"calendar {name} ({what})")
    return listed(told)


Kind = Literal["slot", "skipped", "clocks", "missing"]

_FAR: Final = timedelta(days=366)
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of an outlook, with `local` time: a slot, a skipped slot, a clock change, or a
    missing local time.
    """

    kind: Kind
    instant: datetime
    local: str
    note: str = ""


def outlook(
    schedule: Schedule, after: datetime, count: int, zone: ZoneInfo
) -> Iterator[Entry]:
    """The next `count` slots after an instant, by the clocks of a zone, and the changes of its
    clocks between them.
    """
    t = after
    for slot in islice(schedule.slots(after, _NEVER), count):
        yield from _clocks(schedule, t, slot, zone)
        runs = schedule.runs(slot)
        notes = (
            "" if runs else "does not run: not a business day",
            marked(schedule, slot, zone),
        )
        note = "; ".join(filter(None, notes))
        yield Entry(
            kind="slot" if runs else "skipped",
            instant=slot,
            local=clock(slot, zone),
            note=note,
        )
        t = slot


def marked(schedule: Schedule, slot: datetime, zone: ZoneInfo) -> str:
    """What a change of the clocks has done to this slot, and which calendar lists no days of its
    year; else empty.
    """
    day = slot.astimezone(zone).date()
    ended = [
        one.name
        for one in schedule.calendars.values()
        if one is not None and one.ends_before(day)
    ]
    unknown = f"calendar {', '.join(ended)} lists no days of {day.year}" if ended else ""
    return "; ".join(filter(None, (_moved(schedule, slot), _pass(slot, zone), unknown)))


def _clocks(
    schedule: Schedule, a: datetime, b: datetime, zone: ZoneInfo
) -> Iterator[Entry]:
    """The changes of the clocks after `a` up to and including `b`; of a longer time, those of the
    year before `b`.
    """
    low = to_micros(max(a, b - _FAR)) + 1
    high = min(to_micros(b) + 1, END)
    for span in changes_between(zone, low, high):
        instant = from_micros(span.start)
        form = "%Y-%m-%d %H:%M" if abs(span.offset - span.before) >= DAY else "%H:%M"
        before, after = (
            f"{_local(span.start + offset):{form}}" for offset in (span.before, span.offset)
        )
        told = (
            f"clocks go {'forward' if span.offset > span.before else 'back'} from "
            f"{before} to {after}"
        )
        yield Entry(kind="clocks", instant=instant, local=clock(instant, zone), note=told)
        for walk in _walks(schedule):
            if walk.gap == "skip" and walk.zone == zone:
                for local in walk.swallowed(span):
                    yield Entry(
                        kind="missing",
                        instant=instant,
                        local=f"{_local(local)}",
                        note="does not exist",
                    )


def _moved(schedule: Schedule, slot: datetime) -> str:
    """Which local times have this slot because they do not exist; with their date, where it is
    another one.
    """
    at = to_micros(slot)
    found = {(local, walk.zone) for walk in _walks(schedule) for local in walk.moved_to(at)}
    moved = dict.fromkeys(
        str(
            _local(local)
            if local // DAY != (at + span_at(zone, at).offset) // DAY
            else _local(local).time()
        )
        for local, zone in sorted(found, key=lambda one: one[0])
    )
    return f"for {', '.join(moved)}, which does not exist" if moved else ""


def _pass(slot: datetime, zone: ZoneInfo) -> str:
    """Whether the clocks say this twice, and which time it is."""
    local = slot.astimezone(zone)
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        return ""
    return "the second time" if local.fold else "the first time"


def _walks(schedule: Schedule) -> Iterator[Walk]:
    match schedule:
        case Combined():
            yield from (walk for part in schedule.schedules for walk in _walks(part))
        case Succession():
            yield from (*_walks(schedule.before), *_walks(schedule.after))
        case _ if isinstance(schedule.line, Walk):
            yield schedule.line


def _local(micros: int) -> datetime:
    """A local time, given as if the clocks showed UTC."""
    return from_micros(micros).replace(tzinfo=None)
