"""The timeline: expected and actual slots of all jobs on one axis, and the next day's load."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from slotwise import SlotwiseError, parse_schedule
from slotwise.contrib.dashboard.access import Refused
from slotwise.contrib.dashboard.drawing import (
    PARTS,
    Axis,
    Mark,
    counted_marks,
    marks_of,
    pause_marks,
)
from slotwise.contrib.dashboard.pages.bands import Bands, bands_of
from slotwise.contrib.dashboard.reading import Page, Reading
from slotwise.contrib.reconciliation.former import as_planned
from slotwise.inspect import OutcomePart, SlotWindow
from slotwise.spi import Outcome

PAGE: Final = 40
#: Jobs that are searched for a tag at a time.
_SEARCHED: Final = 500
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
#: Without from= and to=: what has been, and what comes.
_BEFORE: Final = 18 * _HOUR
_AHEAD: Final = 6 * _HOUR
#: Longer windows show hours, by their counts.
_BY_SLOT: Final = 3 * _DAY
_SHORTEST: Final = timedelta(minutes=1)
_LONGEST: Final = 366 * _DAY
#: The lengths that a link leads to.
LENGTHS: Final = {
    "10 min": timedelta(minutes=10),
    "1 h": _HOUR,
    "6 h": 6 * _HOUR,
    "24 h": _DAY,
    "7 d": 7 * _DAY,
    "30 d": 30 * _DAY,
    "1 y": 365 * _DAY,
}
#: Slots of the next day that are counted one by one.
_MOST_STARTS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """A job, or an instance, with what its row shows."""

    job: str
    id: str
    marks: Sequence[Mark]
    complete: bool


def timeline(reading: Reading) -> Page:
    """Show the jobs whose names begin with ``q``, from ``from`` to ``to``; with ``tag`` those that
    run on workers with it.
    """
    axis = _axis(reading)
    given = reading.given
    begins, outcome, tag = given.get("q", ""), given.get("outcome"), given.get("tag")
    if outcome is not None and outcome not in set(Outcome):
        raise Refused(
            f"outcome={outcome!r:.60}: write one of {', '.join(Outcome)}", 400
        )
    after = (given.get("after", begins), given.get("after_id", ""))
    found = reading.part("jobs", lambda: _found(reading, axis, begins, after))
    mine = [] if found is None else found.windows
    if outcome is not None:
        mine = [one for one in mine if any(a.outcome == outcome for a in one.actual)]
    bands = bands_of(reading, axis)
    mine = [as_planned(one, bands.deploys, axis.start) for one in mine]
    data = {
        "from": axis.start,
        "to": axis.end,
        "q": begins,
        "tag": tag,
        "windows": mine,
        "bands": bands.of_all,
    }
    shown = {
        "axis": axis,
        "drawn_bands": [axis.drawn(one) for one in bands.of_all],
        "rows": _rows(reading, mine, bands, axis),
        "outcome": outcome,
        "outcomes": list(Outcome),
        "zooms": _zooms(axis, reading.now),
        "next": None if found is None else found.following,
        "ticks": axis.ticks(),
    }
    return Page(template="timeline.html", title="Timeline", data=data, shown=shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The windows of a page, and the values of the address of the next one."""

    windows: list[SlotWindow]
    following: Mapping[str, str] | None


def _found(reading: Reading, axis: Axis, begins: str, after: tuple[str, str]) -> Found:
    tag = reading.given.get("tag")
    if tag is not None:
        return _with_tag(reading, axis, tag, begins, after[0])
    found = _windows(reading, axis, after, PAGE + 1)
    mine = [one for one in found[:PAGE] if one.job.startswith(begins)]
    last = found[PAGE - 1] if len(found) > PAGE and len(mine) == PAGE else None
    following = None if last is None else {"after": last.job, "after_id": last.id}
    return Found(windows=mine, following=following)


def _with_tag(
    reading: Reading, axis: Axis, tag: str, begins: str, after: str
) -> Found:
    """Look among the next jobs by name for those with a tag; their instances are left out."""
    jobs = reading.inspect.jobs(after=after, limit=_SEARCHED)
    if not reading.given.get("after") and begins:
        exact = reading.inspect.job(begins)
        jobs = [exact, *jobs] if exact is not None else jobs
    mine = [
        one.job for one in jobs if one.job.startswith(begins) and tag in one.runs_on
    ]
    is_more = len(jobs) >= _SEARCHED and jobs[-1].job.startswith(begins)
    last = mine[PAGE - 1] if len(mine) > PAGE else jobs[-1].job if is_more else None
    windows = list[SlotWindow]()
    for name in mine[:PAGE]:
        windows += _windows(reading, axis, (name, ""), 1)
    return Found(
        windows=[one for one in windows if one.job in mine],
        following=None if last is None else {"after": last},
    )


