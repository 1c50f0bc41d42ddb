"""How many due slots a claim takes: no more late ones than it can decide about within a moment.

Race: to decide about what is late takes its time, and of a claim nothing starts before all of it is committed, while
its lease runs. A claim of so many that this takes as long as the lease goes back as a whole, and the next one, as
large, goes the same way: for ever. So each claim tells what a late slot costs here and now, and the next takes as
many as that leaves time for. Claims that come back full with slots that are on time grow, for those cost next to
nothing; until there was none for a while: what has come due since may all be late.
"""

from __future__ import annotations

from datetime import timedelta

from slotwise.model.clock import Stopwatch

#: So many as long as it is not known what a late one costs.
FIRST = 100
#: How long a claim may decide; and no longer than this part of its lease.
LONGEST = timedelta(seconds=1)
PART_OF_LEASE = 8
#: What was learned from slots that are on time holds for so long.
QUIET = timedelta(seconds=5)


class BatchSize:
    """From one row to ``most``."""

    def __init__(self, most: int, elapsed: Stopwatch) -> None:
        self._most = most
        self._elapsed = elapsed
        self._size = min(FIRST, most)
        self._learned = elapsed()

    def size(self) -> int:
        """How many rows the next claim of slots may take."""
        if self._elapsed() - self._learned > QUIET.total_seconds():
            self._size = min(self._size, FIRST)
        return self._size

    def learn(self, taken: int, late: int, took: float, lease: timedelta) -> None:
        """A claim took so many rows; to decide about the late ones among them took so many seconds."""
        self._learned = self._elapsed()
        if late:
            bearable = min(LONGEST, lease / PART_OF_LEASE).total_seconds()
            self._size = max(int(min(self._most, late * bearable / took if took else self._most)), 1)
        elif taken >= self._size:
            self._size = min(2 * self._size, self._most)
