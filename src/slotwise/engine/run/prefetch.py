"""How many one-time tasks may be claimed before there is a thread for them."""

from __future__ import annotations

from datetime import timedelta

from slotwise.model.clock import Stopwatch
from slotwise.store.slots.claims import BATCH

#: What is claimed ahead should start within this time: enough for the next claim to come back, in seconds.
AHEAD = 0.1
#: Never more than this: a batch that is claimed, one that runs, and one that is settled.
MOST = 3 * BATCH
#: Over how many seconds, at least, ends are counted. They come in lumps, a settlement each: several must fall into it.
WINDOW = 0.1


class Prefetch:
    """Counts how fast attempts end, and says how many starts that makes within ``AHEAD``.

    The lower of the last two windows counts: ten handlers of a second each that end in the same millisecond do not
    promise that ten more will have ended in the next.
    """

    def __init__(self, margin: timedelta, elapsed: Stopwatch) -> None:
        """``margin``: what could not start for so long is handed back."""
        self._ahead = min(AHEAD, margin.total_seconds() / 4)
        self._elapsed = elapsed
        self._at = elapsed()
        self._ended = 0
        self._rates = (0.0, 0.0)

    def ahead(self, ended: int) -> int:
        """How many may wait for a thread; ``ended``: how many attempts have ended so far."""
        now = self._elapsed()
        if (passed := now - self._at) >= WINDOW:
            self._rates = (self._rates[1], (ended - self._ended) / passed)
            self._at, self._ended = now, ended
        return min(int(min(self._rates) * self._ahead), MOST)

    @staticmethod
    def worth_claiming(ahead: int) -> int:
        """For how many a claim is worth its trip where so many wait for a thread; there soon is room for them."""
        return min(ahead // 2, BATCH) if ahead >= BATCH else 0
