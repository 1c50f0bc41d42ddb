"""What a handler is given: the context of its attempt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from slotwise.engine.run.active_claims import Holding
from slotwise.errors import InvalidSchedule
from slotwise.jobs.context import JobContext, TaskContext
from slotwise.store.slots.fence import LedgerFence
from slotwise.store.slots.store import Store


class Contexts:
    """Makes the contexts of a worker's attempts. ``state``: what the lifespan has given by then."""

    def __init__(self, store: Store, client: Any, state: Callable[[], Any], stopping: Callable[[], bool]) -> None:
        self._store = store
        self._client = client
        self._state = state
        self._stopping = stopping
        self._fence = LedgerFence(store)

    def make(self, holding: Holding) -> JobContext:
        row = holding.claim.row
        schedule = None
        if row.schedule:
            with suppress(InvalidSchedule):  # a newer release wrote it: the slot runs, the next is for others to tell
                schedule = self._store.schedule_of(row).running
        definition = self._store.definitions[row.task_name]
        return (JobContext if definition.is_job else TaskContext)(
            holding,
            fence=self._fence,
            schedule=schedule,
            read=definition.payload.decode,
            client=self._client,
            state=self._state(),
            stopping=self._stopping,
        )
