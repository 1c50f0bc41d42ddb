"""Claims due rows, slots and one-time tasks, as far as there is room, and says how long to sleep."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from slotwise.engine.holdings import Holding, Holdings
from slotwise.engine.runner import Runner
from slotwise.engine.service import AT_ONCE, Service
from slotwise.events import Claimed, PollBegan, about, skipped
from slotwise.execution import Claim, Gap, Row
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
        runner: Runner,
        **service: Any,
    ) -> None:
        super().__init__(**service)
        self._store = store
        self._holdings = holdings
        self._names = names
        self._tasks = [name for name in names if not store.definitions[name].is_job]
        self._lease = lease
        self._poll_interval = poll_interval
        self._runner = runner

    def run_once(self) -> timedelta | None:
        slots, tasks = self._runner.free(), self._runner.free_for_tasks()
        if slots <= 0 and tasks <= 0:
            return self._poll_interval  # a settlement frees capacity and wakes us
        if self.listeners.hear(PollBegan):
            self.listeners.publish(PollBegan(worker=self.worker, capacity=max(slots, tasks)))
        if self._claim_slots(slots) + self._claim_tasks(tasks):
            return AT_ONCE  # a short batch is not an empty one: rows may have been locked for a moment
        names, queued = self._names if slots > 0 else [], self._tasks if tasks > 0 else []
        due = self._store.next_due(names, queued, lost=self._lost())
        if due is None:
            return self._poll_interval
        # A due row that could not be claimed just now is locked by somebody: look again soon, not in a spin.
        return min(due if due > timedelta(0) else timedelta(milliseconds=100), self._poll_interval)

    def _lost(self) -> int:
        """How many rows may be taken whose holder has died before: one, and none beside another that is fresh.

        Whatever killed that holder may be among them: together again, it would take its neighbours along again.
        """
        return int(not any(holding.waited() < self._lease for holding in self._holdings.lost_before()))

    def claim(self, limit: int) -> int:
        """Claim up to ``limit`` due rows, slots first; they are handed to the runner. How many it found."""
        found = self._claim_slots(limit)
        return found + self._claim_tasks(limit - found)

    def _claim_slots(self, limit: int) -> int:
        if limit <= 0:
            return 0
        before = self.elapsed()  # the lease is believed in from before the statement was sent
        with self._holdings.claiming():
            found, claims = self._store.claim_slots(
                self.worker,
                limit,
                lease=self._lease,
                names=self._names,
                lost=self._lost(),
                on_skipped=self._tell_skipped,
            )
            held = self._holdings.add(claims, before)
        self._start(held)
        return found

    def _claim_tasks(self, limit: int) -> int:
        if limit <= 0 or not self._tasks:
            return 0
        before = self.elapsed()
        with self._holdings.claiming():
            claims = self._store.claim_tasks(self.worker, limit, lease=self._lease, names=self._tasks)
            held = self._holdings.add(claims, before)
        self._start(held)
        return len(held)

    def _tell_skipped(self, row: Row, gap: Gap) -> None:
        self.listeners.publish(skipped(self.worker, row, gap))

    def adopt(self, claim: Claim, before: float) -> Holding:
        """Run a claim that was made elsewhere; ``before``: elapsed seconds when its statement was sent."""
        held = self._holdings.add([claim], before)
        self._start(held)
        return held[0]

    def _start(self, held: Sequence[Holding]) -> None:
        if self.listeners.hear(Claimed):
            for holding in held:
                self.listeners.publish(Claimed(**about(holding.claim)))
        self._runner.start(held, first=bool(held) and held[0].is_slot)
