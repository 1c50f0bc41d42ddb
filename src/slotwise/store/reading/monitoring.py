"""Figures for monitoring: what is due of each name, and how long ago jobs have succeeded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import sqlalchemy as sa

from slotwise.model.records import FOREVER, from_micros
from slotwise.model.values import Value
from slotwise.schedules import Disabled
from slotwise.schedules.text import readable
from slotwise.store.reading.task_counts import MOST
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, RANK, is_plan
from slotwise.store.slots.store import Store

Column = TypeVar("Column")
_NONE = timedelta(0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceSuccess(Value):
    """How long ago a job succeeded, ``since`` its planning if it never has; of several instances,
    the one that waits the longest.

    ``overdue``: how long ago the first slot after that was due; zero while it is to come.
    """

    since: timedelta
    overdue: timedelta


def since_success(store: Store, jobs: Collection[str]) -> dict[str, SinceSuccess]:
    """Return this of each of these jobs whose schedule has further slots, or whose instances'
    have.
    """
    tasks = store.tables.tasks
    success = tasks.c.last_success
    created = sa.case((success.is_(None), tasks.c.created_version))
    wanted = (
        sa.select(
            tasks.c.task_name, tasks.c.schedule, sa.func.min(success), sa.func.min(created)
        )
        .where(
            store.dialect.among(tasks.c.task_name, jobs),
            is_plan(tasks),
            tasks.c.schedule != str(Disabled()),
            tasks.c.state.is_not(None) | (tasks.c.execution_time < FOREVER),
        )
        .group_by(tasks.c.task_name, tasks.c.schedule)
    )
    with store.transaction() as connection:
        now = utc(store.dialect.now(connection))
        rows = connection.execute(wanted).all() if jobs else []
    found = dict[str, SinceSuccess]()
    for name, text, last, first in rows:
        instants = [utc(last)] if last else []
        if first:
            instants.append(from_micros(first))
        if not instants:  # another program's row
            continue
        one = _since(text, min(instants), now)
        known = found.get(name, one)
        found[name] = SinceSuccess(
            since=max(known.since, one.since), overdue=max(known.overdue, one.overdue)
        )
    return found


def _since(text: str, success: datetime, now: datetime) -> SinceSuccess:
    schedule = readable(text)
    next_slot = None if schedule is None else schedule.next_after(success)
    overdue = _NONE if next_slot is None else max(now - next_slot, _NONE)
    return SinceSuccess(since=max(now - success, _NONE), overdue=overdue)
