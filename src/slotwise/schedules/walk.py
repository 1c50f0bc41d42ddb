"""The walker: from days and times of day on a local calendar to slots on the time line.

The pattern is laid over each span of constant offset in turn. Within a span, local time and real time run
alike, so finding and counting are plain arithmetic on ranks; what the gap and fold rules add or remove lies
at the span's two ends. All instants here are whole seconds since 1970, local ones as if the clock showed UTC.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol
from zoneinfo import ZoneInfo

from slotwise.schedules.days import Days
from slotwise.schedules.zones import BEGINNING, DAY, END, Span, span_at

Gap = Literal["end", "shift", "skip"]
Fold = Literal["first", "second", "both"]

HORIZON: Final = 100 * 366 * DAY
"""The rarest date, 29 February on a given weekday, comes back within 40 years: after 100, nothing comes."""


class Times(Protocol):
    """Times of day in order, in seconds after midnight: `rank(time)` of them lie before a time."""

    def __len__(self) -> int: ...
    def rank(self, time: int) -> int: ...
    def at(self, rank: int) -> int: ...


class ListedTimes:
    """Times of day named one by one."""

    __slots__ = ("_times",)

    def __init__(self, times: Sequence[int]) -> None:
        self._times = tuple(sorted(set(times)))

    def __len__(self) -> int:
        return len(self._times)

    def rank(self, time: int) -> int:
        return bisect_left(self._times, time)

    def at(self, rank: int) -> int:
        return self._times[rank]


class CombinedTimes:
    """Every combination of these hours, minutes and seconds, each sorted."""

    __slots__ = ("_hours", "_minutes", "_seconds")

    def __init__(self, hours: Sequence[int], minutes: Sequence[int], seconds: Sequence[int]) -> None:
        self._hours, self._minutes, self._seconds = tuple(hours), tuple(minutes), tuple(seconds)

    def __len__(self) -> int:
        return len(self._hours) * len(self._minutes) * len(self._seconds)

    def rank(self, time: int) -> int:
        hour, rest = divmod(time, 3600)
        minute, second = divmod(rest, 60)
        rank = bisect_left(self._hours, hour) * len(self._minutes) * len(self._seconds)
        if hour in self._hours:
            rank += bisect_left(self._minutes, minute) * len(self._seconds)
            if minute in self._minutes:
                rank += bisect_left(self._seconds, second)
        return rank

    def at(self, rank: int) -> int:
        rank, second = divmod(rank, len(self._seconds))
        hour, minute = divmod(rank, len(self._minutes))
        return self._hours[hour] * 3600 + self._minutes[minute] * 60 + self._seconds[second]


class LocalPattern:
    """Times of day on certain days: `rank(local)` of them lie before a local time, `at(rank)` is one."""

    __slots__ = ("_days", "_times")

    def __init__(self, days: Days, times: Times) -> None:
        self._days, self._times = days, times

    def rank(self, local: int) -> int:
        day, time = divmod(local, DAY)
        days_before = self._days.rank(day)
        rank = days_before * len(self._times)
        return rank + self._times.rank(time) if self._days.rank(day + 1) > days_before else rank

    def at(self, rank: int) -> int:
        day, time = divmod(rank, len(self._times))
        return self._days.at(day) * DAY + self._times.at(time)

    def between(self, low: int, high: int) -> range:
        """The ranks of the local times with `low <= local < high`."""
        return range(self.rank(low), self.rank(high))


@dataclass(frozen=True, slots=True)
class Walk:
    """A local pattern on the time line of a zone.

    `fixed` patterns name times of day, which fire once whatever the clocks do, by the gap and fold rules; the
    others are intervals, for which real time goes on: they fire in both passes of a fold and not in a gap.
    """

    pattern: LocalPattern
    zone: ZoneInfo
    fixed: bool
    gap: Gap
    fold: Fold

    def first(self, low: int, high: int = END) -> int | None:
        """The first slot with `low <= slot < high`."""
        low, high = max(low, BEGINNING), min(high, END, max(low, BEGINNING) + HORIZON)
        while low < high:
            span = span_at(self.zone, low)
            found = self._first_in(span, low)
            if found is not None:
                return found if found < high else None
            low = max(span.end, self._earliest_from(span.end))
        return None

    def last(self, low: int, high: int) -> int | None:
        """The last slot with `low <= slot < high`."""
        high = min(high, END)
        low = max(low, BEGINNING, high - HORIZON)
        while low < high:
            span = span_at(self.zone, high - 1)
            found = self._last_in(span, high)
            if found is not None:
                return found if found >= low else None
            high = min(span.start, self._latest_to(span.start))
        return None

    def count(self, low: int, high: int) -> int:
        """How many slots have `low <= slot < high`."""
        low, high, total = max(low, BEGINNING), min(high, END), 0
        while low < high:
            span = span_at(self.zone, low)
            total += self._count_in(span, low, min(high, span.end))
            low = span.end
        return total

    def _first_in(self, span: Span, low: int) -> int | None:
        ranks = self._ranks(span, low, span.end)
        moved = self._moved(span, low, span.end)
        candidates = [self.pattern.at(ranks[0]) - span.offset] if ranks else []
        return min(candidates + moved[:1], default=None)

    def _last_in(self, span: Span, high: int) -> int | None:
        ranks = self._ranks(span, span.start, high)
        moved = self._moved(span, span.start, high)
        candidates = [self.pattern.at(ranks[-1]) - span.offset] if ranks else []
        return max(candidates + moved[-1:], default=None)

    def _count_in(self, span: Span, low: int, high: int) -> int:
        return len(self._ranks(span, low, high)) + len(self._moved(span, low, high))

    def _ranks(self, span: Span, low: int, high: int) -> range:
        """The ranks of the local times that fire at their own time within the span."""
        low, high = max(low, span.start), min(high, span.end)
        if self.fixed and self.fold == "first":  # the span's beginning may repeat local times of the one before
            low = max(low, span.start + span.before - span.offset)
        if self.fixed and self.fold == "second":  # its end may be repeated by the one after
            high = min(high, span.end - (span.offset - span.after))
        return self.pattern.between(low + span.offset, max(low, high) + span.offset)

    def _moved(self, span: Span, low: int, high: int) -> list[int]:
        """The slots that the gap before the span swallowed and the gap rule puts where no other is."""
        width = span.offset - span.before
        if not self.fixed or self.gap == "skip" or width <= 0 or low >= span.start + width:
            return []
        swallowed = self.pattern.between(span.start + span.before, span.start + span.offset)
        if self.gap == "end":
            moved = [span.start] if swallowed else []
        else:
            moved = [self.pattern.at(rank) - span.before for rank in swallowed]
        return [slot for slot in moved if low <= slot < high and not self._ranks(span, slot, slot + 1)]

    def _earliest_from(self, low: int) -> int:
        """An instant from which to look for the first slot at or after `low`, past dull years.

        Local and real time differ by less than a day, and a gap rule moves a slot by less than two.
        """
        return self.pattern.at(self.pattern.rank(low - DAY)) - 3 * DAY

    def _latest_to(self, high: int) -> int:
        """An instant down from which to look for the last slot before `high`."""
        return self.pattern.at(self.pattern.rank(high + DAY) - 1) + DAY + 1
