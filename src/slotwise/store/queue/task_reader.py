"""Reads one-time tasks: one, a page of them, how they have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from slotwise.model.records import Key
from slotwise.model.vocabulary import Origin, State
from slotwise.store.queue.queue_rows import QueueRows, named

#: What is read of an end, in this order.
END_COLUMNS = (
    "task_name", "task_instance", "outcome", "reason", "attempts", "worker", "started", "finished", "error", "expires",
    "result",
)  # fmt: skip
#: What is read of a task, in this order.
TASK_COLUMNS = (
    "task_name", "task_instance", "execution_time", "picked", "picked_by", "state", "parked_due", "priority", "attempt",
    "lost_count", "consecutive_failures", "last_failure", "last_error", "cancel_requested", "first_version",
)  # fmt: skip


class TaskReader(QueueRows):
    """Reads, without a lock."""

    def find(self, connection: Any, key: Key) -> Any | None:
        """The columns of TASK_COLUMNS and the data; None if there is no such task."""
        statement = self._kept(("find",), self._find)
        return connection.execute(statement, named(key)).fetchone()

    def _find(self) -> Any:
        columns = [*self._columns(), self._tasks.c.task_data]
        return sa.select(*columns).where(*self._asked_key(), *self._plain())

    def page(
        self, connection: Any, *, name: str | None, state: str | None, after: Key | None, size: int
    ) -> Sequence[Any]:
        """The next rows in the order of their keys, which never change: nothing is missed or seen twice."""
        tasks = self._tasks
        statement = sa.select(*self._columns()).where(*self._plain())
        if name is not None:
            statement = statement.where(tasks.c.task_name == name)
        if state is not None:
            statement = statement.where(*self._in_state(state))
        if after is not None:
            statement = statement.where(sa.tuple_(*self._key_columns()) > sa.tuple_(*map(sa.literal, after)))
        found: Sequence[Any] = connection.execute(statement.order_by(*self._key_columns()).limit(size)).fetchall()
        return found

    def ends(self, connection: Any, key: Key) -> Sequence[Any]:
        """What the ledger keeps of the tasks that have ended under this id, the newest first: END_COLUMNS."""
        slots = self._dialect.tables.slots
        statement = (
            sa.select(*(slots.c[name] for name in END_COLUMNS))
            .where(slots.c.task_name == key.task_name, slots.c.task_instance == key.task_instance)
            .where(slots.c.origin == Origin.TASK, slots.c.finished.is_not(None))
            .where(slots.c.expires.is_(None) | (slots.c.expires > self._now(connection)))
            .order_by(slots.c.slot.desc())
        )
        found: Sequence[Any] = connection.execute(statement).fetchall()
        return found

    def _in_state(self, state: str) -> list[sa.ColumnElement[bool]]:
        tasks = self._tasks
        match state:
            case State.RUNNING:
                return [tasks.c.picked]
            case State.WAITING:
                return [~tasks.c.picked, tasks.c.state.is_(None)]
        return [~tasks.c.picked, tasks.c.state == state]

    def _columns(self) -> list[Any]:
        return [self._tasks.c[name] for name in TASK_COLUMNS]
