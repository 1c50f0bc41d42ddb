"""Tells attempts that have run for longer than their job's timeout to stop."""

from __future__ import annotations

import heapq
import itertools
import threading
from datetime import timedelta
from typing import Any

from slotwise.engine.loops.service import Service
from slotwise.engine.run.active_claims import Holding
from slotwise.model.vocabulary import Reason

#: So many entries are looked through for ended ones; later, twice as many as were left.
SWEEP = 1024


class Deadlines(Service):
    """Sleeps until the earliest deadline; measures with the worker's own clock, needs no database."""

    name = "deadlines"

    def __init__(self, **service: Any) -> None:
        super().__init__(**service)
        self._lock = threading.Lock()
        self._number = itertools.count()
        self._heap: list[tuple[float, int, Holding]] = []
        self._sweep_at = SWEEP

    def watch(self, holding: Holding, timeout: timedelta) -> None:
        """From now on, ``timeout`` is left to this attempt."""
        with self._lock:
            if len(self._heap) >= self._sweep_at:
                self._sweep()
            entry = (self.elapsed() + timeout.total_seconds(), next(self._number), holding)
            heapq.heappush(self._heap, entry)
            is_earliest = self._heap[0] is entry
        if is_earliest:
            self.wake()

    def _sweep(self) -> None:
        """Forget what has ended: a thousand short tasks a second with a long timeout would gather by the hour."""
        self._heap = [entry for entry in self._heap if not entry[2].ended]
        heapq.heapify(self._heap)
        self._sweep_at = max(2 * len(self._heap), SWEEP)

    def run_once(self) -> timedelta | None:
        while (due := self._pop_due()) is not None:
            if not due.ended:
                due.signal.set(Reason.TIMEOUT)
        with self._lock:
            return timedelta(seconds=self._heap[0][0] - self.elapsed()) if self._heap else None

    def _pop_due(self) -> Holding | None:
        with self._lock:
            while self._heap and (self._heap[0][2].ended or self._heap[0][0] <= self.elapsed()):
                holding = heapq.heappop(self._heap)[2]
                if not holding.ended:
                    return holding
        return None
