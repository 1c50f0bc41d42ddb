"""The timeline: expected and actual slots of all jobs on one axis, and the next day's load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from slotwise import SlotwiseError, parse_schedule
from slotwise.contrib.dashboard.access import Refused
from slotwise.contrib.dashboard.drawing import Axis, Mark, counted_marks, marks_of
from slotwise.contrib.dashboard.pages.bands import bands_of
from slotwise.contrib.dashboard.reading import Page, Reading
from slotwise.inspect import SlotWindow
from slotwise.spi import Outcome

PAGE: Final = 40
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
    """Show the jobs whose names begin with ``q``, from ``from`` to ``to``."""
    axis = _axis(reading)
    given = reading.given
    begins, outcome = given.get("q", ""), given.get("outcome")
    if outcome is not None and outcome not in set(Outcome):
        raise Refused(f"outcome={outcome!r:.60}: write one of {', '.join(Outcome)}", 400)
    after = (
        (given["after"], given.get("after_id", "")) if "after" in given else (begins, "")
    )
    found = reading.lines("jobs", lambda: _windows(reading, axis, after))
    mine = [one for one in found[:PAGE] if one.job.startswith(begins)]
    last = found[PAGE - 1] if len(found) > PAGE and len(mine) == PAGE else None
    if outcome is not None:
        mine = [one for one in mine if any(a.outcome == outcome for a in one.actual)]
    bands = bands_of(reading, axis)
    data = {
        "from": axis.start,
        "to": axis.end,
        "q": begins,
        "windows": mine,
        "bands": bands,
    }
    shown = {
        "axis": axis,
        "rows": [_row(reading, one, axis) for one in mine],
        "outcome": outcome,
        "outcomes": list(Outcome),
        "zooms": _zooms(axis, reading.now),
        "next": None if last is None else {"after": last.job, "after_id": last.id},
        "ticks": axis.ticks(),
    }
    return Page(template="timeline.html", title="Timeline", data=data, shown=shown)


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


def _windows(reading: Reading, axis: Axis, after: tuple[str, str]) -> list[SlotWindow]:
    """Read the windows; of a long one only the jobs, whose counts are read in their place."""
    start = axis.start if axis.length <= _BY_SLOT else axis.end - _SHORTEST
    return reading.inspect.windows(start, axis.end, after=after, limit=PAGE + 1)


def _row(reading: Reading, window: SlotWindow, axis: Axis) -> TimelineRow:
    is_complete = window.complete
    if axis.length <= _BY_SLOT:
        marks = marks_of(window, axis, reading.now)
    else:
        counts = reading.lines(
            "counts",
            lambda: reading.inspect.outcome_counts(axis.start, axis.end, job=window.job),
        )
        marks = counted_marks(counts, axis)
        is_complete = True
    return TimelineRow(job=window.job, id=window.id, marks=marks, complete=is_complete)


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
    schedules = reading.part("schedules", reading.inspect.schedules) or {}
    minutes, is_complete = starts_per_minute(schedules, start)
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
