"""Counts of rows by name, each up to ``MOST``; each name is found by one index look-up, however
many rows have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar

import sqlalchemy as sa

from slotwise.model.records import RECURRING, from_micros
from slotwise.model.values import Value
from slotwise.model.vocabulary import ListedState, RowState
from slotwise.store.reading.routing import NO_WORKER_LIVES
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, RANK
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog(Value):
    """Due rows of one name that are not claimed. ``waiting`` is exact up to ``MOST``, a lower
    bound above it.

    ``oldest``: how long the oldest of these rows has been due.
    """

    name: str
    waiting: int
    oldest: timedelta


def backlog(store: Store) -> list[Backlog]:
    """Return the due rows of each job and task, by name. Of the jobs' slots together, the oldest
    ``MOST`` count.
    """
    tasks = store.tables.tasks
    found = dict[str, tuple[int, datetime]]()
    with store.transaction() as connection:
        now = store.dialect.now(connection)
        rows = [
            *connection.execute(_slots(tasks, now)),
            *connection.execute(_queued(tasks, now)),
        ]
    for name, count, oldest in rows:
        if count:
            known, first = found.get(name, (0, utc(oldest)))
            found[name] = known + count, min(first, utc(oldest))
    return [
        Backlog(
            name=name, waiting=min(count, MOST), oldest=max(utc(now) - oldest, timedelta(0))
        )
        for name, (count, oldest) in sorted(found.items())
    ]


def since_success(store: Store, jobs: Collection[str]) -> dict[str, timedelta]:
    """Return the time since each of these jobs has last succeeded or, if it never has, since it
    was planned.
    """
    tasks = store.tables.tasks
    wanted = sa.select(
        tasks.c.task_name, tasks.c.last_success, tasks.c.created_version
    ).where(
        store.dialect.among(tasks.c.task_name, jobs), tasks.c.task_instance == RECURRING
    )
    with store.transaction() as connection:
        now = utc(store.dialect.now(connection))
        rows = connection.execute(wanted).all() if jobs else []
    begun = {
        name: utc(success) if success else from_micros(created)
        for name, success, created in rows
        if success or created
    }
    return {name: max(now - instant, timedelta(0)) for name, instant in begun.items()}


def _slots(tasks: sa.Table, now: datetime) -> sa.Select[tuple[str, int, datetime]]:
    due = sa.select(tasks.c.task_name, tasks.c.execution_time)
    due = due.where(
        ~tasks.c.picked,
        tasks.c.state.is_(None),
        sa.text(HAS_SLOT),
        tasks.c.execution_time <= now,
    )
    oldest = due.order_by(tasks.c.execution_time).limit(MOST + 1).subquery()
    counted = sa.select(
        oldest.c.task_name, sa.func.count(), sa.func.min(oldest.c.execution_time)
    )
    return counted.group_by(oldest.c.task_name)


def _queued(tasks: sa.Table, now: datetime) -> sa.Select[tuple[str, int, datetime]]:
    """Select count and oldest of each name and priority, which lead the queue's index.

    It takes the first row of an order, not a minimum, for which PostgreSQL might read the whole
    table.
    """
    rank = sa.literal_column(RANK, sa.Integer)
    name = tasks.c.task_name
    due = tasks.c.execution_time
    waits = (
        sa.select()
        .select_from(tasks)
        .where(~tasks.c.picked, tasks.c.state.is_(None), sa.text(IS_TASK))
    )

    def first(
        column: sa.ColumnElement[Column], *conditions: sa.ColumnElement[bool]
    ) -> sa.ScalarSelect[Column]:
        return (
            waits.add_columns(column)
            .where(*conditions)
            .order_by(column)
            .limit(1)
            .scalar_subquery()
        )

    names = sa.select(first(name).label("name")).cte("names", recursive=True)
    names = names.union_all(
        sa.select(first(name, name > names.c.name)).where(names.c.name.is_not(None))
    )
    begin = sa.select(names.c.name, first(rank, name == names.c.name).label("rank"))
    heads = begin.where(names.c.name.is_not(None)).cte("heads", recursive=True)
    further = sa.select(
        heads.c.name, first(rank, name == heads.c.name, rank > heads.c.rank)
    )
    heads = heads.union_all(further.where(heads.c.rank.is_not(None)))
    mine = name == heads.c.name, rank == heads.c.rank, due <= now
    some = (
        waits.add_columns(sa.literal(1))
        .where(*mine)
        .limit(MOST + 1)
        .correlate(heads)
        .subquery()
    )
    count = sa.select(sa.func.count()).select_from(some).correlate(heads).scalar_subquery()
    return sa.select(heads.c.name, count, first(due, *mine)).where(
        heads.c.rank.is_not(None)
    )
