"""The queue's commands on PostgreSQL: one statement each.

A statement sees the database as it was when it began, except where it meets a row that somebody else has just
written: there it waits, and sees that row as it is now. Where a command looks at two kinds of rows (held and waiting
ones), a row may thus change its kind between both looks; such a command is asked again.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from slotwise.model.records import Key
from slotwise.store.connect.notifications import ORDERS
from slotwise.store.dialects.dialect import Dialect
from slotwise.store.dialects.postgresql.insert import PostgresPuts
from slotwise.store.queue.queue import Queue
from slotwise.store.queue.queue_rows import Status, named


class PostgresQueue(PostgresPuts, Queue):
    """Whole chunks; and a cancellation in one look."""

    def cancel(self, connection: Any, key: Key) -> Status:
        """Race: a row that is claimed, or let go, while the statement waits for it is of neither kind: ask again."""
        statement, parameters = self._kept(("cancel",), self._cancel), named(key) | self._time()
        for _ in range(3):
            is_told, is_removed, was_there = connection.execute(statement, parameters).fetchone()
            if is_told or is_removed or not was_there:
                break
        if is_told:
            self.say(connection, ORDERS)
        return "running" if is_told else "cancelled" if is_removed else "gone"

    def _cancel(self) -> Any:
        tasks, mine = self._tasks, [*self._asked_key(), *self._plain()]
        told = tasks.update().where(*mine, tasks.c.picked).values(cancel_requested=self._clock())
        removed = tasks.delete().where(*mine, ~tasks.c.picked, self._may_delete())
        rows = [one.returning(tasks.c.picked).cte() for one in (told, removed)]
        counts = [sa.select(sa.func.count()).select_from(row).scalar_subquery() for row in rows]
        return sa.select(*counts, sa.select(sa.func.count()).select_from(tasks).where(*mine).scalar_subquery())


@lru_cache(maxsize=16)
def queue_of(dialect: Dialect, wake: timedelta | None = None) -> Queue:
    """The commands in the words of this database; ``wake`` as for a Queue. It keeps its statements, and so it is kept:
    a process has few.
    """
    return (PostgresQueue if dialect.name == "postgresql" else Queue)(dialect, wake)
