"""How many one-time tasks of each name wait, run, or stand still; counted to ``MOST`` and no further."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.store.queue import BLOCKED
from slotwise.store.store import Store
from slotwise.store.tables import IS_TASK

MOST = 10_000
HALF = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCount:
    """``MOST`` + 1 is more than ``MOST``. ``next_due``: when the next waiting one is due, or was (a day ago at most),
    to the second.
    """

    task: str
    waiting: int
    next_due: datetime | None
    running: int
    paused: int
    blocked: int
    dead: int


class TaskCounts:
    """Read by index: one descent for each name, and no further than ``MOST`` rows for each state of it."""

    def __init__(self, store: Store) -> None:
        self._store, self._tasks = store, store.tables.tasks
        tasks = self._tasks
        still = {state: ~tasks.c.picked & (tasks.c.state == state) for state in ("paused", BLOCKED, "dead")}
        self._states = {"waiting": ~tasks.c.picked & tasks.c.state.is_(None), "running": tasks.c.picked, **still}

    def all(self) -> list[TaskCount]:
        """By name; only tasks that have a row."""
        with self._store.transaction() as connection:
            names = {name for state in self._states.values() for name in self._names(connection, state)}
            counts = {name: self._count(connection, name) for name in sorted(names)}
        return [TaskCount(task=name, next_due=self._next_due(name), **found) for name, found in counts.items()]

    def _next_due(self, name: str) -> datetime | None:
        due = self._store.next_due([], [name])
        return None if due is None else (self._store.now() + due + HALF).replace(microsecond=0)

    def _names(self, connection: sa.Connection, state: sa.ColumnElement[bool]) -> Iterator[str]:
        name = self._tasks.c.task_name
        last: str | None = ""
        while last is not None:
            following = sa.select(sa.func.min(name)).where(state, sa.text(IS_TASK), name > last)
            if (last := connection.scalar(following)) is not None:
                yield last

    def _count(self, connection: sa.Connection, name: str) -> dict[str, int]:
        mine = sa.and_(self._tasks.c.task_name == name, sa.text(IS_TASK))
        some = [
            sa.select(sa.func.count())
            .select_from(
                sa.select(sa.literal(1)).select_from(self._tasks).where(state, mine).limit(MOST + 1).subquery()
            )
            .scalar_subquery()
            for state in self._states.values()
        ]
        return dict(zip(self._states, connection.execute(sa.select(*some)).one(), strict=True))
