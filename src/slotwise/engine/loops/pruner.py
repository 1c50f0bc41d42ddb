"""Keeps the ledger from growing for ever: every worker runs one, and they take turns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from slotwise.engine.loops.service import Service
from slotwise.model.events import Pruned
from slotwise.store.slots.retention import Page, Pruner

#: Between two walks through the ledger, by whichever worker.
INTERVAL = timedelta(hours=1)
#: Jobs of one round, and the pause after it: others want the database, too.
ROUND = 50
BREATH = timedelta(milliseconds=100)


class History(Service):
    """Walks through the ledger when it is this worker's turn, a bounded number of transactions a round."""

    name = "pruner"

    def __init__(self, pruner: Pruner, **service: Any) -> None:
        super().__init__(**service)
        self._pruner = pruner
        self._walk: Iterator[Page] | None = None
        self._taken = Page()

    def run_once(self) -> timedelta:
        if self._walk is None:
            if not self._pruner.take_turn(INTERVAL):
                return INTERVAL / 4
            self._walk, self._taken = self._pruner.pages(), Page()
        for _ in range(ROUND):
            page = next(self._walk, None)
            if page is None:
                return self._end()
            self._taken = Page(self._taken.slots + page.slots, self._taken.gaps + page.gaps)
        return BREATH

    def _end(self) -> timedelta:
        self._walk = None
        if self._taken != Page():
            self.listeners.publish(Pruned(worker=self.worker, slots=self._taken.slots, gaps=self._taken.gaps))
        return INTERVAL
