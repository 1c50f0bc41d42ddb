"""Triggers: rows from outside the plan, in the caller's transaction if there is one."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from slotwise.model.records import Claim
from slotwise.store.slots.detached import trigger
from slotwise.store.slots.store import Store


class Enqueue:
    """Inserts rows for jobs beside their schedules."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def trigger(self, connection: sa.Connection, name: str) -> str:
        """A detached row for a job, now, beside its schedule; the instance. Raises UnknownTask without a plan row."""
        return trigger(connection, self._store.dialect, name).task_instance

    def claim_trigger(self, holder: str, name: str, *, lease: timedelta, strict: bool) -> Claim | None:
        """Trigger a job and claim it in one transaction, so that no other worker can be first."""
        with self._store.transaction() as connection:
            instance = trigger(connection, self._store.dialect, name, state=None).task_instance
            found = self._store.dialect.claim(
                connection, holder=holder, names=[name], strict=[name] if strict else [], limit=1, lease=lease,
                instance=instance,
            )  # fmt: skip
        row, now, entered = found[0]
        return Claim(row=row, holder=holder, lease=lease, claimed_at=now) if entered else None
