"""Claims due rows, up to the free capacity, and says how long to sleep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from slotwise.engine.holdings import Holding, Holdings
from slotwise.engine.service import AT_ONCE, Service
from slotwise.events import Claimed, PollBegan, about
from slotwise.execution import Claim
from slotwise.store.store import Store


class Poller(Service):
    """Sleeps until the earliest due row, never longer than the poll interval; a full batch polls again at once."""

    name = "poller"

    def __init__(
        self,
        store: Store,
        holdings: Holdings,
        *,
        names: Sequence[str],
        lease: timedelta,
        poll_interval: timedelta,
        free: Callable[[], int],
        run: Callable[[Holding], None],
        **service: Any,
    ) -> None:
        super().__init__(**service)
        self._store = store
        self._holdings = holdings
        self._names = names
        self._lease = lease
        self._poll_interval = poll_interval
        self._free = free
        self._run = run

    def run_once(self) -> timedelta | None:
        free = self._free()
        if free <= 0:
            return self._poll_interval  # a settlement frees capacity and wakes us
        if self.listeners:
            self.listeners.publish(PollBegan(worker=self.worker, capacity=free))
        found = self.claim(free)
        if found:
            return AT_ONCE  # a short batch is not an empty one: rows may have been locked for a moment
        due = self._store.next_due(self._names)
        if due is None:
            return self._poll_interval
        # A due row that could not be claimed just now is locked by somebody: look again soon, not in a spin.
        return min(due if due > timedelta(0) else timedelta(milliseconds=100), self._poll_interval)

    def claim(self, limit: int, instance: str | None = None) -> int:
        """One claim statement; its claims are handed to the runner. How many rows it found."""
        before = self.elapsed()  # the lease is believed in from before the statement was sent
        with self._holdings.claiming():
            found, claims = self._store.claim(
                self.worker, limit, lease=self._lease, names=self._names, instance=instance
            )
            held = self._holdings.add(claims, before)
        self._start(held)
        return found

    def adopt(self, claim: Claim, before: float) -> Holding:
        """Run a claim that was made elsewhere; ``before``: elapsed seconds when its statement was sent."""
        held = self._holdings.add([claim], before)
        self._start(held)
        return held[0]

    def _start(self, held: Sequence[Holding]) -> None:
        for holding in held:
            if self.listeners:
                self.listeners.publish(Claimed(**about(holding.claim)))
            self._run(holding)
