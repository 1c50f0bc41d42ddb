"""Jobs: the list, and one job with its schedule, its last slots and its durations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, TypeAlias

from slotwise import Schedule, SlotwiseError, parse_schedule
from slotwise.contrib.dashboard.drawing import days_of
from slotwise.contrib.dashboard.policies import sentences_of
from slotwise.contrib.dashboard.reading import Page, Reading, in_one_line
from slotwise.inspect import (
    RECURRING,
    JobInfo,
    OutlookEntry,
    SlotInfo,
    explain_schedule,
    outlook,
    zone_of,
)
from slotwise.spi import Origin

#: Jobs of a page, slots of the strip, slots of which durations are computed, slots to come.
PAGE: Final = 100
STRIP: Final = 50
_DURATIONS: Final = 200
_NEXT: Final = 10
_CALENDAR: Final = timedelta(days=90)
_PERIODS: Final = 20
#: What is measured of a slot.
Measure: TypeAlias = Callable[[SlotInfo], timedelta | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of so many values, the middle one, and the one that 95 of 100 do not exceed."""

    count: int
    p50: timedelta
    p95: timedelta


def listing(reading: Reading) -> Page:
    """Show a page of jobs by name; ``q`` is how the names begin, ``after`` the last one before."""
    begins = reading.given.get("q", "")
    after = reading.given.get("after", "")
    found = reading.lines("jobs", lambda: _matching(reading, begins, after))
    shown = found[:PAGE]
    data = {
        "q": begins,
        "jobs": shown,
        "next": shown[-1].job if len(found) > PAGE else None,
        "instances": reading.part("instances", lambda: _instances(reading, shown))
        or {},
    }
    return Page(template="jobs.html", title="Jobs", data=data)


def _matching(reading: Reading, begins: str, after: str) -> list[JobInfo]:
    inspect = reading.inspect
    found = list[JobInfo]()
    if not after and begins and (exact := inspect.job(begins)) is not None:
        found.append(exact)
    rest = inspect.jobs(after=max(after, begins), limit=PAGE + 1)
    found += (one for one in rest if one.job.startswith(begins))
    return found


def _instances(reading: Reading, shown: Sequence[JobInfo]) -> dict[str, int]:
    if not shown:
        return {}
    before = shown[0].job[:-1]
    return reading.inspect.instance_counts(after=before, until=shown[-1].job)


def _instances_of(reading: Reading, name: str) -> list[JobInfo]:
    """Return the instances of a job. Most have none, which a count says at less cost."""
    counts = reading.inspect.instance_counts(after=name[:-1], until=name)
    return reading.inspect.instances(name) if name in counts else []


def one(reading: Reading) -> Page:
    """Show a job, or one of its recurring instances."""
    name = reading.text("name")
    id = reading.given.get("id", RECURRING)
    inspect = reading.inspect
    info = inspect.job(name, id=id)
    definition = reading.source.definition(name)
    if info is not None:
        reading.zone = zone_of(info.schedule)
    schedule, mistake = _schedule(reading, info)
    slots = reading.lines(
        "slots", lambda: inspect.slots(name, id=id, limit=_DURATIONS)
    )
    pending = reading.lines("pending", lambda: inspect.pending(name, id=id))
    begun = {one.slot for one in slots if one.last is None}
    data = {
        "name": name,
        "id": id,
        "job": info,
        "sentences": _sentences(schedule) if schedule else [],
        "schedule_error": mistake,
        "policies": None if definition is None else sentences_of(definition),
        "difference": reading.part(
            "difference", lambda: reading.source.difference(name)
        ),
        "why": reading.part("why", lambda: inspect.explain_job(name, id=id)),
        "next": _next(reading, schedule) if schedule else [],
        "pending": [one for one in pending if one.slot not in begun],
        "slots": slots[:STRIP],
        "durations": percentiles(measured(slots, took)),
        "lateness": percentiles(measured(slots, late)),
        "instances": reading.lines("instances", lambda: _instances_of(reading, name)),
        "audit": reading.lines("audit", lambda: inspect.audit(name, limit=10)),
    }
    status = 404 if info is None and not slots else 200
    start = reading.now - _CALENDAR
    counts = reading.lines(
        "calendar", lambda: inspect.outcome_counts(start, reading.now, job=name)
    )
    shown = {
        "days": days_of(counts, start, reading.now, reading.zone),
        "trends": {"Took": trend_of(slots, took), "Late": trend_of(slots, late)},
    }
    return Page(template="job.html", title=name, data=data, shown=shown, status=status)


def _schedule(
    reading: Reading, info: JobInfo | None
) -> tuple[Schedule | None, str | None]:
    """Return a job's schedule, bound to the calendars as they are now, or why it cannot be read."""
    if info is None or info.schedule == "–":
        return None, None
    try:
        found = parse_schedule(info.schedule)
        return found.bind(info.job, reading.inspect.calendars(found)), None
    except SlotwiseError as error:
        return None, in_one_line(error)


def _sentences(schedule: Schedule) -> list[str]:
    return explain_schedule(schedule)


def _next(reading: Reading, schedule: Schedule) -> list[OutlookEntry]:
    if schedule.from_end:
        return []
    return list(islice(outlook(schedule, reading.now, _NEXT, reading.zone), 2 * _NEXT))


def percentiles(values: Sequence[timedelta]) -> Percentiles | None:
    """Return the percentiles of these; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    return Percentiles(
        count=len(ordered), p50=ordered[last // 2], p95=ordered[last * 95 // 100]
    )


def took(slot: SlotInfo) -> timedelta | None:
    """Return how long a slot's last attempt took; None of one that has not ended."""
    return slot.took


def late(slot: SlotInfo) -> timedelta | None:
    """Return how long after its time a slot of the schedule has started."""
    if slot.started is None or slot.origin != Origin.SCHEDULE:
        return None
    return slot.started - slot.slot


def measured(slots: Sequence[SlotInfo], measure: Measure) -> list[timedelta]:
    """Return what is measured of these slots, where there is something."""
    found = (measure(slot) for slot in slots)
    return [value for value in found if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Percentiles of slots that follow each other, the first at ``start``; with their heights in a
    drawing, in percent of the highest.
    """

    start: datetime
    percentiles: Percentiles
    p50: float
    p95: float


def trend_of(slots: Sequence[SlotInfo], measure: Measure) -> list[Period]:
    """Return the percentiles over time: of the slots, the newest first, about ten to a period."""
    with_values = [slot for slot in reversed(slots) if measure(slot) is not None]
    size = max(len(with_values) // _PERIODS, 1)
    periods = list[tuple[datetime, Percentiles]]()
    for first in range(0, len(with_values), size):
        some = with_values[first : first + size]
        found = percentiles(measured(some, measure))
        if found is not None:
            periods.append((some[0].slot, found))
    return _drawn(periods)


def _drawn(periods: Sequence[tuple[datetime, Percentiles]]) -> list[Period]:
    """Return periods with their heights."""
    highest = max(
        (one.p95 for _, one in periods), default=timedelta(0)
    ).total_seconds()
    return [
        Period(
            start=start,
            percentiles=one,
            p50=_height(one.p50, highest),
            p95=_height(one.p95, highest),
        )
        for start, one in periods
    ]


def _height(value: timedelta, highest: float) -> float:
    return round(100 * value.total_seconds() / highest, 2) if highest > 0 else 0.0
