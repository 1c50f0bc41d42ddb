"""End pauses whose time has come. Every worker looks; one transaction at a time ends them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from slotwise.engine.loops.service import AT_ONCE, Service, WorkerCommon
from slotwise.engine.loops.tuning import PAUSE_CHECK
from slotwise.store.connect.notifications import OPERATIONS
from slotwise.store.operations.job_operations import end_pauses
from slotwise.store.operations.pauses import next_end
from slotwise.store.operations.transaction import Author, Operation


class PauseEnds(Service):
    """Look for the next end of a pause, sleep until then, and resume what was paused."""

    name = "pause_ends"

    def __init__(self, common: WorkerCommon, *, on_end: Callable[[], None]) -> None:
        """``on_end``: what was paused may be due."""
        super().__init__(common)
        self._store = common.store
        self._author = Author(
            f"worker {common.worker}"[:200], "the pause ended by itself"
        )
        self._on_end = on_end

    def run_once(self) -> timedelta:
        with self._store.database.autocommit() as connection:
            end = next_end(connection, self._store.tables)
            now = self._store.dialect.now(connection)
        if end is None or end > now:
            return PAUSE_CHECK if end is None else min(PAUSE_CHECK, end - now)
        with self._store.transaction() as connection:
            ended = end_pauses(Operation.within(connection, self._store, self._author))
        if not ended:  # another worker ends it
            return PAUSE_CHECK
        self._on_end()
        self._store.database.wake_ups.tell(OPERATIONS)
        return AT_ONCE
