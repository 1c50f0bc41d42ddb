"""How many due slots a claim takes: no more late ones than it can decide about within a moment.

Race: of a claim nothing starts before all of it is committed, while its lease runs. A claim whose decisions take as
long as the lease goes back as a whole, and the next one, as large, goes the same way: for ever. So each claim measures
what a late slot costs here and now, and the next takes as many as that leaves time for. Claims that come back full with
slots that are on time grow, for those cost next to nothing.
"""

from __future__ import annotations

from datetime import timedelta

#: The first claim, when it is not known what a late slot costs.
FIRST = 100
#: How long a claim may decide; and no longer than this part of its lease.
LONGEST = timedelta(seconds=1)
PART_OF_LEASE = 8


class BatchSize:
    """From one row to ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = min(FIRST, most)

    def learn(self, taken: int, late: int, took: float, lease: timedelta) -> None:
        """A claim took so many rows; to decide about the late ones among them took so many seconds."""
        if late:
            bearable = min(LONGEST, lease / PART_OF_LEASE).total_seconds()
            self.size = max(int(min(self._most, late * bearable / took if took else self._most)), 1)
        elif taken >= self.size:
            self.size = min(2 * self.size, self._most)
