"""How many due slots a claim takes."""

from __future__ import annotations

from datetime import timedelta

from slotwise.store.slots.tuning import FIRST, LONGEST, NOTHING, PART_OF_LEASE


class BatchSize:
    """How many due slots a claim takes, up to ``most``: as many late ones as it can decide about
    in a moment.

    Race: a claim's lease runs while it decides, and nothing starts before its commit. If decisions
    took that long, the claim would be handed back as a whole, again and again. Full claims of
    slots on time grow, and those that were decided at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = min(FIRST, most)

    def learn(self, taken: int, late: int, took: float, lease: timedelta) -> None:
        bearable = min(LONGEST, lease / PART_OF_LEASE).total_seconds()
        if late and took * NOTHING > bearable:
            self.size = max(int(min(self._most, late * bearable / took)), 1)
        elif taken >= self.size:
            self.size = min(2 * self.size, self._most)
