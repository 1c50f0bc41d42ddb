"""Which executions started when: handlers write it into a file that the benchmark maps, too."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from slotwise import SlotwiseError

_WIDTH = 8


class RanWrong(SlotwiseError):
    """A benchmark ran something twice, or not at all: its figures mean nothing."""


class Journal:
    """A numbered list of starts. A note takes a handler well below a microsecond, and survives a
    kill.

    One process writes (any of its threads); any number read. Ids are 1 or more; 0 is a place not
    yet written.
    """

    def __init__(self, path: Path, capacity: int | None = None) -> None:
        """Open a journal; with ``capacity``, make one with room for so many starts (the file is
        sparse).
        """
        self.path = path
        if capacity is not None:
            with path.open("wb") as file:
                os.truncate(file.fileno(), 2 * _WIDTH * capacity)
        with path.open("r+b") as file:
            self._map = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self.capacity = len(self._map) // 2
        self._ids = self._map[: self.capacity]
        self._times = self._map[self.capacity :]
        self._places = itertools.count()

    def note(self, number: int) -> None:
        """Note that the handler of ``number`` has started. Raises IndexError when the journal
        is full.
        """
        place = next(
            self._places
        )  # atomic: threads of one interpreter never share a place
        self._times[place] = time.time_ns()
        self._ids[place] = number

    def count(self) -> int:
        """Return how many starts there are; while threads write, the newest few may be missing."""
        low = 0
        high = self.capacity
        while low < high:
            middle = (low + high) // 2
            if self._ids[middle]:
                low = middle + 1
            else:
                high = middle
        return low

    def ids(self) -> list[int]:
        """Return the ids that have started, in the order of their starts."""
        return self._ids[: self.count()].tolist()

    def starts(self) -> dict[int, int]:
        """Return when each id started, in nanoseconds since 1970, by this host's clock."""
        count = self.count()
        return dict(
            zip(self._ids[:count].tolist(), self._times[:count].tolist(), strict=True)
        )


def expect_once(journals: Iterable[Journal], wanted: Iterable[int], who: str) -> int:
    """Raise RanWrong unless exactly these ids have started, each once. Return their number."""
    counted = Counter(number for journal in journals for number in journal.ids())
    wanted = set(wanted)
    twice = [number for number, count in counted.items() if count > 1]
    missing = wanted - counted.keys()
    foreign = counted.keys() - wanted
    if twice or missing or foreign:
        raise RanWrong(
            f"{who}: of {len(wanted)} ids {len(missing)} did not start, "
            f"{len(twice)} started more than once "
            f"{twice[:3]}, {len(foreign)} were never scheduled; this run proves nothing"
        )
    return len(wanted)
