"""Counts of one-time tasks by name and state, up to ``MOST``.

Millions of rows may wait under a few names, so each name is found by one descent of an index. Other rows are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.vocabulary import State
from slotwise.store.schema.tables import IS_TASK
from slotwise.store.slots.store import Store

MOST = 10_000
HALF = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCount:
    """Counts of one task. ``waiting`` is ``MOST`` + 1 if more wait. ``next_due`` is the next due time to the second, at
    most a day ago.
    """

    task: str
    waiting: int = 0
    next_due: datetime | None = None
    running: int = 0
    paused: int = 0
    blocked: int = 0
    dead: int = 0


class TaskCounts:
    """Reads the tables of a store."""

    def __init__(self, store: Store) -> None:
        self._store, self._tasks = store, store.tables.tasks
        self._waits = sa.and_(~self._tasks.c.picked, self._tasks.c.state.is_(None), sa.text(IS_TASK))

    def all(self) -> list[TaskCount]:
        """Return the counts by name, of tasks that have a row."""
        with self._store.transaction() as connection:
            counts = self._others(connection)
            for name in list(names_in(connection, self._tasks.c.task_name, self._waits)):
                counts.setdefault(name, {})["waiting"] = self._waiting(connection, name)
        return [TaskCount(task=name, next_due=self._next_due(name), **counts[name]) for name in sorted(counts)]

    def _others(self, connection: sa.Connection) -> dict[str, dict[str, int]]:
        """Count rows that run, are paused, blocked or dead."""
        tasks = self._tasks
        still = sa.and_(~tasks.c.picked, tasks.c.state.in_((State.PAUSED, State.BLOCKED, State.DEAD)))
        counts: dict[str, dict[str, int]] = {}
        for state, rows in ((sa.literal(State.RUNNING.value), tasks.c.picked), (tasks.c.state, still)):
            found = (
                sa.select(tasks.c.task_name, state, sa.func.count())
                .where(rows, sa.text(IS_TASK))
                .group_by(sa.text("1, 2"))
            )
            for name, word, count in connection.execute(found):
                counts.setdefault(name, {})[word] = count
        return counts

    def _waiting(self, connection: sa.Connection, name: str) -> int:
        mine = sa.select(sa.literal(1)).select_from(self._tasks).where(self._waits, self._tasks.c.task_name == name)
        counted = sa.select(sa.func.count()).select_from(mine.limit(MOST + 1).subquery())
        return int(connection.scalar(counted) or 0)

    def _next_due(self, name: str) -> datetime | None:
        due = self._store.due.next_due([], [name])
        return None if due is None else (self._store.now() + due + HALF).replace(microsecond=0)


def names_in(connection: sa.Connection, column: sa.Column[str], *conditions: sa.ColumnElement[bool]) -> Iterator[str]:
    """Yield each name of a column once, in order: by one index look-up for each, however many rows have it."""
    last = ""
    while (found := connection.scalar(sa.select(sa.func.min(column)).where(*conditions, column > last))) is not None:
        yield (last := found)
