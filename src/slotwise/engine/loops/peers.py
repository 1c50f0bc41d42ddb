"""Workers that run the same: so that not all of them go for the same row at the same moment."""

from __future__ import annotations

import random
from datetime import timedelta

#: What one claim takes, about; so far apart are the looks of two peers.
STEP = timedelta(milliseconds=1)
#: However many there are, nobody waits for longer.
MOST = timedelta(milliseconds=25)
#: A poll comes up to this part of the interval too early.
JITTER = 0.1


class Peers:
    """How many there are, as the last heartbeat has found it; this worker is one of them.

    Each draws its place in the row anew every time: a fixed one would give all that there is to the first of them.
    Alone, a worker waits for nobody.
    """

    def __init__(self) -> None:
        self.count = 1

    def offset(self) -> timedelta:
        """How long to let others go first."""
        return min(STEP * (random.random() * (self.count - 1)), MOST)

    def spread(self, interval: timedelta) -> timedelta:
        """The interval, or a little less: polls of peers do not stay in step."""
        return interval * (1 - JITTER * random.random()) if self.count > 1 else interval
