"""The state of the cluster at one instant: which rows wait, and why nobody takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

import sqlalchemy as sa

from slotwise.decide.ending import NEWER, UNREADABLE
from slotwise.model.values import Value
from slotwise.model.vocabulary import Kind, ListedState, Origin, RowState, WorkerState
from slotwise.store.operations.job_operations import all_paused
from slotwise.store.reading.jobs import common_zone, jobs_among, paused_by
from slotwise.store.reading.routing import UNDER_A_JOB, obstacle
from slotwise.store.reading.task_counts import MOST_NAMES
from slotwise.store.reading.worker_registry import WorkerInfo, all_workers, tags_of
from slotwise.store.schema.rows import Unread, rows_apart, utc
from slotwise.store.schema.tables import HAS_SLOT, MOST_HELD, runs_on
from slotwise.store.slots.store import NEWER_PATIENCE, Store

#: How long a job must have skipped slots at each start to be behind; how many due rows are
#: searched for such jobs, and how many of those jobs are returned.
A_MINUTE = timedelta(minutes=1)
_OLDEST = 1_000
_BEHIND = 20
#: A calendar that lists no days beyond this time from now is reported.
_CALENDAR_NOTICE = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable(Value):
    """``rows`` of a task that cannot be read: due ``since`` (None if that cannot be read either),
    with the error.

    ``dead`` rows are not tried again; a job's row is tried each minute.
    """

    task: str
    rows: int
    since: datetime | None
    error: str
    dead: bool
    #: A newer release has written them, and its workers can read them.
    newer: bool = False

    def waits_for_deploy(self, now: datetime) -> bool:
        """Whether they wait for a newer worker no longer than a rolling deploy may take to start
        one.
        """
        return self.newer and self.since is not None and now - self.since < NEWER_PATIENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(Value):
    """The state of the cluster at one instant.

    ``overdue`` rows wait, ``silent`` ones are held past their lease, ``unreadable`` ones have an
    invalid value, and are neither. ``orphans`` wait or are held past their lease, too, but no live
    worker runs their tasks, of which at most 1,000 are named. ``refused``: jobs of which a live
    worker has another schedule than the row.
    """

    now: datetime
    live_workers: int
    overdue: int
    oldest_due: datetime | None
    silent: int
    dead: int
    orphans: int
    orphan_tasks: Sequence[str]
    refused: Sequence[str]
    #: Names of tasks with such rows for which no live worker carries the tags, and which.
    unroutable: Mapping[str, str]
    unreadable: Sequence[Unreadable]
    #: Some of the jobs that have skipped slots at each start of the last minute: their workers
    #: cannot keep up.
    behind: Sequence[str] = ()
    #: Live workers with a handler that was asked to stop and still runs, and what they run.
    hanging: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Workers that were not seen within their lease, and have not signed out.
    gone_workers: Sequence[str] = ()
    #: Workers whose rows cannot be read; they do not count as live.
    unreadable_workers: Sequence[str] = ()
    #: Author, time and note of a pause of all; nothing is overdue then.
    paused: str | None = None
    #: Business calendars whose listed days end within a month, with their last year; later days
    #: count as business days.
    ended_calendars: Mapping[str, int] = field(default_factory=dict)


def health(store: Store, overdue_after: timedelta) -> Health:
    """Count rows that are overdue, past their lease, dead or unreadable; orphans apart, if any
    worker is alive.
    """
    workers = all_workers(store)
    live = [worker for worker in workers if worker.live]
    known = {name for worker in live for name in worker.tasks}
    tasks = store.tables.tasks
    with store.transaction() as connection:
        now = store.dialect.now(connection)
        paused = all_paused(connection, store.tables)
        due = sa.and_(
            ~tasks.c.picked,
            tasks.c.state.is_(None),
            tasks.c.execution_time < now - overdue_after,
        )
        if paused is not None:
            due = sa.false()
        overdue = _overdue(store, connection, due, known if live else None)
        silent, undecoded = _silent(store, connection, now)
        unreadable = _unreadable(store, connection) + undecoded
        behind = [] if paused is not None else _behind(store, connection, now)
        is_dead = tasks.c.state == RowState.DEAD
        hanging = {
            worker.worker: _run_by(store, connection, worker.worker)
            for worker in live
            if worker.state == WorkerState.HANGING
        }
        dead = connection.scalar(sa.select(sa.func.count()).where(is_dead)) or 0
        ended_calendars = _ended_calendars(store, connection, utc(now) + _CALENDAR_NOTICE)
    lost = [name for name in silent if live and name not in known]
    gone, damaged = _without_life(workers)
    return Health(
        now=utc(now),
        live_workers=len(live),
        hanging=hanging,
        gone_workers=gone,
        overdue=overdue.rows,
        oldest_due=utc(overdue.oldest),
        silent=len(silent) - len(lost),
        dead=dead,
        behind=behind,
        unreadable_workers=damaged,
        orphans=overdue.orphans + len(lost),
        orphan_tasks=sorted({*lost, *overdue.orphan_tasks})[:MOST_NAMES],
        refused=sorted({name for worker in live for name in worker.refused}),
        unroutable=_unroutable(store, overdue, live),
        unreadable=[one for one in unreadable if one.task in known or not live],
        paused=None if paused is None else paused_by(paused, common_zone(store)),
        ended_calendars=ended_calendars,
    )


#: Name, kind, tags, count and first due time.
_Waiting: TypeAlias = tuple[str, str, str | None, int, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overdue:
    """Rows that wait for longer than they may, and orphans: rows that no live worker knows."""

    waiting: Sequence[_Waiting]
    rows: int
    oldest: datetime | None
    orphans: int = 0
    orphan_tasks: Sequence[str] = ()


def _overdue(
    store: Store,
    connection: sa.Connection,
    due: sa.ColumnElement[bool],
    known: Collection[str] | None,
) -> _Overdue:
    """Count overdue rows of the tasks that live workers know; without live workers (None), of
    all.

    Others may have written rows of any number of names: those of live workers are read, and some
    others.
    """
    tasks = store.tables.tasks
    task = tasks.c.task_name
    count = sa.func.count()
    oldest = sa.func.min(tasks.c.execution_time)
    late = sa.select(task, tasks.c.kind, runs_on(tasks), count, oldest).where(due)
    late = late.group_by(sa.text("1, 2, 3")).order_by(task)
    total, oldest_due = connection.execute(sa.select(count, oldest).where(due)).one()
    among = late.limit(MOST_NAMES)
    if known is not None:
        among = late.where(store.dialect.among(task, known))
    waiting = [
        (name, kind, tags, number, first)
        for name, kind, tags, number, first in connection.execute(among)
    ]
    if known is None:
        return _Overdue(waiting=waiting, rows=total, oldest=oldest_due)
    overdue = sum(number for *_, number, _ in waiting)
    by_name = sa.select(task, count).where(due).group_by(task).order_by(task)
    most = len(known) + MOST_NAMES
    found = connection.execute(by_name.limit(most)).all()
    strangers = {name: number for name, number in found if name not in known}
    orphans = sum(strangers.values())
    if len(found) == most:
        orphans = max(total - overdue, orphans)
    return _Overdue(
        waiting=waiting,
        rows=overdue,
        oldest=min((first for *_, first in waiting), default=None),
        orphans=orphans,
        orphan_tasks=list(strangers),
    )


def _without_life(workers: Sequence[WorkerInfo]) -> tuple[list[str], list[str]]:
    """Return the workers that are gone, and those whose rows cannot be read."""
    gone = []
    unreadable = []
    for one in workers:
        if one.state == ListedState.UNREADABLE:
            unreadable.append(one.worker)
        elif not one.live:
            gone.append(one.worker)
    return sorted(gone), sorted(unreadable)


def _unroutable(
    store: Store, overdue: _Overdue, live: Sequence[WorkerInfo]
) -> dict[str, str]:
    """Return the overdue tasks that no live worker takes, each with the reason."""
    passed_over = {name for worker in live for name in worker.passed_over}
    asking: dict[str, Sequence[str]] = {}
    for name, _, tags, *_ in overdue.waiting:
        if tags is not None:
            asking[name] = tags_of(tags)
        elif name in passed_over:
            asking.setdefault(name, ())
    found = {name: obstacle(name, tags, live) for name, tags in asking.items() if live}
    tasks = {name for name, kind, *_ in overdue.waiting if kind == Kind.TASK}
    found |= dict.fromkeys(jobs_among(store, tasks), UNDER_A_JOB)
    return {name: why for name, why in sorted(found.items()) if why}


def _unreadable(store: Store, connection: sa.Connection) -> list[Unreadable]:
    """Count rows that cannot be read. Such a row keeps the slot, or the due time, that it
    had before.
    """
    tasks = store.tables.tasks
    since = sa.func.min(
        sa.func.coalesce(tasks.c.parked_due, tasks.c.slot, tasks.c.execution_time)
    )
    dead = sa.func.coalesce(tasks.c.state, "") == RowState.DEAD
    newer = tasks.c.last_error.startswith(NEWER)
    error = sa.func.max(sa.func.substr(tasks.c.last_error, 1, 1000))
    found = connection.execute(
        sa.select(tasks.c.task_name, dead, newer, sa.func.count(), since, error)
        .where(~tasks.c.picked, newer | tasks.c.last_error.startswith(UNREADABLE))
        .group_by(tasks.c.task_name, dead, newer)
        .order_by(tasks.c.task_name, dead, newer)
        .limit(MOST_NAMES)
    )
    return [
        Unreadable(
            task=name,
            rows=rows,
            since=utc(first),
            error=error.removeprefix(UNREADABLE).removeprefix(NEWER),
            dead=is_dead,
            newer=bool(is_newer),
        )
        for name, is_dead, is_newer, rows, first, error in found
    ]


def _silent(
    store: Store, connection: sa.Connection, now: datetime
) -> tuple[list[str], list[Unreadable]]:
    """Return the task of each row that is held past its lease, and the held rows that cannot
    be decoded.
    """
    tasks = store.tables.tasks
    key = (tasks.c.task_name, tasks.c.task_instance)
    held = sa.select(*key, tasks.c.last_heartbeat, tasks.c.lease).where(tasks.c.picked)
    first = held.order_by(tasks.c.last_heartbeat).limit(MOST_HELD)
    silent = list[str]()
    undecoded = list[Unreadable]()
    for row in rows_apart(connection, first, *key, read=lambda row: row):
        if isinstance(row, Unread):
            name, _ = row.key
            undecoded.append(
                Unreadable(task=name, rows=1, since=None, error=row.error, dead=False)
            )
        elif row["last_heartbeat"] is None or row["lease"] is None:
            continue
        elif row["last_heartbeat"] < now - row["lease"]:
            silent.append(row["task_name"])
    return silent, undecoded


def _run_by(store: Store, connection: sa.Connection, worker: str) -> list[str]:
    """Return the names of the tasks whose rows a worker holds."""
    tasks = store.tables.tasks
    held = sa.select(tasks.c.task_name).where(tasks.c.picked, tasks.c.picked_by == worker)
    names = held.distinct().order_by(tasks.c.task_name).limit(MOST_NAMES)
    return list(connection.scalars(names))


def _behind(store: Store, connection: sa.Connection, now: datetime) -> list[str]:
    """Return the jobs, of those that wait the longest, that have skipped slots at each start
    of the last minute.

    Their row is due for longer than the time from slot to slot. An outage has an end: then
    they start on time.
    """
    tasks = store.tables.tasks
    slots = store.tables.slots
    due = sa.select(tasks.c.task_name, tasks.c.task_instance, tasks.c.next_slot).where(
        ~tasks.c.picked,
        tasks.c.state.is_(None),
        sa.text(HAS_SLOT),
        tasks.c.execution_time <= now,
    )
    oldest = due.order_by(tasks.c.execution_time).limit(_OLDEST).subquery("oldest")

    def has_started(
        origin: Origin, after: datetime, before: datetime
    ) -> sa.ColumnElement[bool]:
        mine = (
            slots.c.task_name == oldest.c.task_name,
            slots.c.task_instance == oldest.c.task_instance,
        )
        within = slots.c.slot > after, slots.c.slot <= before, slots.c.origin == origin
        return sa.exists().where(*mine, *within, slots.c.started.is_not(None))

    since = now - A_MINUTE
    late = (
        oldest.c.next_slot <= now,
        has_started(Origin.CATCH_UP, since, now),
        has_started(Origin.CATCH_UP, since - A_MINUTE, since),
        ~has_started(Origin.SCHEDULE, since, now),
    )
    found = connection.scalars(sa.select(oldest.c.task_name).where(*late).limit(_BEHIND))
    return sorted(set(found))


def _ended_calendars(
    store: Store, connection: sa.Connection, by: datetime
) -> dict[str, int]:
    """Return the last year of each calendar that lists no days of this instant's year.

    Its days are stored by year: ``2026:0101,0106 2027:0101``.
    """
    calendars = store.tables.calendars.c
    named = sa.select(calendars.name, calendars.days).order_by(calendars.name)
    years = {}
    for name, days in connection.execute(named):
        last = days.split()[-1].partition(":")[0] if days else ""
        if last.isdecimal() and int(last) < by.year:
            years[name] = int(last)
    return years
