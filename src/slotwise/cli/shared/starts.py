"""How many starts fall into each hour of some days, by the clocks of a zone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Final
from zoneinfo import ZoneInfo

from slotwise import InvalidSchedule, Schedule
from slotwise.spi import KNOWN_YEARS

_DAY: Final = timedelta(days=1)
_TICK: Final = timedelta(microseconds=1)
#: The years that schedules know.
_FIRST_YEAR: Final = 1900
_LAST_YEAR: Final = 8999


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCounts:
    """The number of starts in each hour of some days, by the clocks of a zone.

    ``passed_over`` counts for each day the slots that a calendar excludes.
    """

    days: Sequence[date]
    hours: Sequence[Sequence[int]]
    passed_over: Sequence[int]
    zone: ZoneInfo

    def of_day(self, number: int) -> int:
        """Return the number of starts on a day, counted from 0."""
        return sum(self.hours[number])

    def has_clock_change(self, number: int) -> bool:
        """Whether this day is shorter or longer than 24 hours."""
        day = self.days[number]
        return _edge(day, 24, self.zone) - _edge(day, 0, self.zone) != _DAY


def count_starts(
    schedules: Mapping[Schedule, int], days: Sequence[date], zone: ZoneInfo
) -> StartCounts:
    """Count the starts in each hour of these consecutive days; a schedule counts once for each of
    its jobs.

    When clocks change, an hour may be missing or last two hours. Raise InvalidSchedule for days
    outside the years that schedules know.
    """
    if not _FIRST_YEAR <= days[0].year <= days[-1].year <= _LAST_YEAR:
        raise InvalidSchedule(f"schedules know {KNOWN_YEARS}")
    edges = _edges(days, zone)
    running = [0] * (len(edges) - 1)
    passed = [0] * (len(edges) - 1)
    for schedule, weight in schedules.items():
        _add(running, schedule.running, edges, weight)
        if schedule.running is not schedule:
            _add(passed, schedule, edges, weight)
            _add(passed, schedule.running, edges, -weight)
    begins = range(0, len(running), 24)
    return StartCounts(
        days=days,
        hours=[running[begin : begin + 24] for begin in begins],
        passed_over=[sum(passed[begin : begin + 24]) for begin in begins],
        zone=zone,
    )


def _edges(days: Sequence[date], zone: ZoneInfo) -> list[datetime]:
    """The instants just before each hour, and the end. A day that a zone skips ends before it
    begins: no hours.
    """
    edges = [_edge(day, hour, zone) for day in days for hour in range(24)]
    edges.append(_edge(days[-1], 24, zone))
    return [*accumulate(reversed(edges), min)][::-1]


def _edge(day: date, hour: int, zone: ZoneInfo) -> datetime:
    local = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(hours=hour)
    return local.astimezone(UTC) - _TICK


def _add(
    hours: list[int], schedule: Schedule, edges: Sequence[datetime], weight: int
) -> None:
    """Add a schedule's slots to the hours. Only slots of sparse schedules are iterated over."""
    if schedule.count_between(edges[0], edges[-1]) <= len(hours):
        for slot in schedule.slots(edges[0], edges[-1]):
            hours[bisect_left(edges, slot) - 1] += weight
        return
    for number, (low, high) in enumerate(pairwise(edges)):
        if low < high:
            hours[number] += weight * schedule.count_between(low, high)
