"""When Kubernetes must start a pod, so that each slot of a schedule finds one.

A CronJob fires by five fields in a zone. It may fire more often than the schedule has slots,
because a pod that finds no slot ends with 0; such a difference is a note. It must not fire less
often: such a schedule is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from slotwise import ConfigurationError, Cron, Daily, Every, Schedule
from slotwise.spi import Arranged, Between, Spread

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)
#: How many years of clock changes are compared.
_YEARS: Final = 3
_STAR: Final = ("*", "?")
_STEP: Final = re.compile(r"\*/[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """``schedule`` and ``zone`` of a CronJob; ``notes`` say where it differs from the job's
    schedule.

    ``lead``: how long before a slot it may fire, because five fields have no seconds.
    """

    schedule: str
    zone: str
    lead: timedelta = timedelta(0)
    notes: tuple[str, ...] = ()


def firing(job: str, schedule: Schedule, *, now: datetime | None = None) -> Firing:
    """Return when a CronJob fires for the job. Raise ConfigurationError if five fields cannot
    express it.

    Clock changes in the three years after ``now`` are compared.
    """
    notes: list[str] = []
    inner, is_rolled = _inner(schedule, notes)
    match inner:
        case Cron():
            bound = inner.bind(job)
            assert isinstance(bound, Cron)
            if bound is not inner:
                notes.append(f"H became {bound.expression}, as in the job's row")
            found = _of_cron(job, bound, notes, every_day=is_rolled)
        case Daily():
            found = _of_daily(inner, notes)
        case Every():
            found = _of_every(job, inner, notes)
        case _:
            raise _refused(
                job, schedule, "a CronJob has one expression of five fields"
            )
    if isinstance(inner, Cron | Daily):
        notes += _missing_in_gaps(inner.bind(job), found, now or datetime.now(UTC))
    return Firing(
        schedule=found.schedule, zone=found.zone, lead=found.lead, notes=tuple(notes)
    )


def _refused(job: str, schedule: Schedule, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"job {job!r}: {why}, which cannot express {schedule}; let a worker run it"
    )


def _inner(schedule: Schedule, notes: list[str]) -> tuple[Schedule, bool]:
    """Return the schedule within calendars, bounds and spread; and whether calendars move its
    slots to other days.
    """
    is_rolled = False
    while isinstance(schedule, Arranged | Between | Spread):
        if isinstance(schedule, Spread):
            notes.append(f"the pod waits for the job's spread of {schedule.by}")
        elif isinstance(schedule, Between):
            notes.append(
                "it fires outside of the schedule's bounds, too; such a pod ends with 0"
            )
        else:
            moves = isinstance(schedule.how, str) and schedule.how not in (
                "skip",
                "drop",
            )
            is_rolled = is_rolled or moves
            days = "on every day" if moves else "on days that the calendar excludes"
            notes.append(f"it fires {days}, too; a pod without a slot ends with 0")
        schedule = schedule.schedule
    return schedule, is_rolled


def _of_cron(job: str, schedule: Cron, notes: list[str], *, every_day: bool) -> Firing:
    seconds = schedule.values[0]
    if len(seconds) > 1:
        several = f"the seconds {schedule.texts[0]} are several"
        raise _refused(
            job, schedule, f"a CronJob fires once a minute at most, and {several}"
        )
    if seconds[0]:
        notes.append(
            f"it fires at the minute; the pod waits {seconds[0]} s for its slot"
        )
    _, minute, hour, _, month, _ = map(_numeric, schedule.texts, schedule.values)
    day, weekday = _days(schedule, notes, every_day=every_day)
    return Firing(
        schedule=f"{minute} {hour} {day} {month} {weekday}",
        zone=_zone(schedule),
        lead=timedelta(seconds=seconds[0]),
    )


def _numeric(text: str, values: Sequence[int]) -> str:
    """A field in numbers: no names, and no range across the end."""
    if text in ("*", "?", "*/1") or not values:
        return "*"
    if _STEP.fullmatch(text):
        return text
    runs = [
        [value for _, value in run]
        for _, run in groupby(enumerate(values), key=lambda one: one[1] - one[0])
    ]
    parts = [
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run))
        for run in runs
    ]
    return ",".join(parts)


def _days(schedule: Cron, notes: list[str], *, every_day: bool) -> tuple[str, str]:
    """The fields of the day and the weekday: those of the schedule, or every day."""
    dates = schedule.dates
    has_more = bool(dates.from_end or dates.nearest), bool(dates.nth)
    day, weekday = (
        "*" if more else _numeric(schedule.texts[at], schedule.values[at])
        for at, more in zip((3, 5), has_more, strict=True)
    )
    is_both = schedule.texts[3] not in _STAR and schedule.texts[5] not in _STAR
    if any(has_more):
        notes.append(
            f"L, W and # became every day ({schedule.expression}); a pod "
            "without a slot ends with 0"
        )
        # With "or", any day that the other field names counts as well.
        every_day = every_day or is_both
    elif is_both and schedule.day_rule != "or" and not every_day:
        notes.append(
            "it fires if either day field matches, the schedule if both do; a pod "
            "without a slot ends with 0"
        )
    return ("*", "*") if every_day else (day, weekday)


def _of_daily(schedule: Daily, notes: list[str]) -> Firing:
    minutes = {time.minute for time in schedule.times}
    hours = {time.hour for time in schedule.times}
    at = {(time.hour, time.minute) for time in schedule.times}
    if len(at) < len(schedule.times):
        raise ConfigurationError(
            "a CronJob fires once a minute at most, which cannot express "
            f"{schedule}; let a worker run it"
        )
    lead = max(time.second for time in schedule.times)
    if lead:
        notes.append(
            f"it fires at the minute; the pod waits up to {lead} s for its slot"
        )
    return Firing(
        schedule=_grid(minutes, hours, at, notes),
        zone=_zone(schedule),
        lead=timedelta(seconds=lead),
    )


def _of_every(job: str, schedule: Every, notes: list[str]) -> Firing:
    if (
        schedule.interval % _MINUTE
        or _DAY % schedule.interval
        or (schedule.anchor - _EPOCH) % _MINUTE
    ):
        raise _refused(
            job, schedule, "a CronJob repeats within a day, at whole minutes"
        )
    slots = list(
        schedule.slots(
            _EPOCH - timedelta(microseconds=1),
            _EPOCH + _DAY - timedelta(microseconds=1),
        )
    )
    at = {(slot.hour, slot.minute) for slot in slots}
    return Firing(
        schedule=_grid({m for _, m in at}, {h for h, _ in at}, at, notes),
        zone="Etc/UTC",
    )


def _grid(
    minutes: set[int], hours: set[int], at: set[tuple[int, int]], notes: list[str]
) -> str:
    """All these minutes in all these hours."""
    if len(minutes) * len(hours) > len(at):
        notes.append(
            "it fires at each of its minutes in each of its hours; a pod without a slot ends with 0"
        )
    return f"{_listed(sorted(minutes), 60)} {_listed(sorted(hours), 24)} * * *"


def _listed(values: Sequence[int], size: int) -> str:
    """The values, as a step where they are all multiples of one below ``size``."""
    step = values[1] if len(values) > 1 else size
    if (
        list(values) == list(range(0, size, step))
        and size % step == 0
        and len(values) > 1
    ):
        return "*" if step == 1 else f"*/{step}"
    return ",".join(map(str, values))


def _zone(schedule: Cron | Daily) -> str:
    return "Etc/UTC" if schedule.zone.key == "UTC" else schedule.zone.key


def _missing_in_gaps(
    schedule: Schedule, found: Firing, now: datetime
) -> Iterator[str]:
    """Yield a note if the clocks go forward over a slot: Kubernetes does not fire then.

    The controller looks for the next time that exists. Our interpretation of its five fields is
    ``gap="skip"`` and ``fold="both"``.
    """
    theirs = Cron(found.schedule, found.zone, gap="skip", fold="both")
    for change in _clock_changes(theirs, now):
        for slot in schedule.slots(change - _DAY, change + _DAY):
            minute = slot.replace(second=0, microsecond=0)
            if theirs.next_after(minute - timedelta(microseconds=1)) != minute:
                yield (
                    "the clocks go forward over its slot "
                    f"{slot.isoformat().replace('+00:00', 'Z')}, and it does not "
                    "fire: a worker or the next pod decides that slot by "
                    'catch_up; gap="skip" has no such slots'
                )
                return


def _clock_changes(schedule: Cron, now: datetime) -> Iterator[datetime]:
    """Yield the days, in UTC, on which the offset of the schedule's zone changes."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for _ in range(_YEARS * 366):
        following = day + _DAY
        if (
            day.astimezone(schedule.zone).utcoffset()
            != following.astimezone(schedule.zone).utcoffset()
        ):
            yield day
        day = following
