"""Counts of rows by name, each up to ``MOST``; each name is found by one index look-up, however
many rows have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar

import sqlalchemy as sa

from slotwise.model.values import Value
from slotwise.model.vocabulary import ListedState, RowState
from slotwise.store.reading.routing import NO_WORKER_LIVES
from slotwise.store.schema.tables import IS_TASK
from slotwise.store.slots.store import Store

MOST = 10_000
#: How many names are counted, and read from tables that others may have filled with names.
MOST_NAMES = 1_000
HALF = timedelta(milliseconds=500)
Column = TypeVar("Column")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCount(Value):
    """Counts of one task. ``waiting`` is ``MOST`` + 1 if more wait. ``next_due`` is the next due
    time to the second, at most a day ago.
    """

    task: str
    waiting: int = 0
    next_due: datetime | None = None
    running: int = 0
    paused: int = 0
    blocked: int = 0
    dead: int = 0
    #: Why no live worker takes those that are due.
    reason: str | None = None

    @property
    def is_unroutable(self) -> bool:
        """Whether workers are alive, and none of them takes its due rows."""
        return self.reason is not None and self.reason != NO_WORKER_LIVES

    @property
    def has_more(self) -> bool:
        """Whether more wait than are counted."""
        return self.waiting > MOST


def task_counts(store: Store) -> list[TaskCount]:
    """Return the counts by name, of ``MOST_NAMES`` tasks that have a row."""
    tasks = store.tables.tasks
    waits = sa.and_(~tasks.c.picked, tasks.c.state.is_(None), sa.text(IS_TASK))
    with store.transaction() as connection:
        counts = _others(connection, tasks)
        waiting = names_in(connection, tasks.c.task_name, waits)
        for name in list(islice(waiting, max(MOST_NAMES - len(counts), 0))):
            counts.setdefault(name, {})
        for name, counted in counts.items():
            mine = (
                sa.select(sa.literal(1))
                .select_from(tasks)
                .where(waits, tasks.c.task_name == name)
                .limit(MOST + 1)
            )
            counted["waiting"] = (
                connection.scalar(sa.select(sa.func.count()).select_from(mine.subquery()))
                or 0
            )
    due = {name: store.due.next_due([], [name]) for name in sorted(counts)}
    now = store.now() + HALF
    return [
        TaskCount(
            task=name,
            waiting=counts[name].get("waiting", 0),
            next_due=None if wait is None else (now + wait).replace(microsecond=0),
            running=counts[name].get(ListedState.RUNNING, 0),
            paused=counts[name].get(RowState.PAUSED, 0),
            blocked=counts[name].get(RowState.BLOCKED, 0),
            dead=counts[name].get(RowState.DEAD, 0),
        )
        for name, wait in due.items()
    ]


def _others(connection: sa.Connection, tasks: sa.Table) -> dict[str, dict[str, int]]:
    still = sa.and_(
        ~tasks.c.picked,
        tasks.c.state.in_((RowState.PAUSED, RowState.BLOCKED, RowState.DEAD)),
    )
    counts: dict[str, dict[str, int]] = {}
    for state, rows in (
        (sa.literal(ListedState.RUNNING.value), tasks.c.picked),
        (tasks.c.state, still),
    ):
        found = (
            sa.select(tasks.c.task_name, state, sa.func.count())
            .where(rows, sa.text(IS_TASK))
            .group_by(sa.text("1, 2"))
            .order_by(tasks.c.task_name)
            .limit(MOST_NAMES)
        )
        for name, word, count in connection.execute(found):
            if name in counts or len(counts) < MOST_NAMES:
                counts.setdefault(name, {})[word] = count
    return counts


def names_in(
    connection: sa.Connection, column: sa.Column[str], *conditions: sa.ColumnElement[bool]
) -> Iterator[str]:
    """Yield each name of a column once, in order: by one index look-up for each, however many rows
    have it.
    """
    last = ""
    while (
        found := connection.scalar(
            sa.select(sa.func.min(column)).where(*conditions, column > last)
        )
    ) is not None:
        yield (last := found)
