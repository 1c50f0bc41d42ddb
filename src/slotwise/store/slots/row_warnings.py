"""What is wrong with single rows, told once: a row that nobody can read comes up again each minute, on each worker."""

from __future__ import annotations

from slotwise.model.clock import Stopwatch
from slotwise.model.records import Key

#: After so many seconds it is told again.
AGAIN = 3_600.0


class RowWarnings:
    """Remembers what was said of which row. From any thread: at worst something is told twice."""

    def __init__(self, elapsed: Stopwatch) -> None:
        self._elapsed = elapsed
        self._told: dict[tuple[Key, str], float] = {}

    def are_new(self, key: Key, complaint: str) -> bool:
        """Whether this has not been said of that row within the last hour; from now on it has."""
        now = self._elapsed()
        told = self._told.get((key, complaint))
        if told is not None and now - told < AGAIN:
            return False
        self._told = {said: at for said, at in self._told.items() if now - at < AGAIN} | {(key, complaint): now}
        return True
