"""New rows from outside the plan: one-time tasks and triggers, in the caller's transaction if there is one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from slotwise.execution import Claim
from slotwise.store.detached import trigger
from slotwise.store.store import Store
from slotwise.store.types import to_micros


class Enqueue:
    """Inserts rows; a row's first version is the database's time, so tokens rise even when an id is used again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks = store.tables.tasks

    def task(
        self,
        connection: sa.Connection,
        name: str,
        instance: str,
        *,
        data: bytes | None,
        at: datetime | None,
        delay: timedelta,
        priority: int,
    ) -> bool:
        """One row, due at ``at``, or ``delay`` after now; False if that instance exists already."""
        now = self._store.dialect.now(connection)
        due = at if at is not None else now + delay
        return self._insert(
            connection, now, task_name=name, task_instance=instance, task_data=data,
            execution_time=due, slot=due, priority=priority,
        )  # fmt: skip

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

    def _insert(self, connection: sa.Connection, now: datetime, **values: Any) -> bool:
        born = to_micros(now)
        statement = self._store.dialect.insert(self._tasks).values(
            picked=False, version=born, first_version=born, **values
        )
        inserted = statement.on_conflict_do_nothing().returning(self._tasks.c.version)
        return connection.execute(inserted).first() is not None