def _axis(reading: Reading) -> Axis:
    start, end = reading.instant("from"), reading.instant("to")
    if start is None and end is None:
        start, end = reading.now - _BEFORE, reading.now + _AHEAD
    elif start is None:
        start = (end or reading.now) - _DAY
    elif end is None:
        end = start + _DAY
    if end is None or not _SHORTEST <= end - start <= _LONGEST:
        raise Refused(
            "the timeline shows from a minute to a year: check from= and to=", 400
        )
    return Axis(start=start, end=end, zone=reading.zone)


def _windows(
    reading: Reading, axis: Axis, after: tuple[str, str], limit: int
) -> list[SlotWindow]:
    """Read the windows; of a long one only the jobs, whose counts are read in their place."""
    start = axis.start if axis.length <= _BY_SLOT else axis.end - _SHORTEST
    return reading.inspect.windows(start, axis.end, after=after, limit=limit)


def _rows(
    reading: Reading, windows: Sequence[SlotWindow], bands: Bands, axis: Axis
) -> list[TimelineRow]:
    """Return the rows: by slot, or by counts where there are more than are read or seen."""
    is_long = axis.length > _BY_SLOT
    dense = {one.job for one in windows if is_long or not one.complete}
    parts = defaultdict[str, list[OutcomePart]](list)
    for part in reading.lines("counts", lambda: _parts(reading, dense, axis)):
        parts[part.job].append(part)
    found = list[TimelineRow]()
    for one in windows:
        is_counted = is_long or (not one.complete and bool(parts[one.job]))
        marks = marks_of(one, axis, reading.now)
        if is_counted:
            marks = counted_marks(parts[one.job], axis)
        marks = marks + pause_marks(bands.of_jobs.get(one.job, ()), axis)
        is_complete = one.complete or is_counted
        row = TimelineRow(job=one.job, id=one.id, marks=marks, complete=is_complete)
        found.append(row)
    return found


def _parts(reading: Reading, jobs: Collection[str], axis: Axis) -> list[OutcomePart]:
    if not jobs:
        return []
    return reading.inspect.outcome_parts(jobs, axis.start, axis.end, PARTS)


def _zooms(axis: Axis, now: datetime) -> dict[str, tuple[datetime, datetime]]:
    """Return the windows that links lead to: earlier, later, closer, wider, and by length."""
    half = axis.length / 2
    middle = axis.start + half
    found = {
        "earlier": (axis.start - half, axis.end - half),
        "later": (axis.start + half, axis.end + half),
        "closer": (middle - half / 2, middle + half / 2),
        "wider": (middle - axis.length, middle + axis.length),
    }
    for name, length in LENGTHS.items():
        found[name] = (now - length * 3 / 4, now + length / 4)
    return {
        name: (start, end)
        for name, (start, end) in found.items()
        if _SHORTEST <= end - start <= _LONGEST
    }


# -- load -----------------------------------------------------------------------------------------


def load(reading: Reading) -> Page:
    """Show how many slots begin in each minute of the next 24 hours."""
    start = reading.now.replace(minute=0, second=0, microsecond=0)
    found = reading.kept("schedules", lambda: _starts(reading, start), of=start)
    minutes, is_complete = found or (Counter[int](), True)
    busiest = minutes.most_common(10)
    data = {
        "start": start,
        "minutes": {
            start + n * timedelta(minutes=1): minutes[n] for n in sorted(minutes)
        },
        "complete": is_complete,
    }
    shown = {
        "counts": minutes,
        "highest": max(minutes.values(), default=0),
        "busiest": [(start + n * timedelta(minutes=1), count) for n, count in busiest],
        "hours": [start + n * _HOUR for n in range(24)],
    }
    return Page(template="load.html", title="Load", data=data, shown=shown)


def _starts(reading: Reading, start: datetime) -> tuple[Counter[int], bool]:
    return starts_per_minute(reading.inspect.schedules(), start)


def starts_per_minute(
    schedules: Mapping[str, int], start: datetime
) -> tuple[Counter[int], bool]:
    """Count the starts of these schedules, each with its number of jobs, by minutes after
    ``start``; and whether all were counted.
    """
    minutes = Counter[int]()
    left = _MOST_STARTS
    for text, jobs in sorted(schedules.items()):
        for slot in _slots(text, start):
            if not left:
                return minutes, False
            left -= 1
            minutes[(slot - start) // timedelta(minutes=1)] += jobs
    return minutes, True


def _slots(text: str, start: datetime) -> Iterable[datetime]:
    """The slots of the day after ``start``; none of a schedule that cannot be read, or whose slots
    are decided by the end of its runs.
    """
    try:
        schedule = parse_schedule(text)
    except SlotwiseError:
        return ()
    if schedule.from_end:
        return ()
    moment = timedelta(microseconds=1)
    return schedule.slots(start - moment, start + _DAY - moment)
