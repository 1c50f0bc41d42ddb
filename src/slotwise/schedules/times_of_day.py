"""Times of day: numbered, so that they can be counted without walking them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import Protocol


class Times(Protocol):
    """Times of day in order, in seconds after midnight: `rank(time)` of them lie before a time."""

    def __len__(self) -> int: ...
    def rank(self, time: int) -> int: ...
    def at(self, rank: int) -> int: ...

    @property
    def listed(self) -> Sequence[int]:
        """All of them."""

    @property
    def bits(self) -> int:
        """All of them as the bits of a number, that of midnight first."""


class ListedTimes:
    """Times of day named one by one."""

    def __init__(self, times: Sequence[int]) -> None:
        self.listed = tuple(sorted(set(times)))

    def __len__(self) -> int:
        return len(self.listed)

    def rank(self, time: int) -> int:
        return bisect_left(self.listed, time)

    def at(self, rank: int) -> int:
        return self.listed[rank]

    @cached_property
    def bits(self) -> int:
        return _shifted_by(self.listed, 1)


class CombinedTimes:
    """Every combination of these hours, minutes and seconds, each sorted."""

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

    @cached_property
    def listed(self) -> Sequence[int]:
        minutes = [minute * 60 + second for minute in self._minutes for second in self._seconds]
        return tuple(hour * 3600 + time for hour in self._hours for time in minutes)

    @cached_property
    def bits(self) -> int:
        minute = _shifted_by(self._seconds, 1)
        hour = _shifted_by([at * 60 for at in self._minutes], minute)
        return _shifted_by([at * 3600 for at in self._hours], hour)


def _shifted_by(distances: Iterable[int], bits: int) -> int:
    return reduce(or_, (bits << distance for distance in distances), 0)
