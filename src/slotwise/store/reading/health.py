"""The state of the cluster at one instant: which rows wait, and why nobody takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.decide.going_back import NEWER, UNREADABLE
from slotwise.model.values import Value
from slotwise.model.vocabulary import Kind, WorkerState
from slotwise.store.operations.job_operations import all_paused
from slotwise.store.reading.jobs import common_zone, jobs_among, paused_by
from slotwise.store.reading.queries import read
from slotwise.store.reading.routing import UNDER_A_JOB, obstacle
from slotwise.store.reading.task_counts import MOST_NAMES
from slotwise.store.reading.workers import WorkerInfo, all_workers, tags_of
from slotwise.store.schema.rows import Unread, filled, rows_apart, utc
from slotwise.store.schema.tables import MOST_HELD, runs_on
from slotwise.store.slots.store import Store
from slotwise.store.slots.tuning import NEWER_PATIENCE

#: How long a job must have skipped slots at each start to be behind; how many due rows are
#: searched for such jobs, and how many of those jobs are returned.
A_MINUTE = timedelta(minutes=1)
_OLDEST = 1_000
_SOME = 20
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
    #: Some of the jobs whose newest three slots were skipped because another program held their
    #: lock, each with the reason.
    locked_out: Mapping[str, str] = field(default_factory=dict)
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
    fleet = _Fleet(all_workers(store))
    overdue = _Overdue()
    behind = list[str]()
    with store.transaction() as connection:
        now = utc(store.dialect.now(connection))
        paused = all_paused(connection, store.tables)
        if paused is None:
            before = now - overdue_after
            overdue = _overdue(store, connection, before, fleet.known)
            behind = _behind(store, connection, now)
        silent, undecoded = _silent(store, connection, now)
        unreadable = _unreadable(store, connection) + undecoded
        hanging = {
            name: _run_by(store, connection, name)
            for name in fleet.in_state(WorkerState.HANGING)
        }
        (dead,) = read(connection, store, _DEAD, {})
        most = {"oldest": _OLDEST, "most": _SOME}
        locked_out = read(connection, store, _LOCKED_OUT, most)
        ended_calendars = _ended_calendars(store, connection, now + _CALENDAR_NOTICE)
    lost = [name for name in silent if not fleet.may_run(name)]
    damaged = fleet.in_state(WorkerState.UNREADABLE)
    return Health(
        now=now,
        live_workers=len(fleet.live),
        hanging=hanging,
        gone_workers=sorted(fleet.silent.difference(damaged)),
        overdue=overdue.rows,
        oldest_due=overdue.oldest,
        silent=len(silent) - len(lost),
        dead=dead["count"],
        behind=behind,
        locked_out={row["task_name"]: row["reason"] for row in locked_out},
        unreadable_workers=sorted(damaged),
        orphans=overdue.orphans + len(lost),
        orphan_tasks=sorted({*lost, *overdue.orphan_tasks})[:MOST_NAMES],
        refused=fleet.refused,
        unroutable=_unroutable(store, overdue, fleet.live),
        unreadable=[one for one in unreadable if fleet.may_run(one.task)],
        paused=None if paused is None else paused_by(paused, common_zone(store)),
        ended_calendars=ended_calendars,
    )


class _Fleet:
    """The workers, and what the live ones know."""

    def __init__(self, workers: Sequence[WorkerInfo]) -> None:
        self._workers = workers
        self.live = [worker for worker in workers if worker.live]
        self.silent = {worker.worker for worker in workers if not worker.live}
        names = {name for worker in self.live for name in worker.tasks}
        #: The tasks that live workers know; None without live workers.
        self.known = names if self.live else None

    @property
    def refused(self) -> list[str]:
        return sorted({name for worker in self.live for name in worker.refused})

    def may_run(self, name: str) -> bool:
        """Whether a live worker knows this task, or none is alive to say so."""
        return self.known is None or name in self.known

    def in_state(self, state: WorkerState) -> list[str]:
        return [worker.worker for worker in self._workers if worker.state == state]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overdue:
    """Rows that wait for longer than they may, and orphans: rows that no live worker knows."""

    #: How many, by name, kind and tags.
    waiting: Sequence[sa.RowMapping] = ()
    rows: int = 0
    oldest: datetime | None = None
    orphans: int = 0
    orphan_tasks: Sequence[str] = ()


_DEAD = "SELECT {f}count(*) AS count FROM {tasks} WHERE state = 'dead'"
_DUE = """
SELECT {f}count(*) AS count, {f}min(execution_time) AS execution_time
FROM {tasks} WHERE NOT picked AND state IS NULL AND execution_time < :before"""
_DUE_NAMES = """
SELECT task_name, {f}count(*) AS count
FROM {tasks} WHERE NOT picked AND state IS NULL AND execution_time < :before
GROUP BY task_name ORDER BY task_name LIMIT :most"""


def _overdue(
    store: Store,
    connection: sa.Connection,
    before: datetime,
    known: Collection[str] | None,
) -> _Overdue:
    """Count rows that were due before this instant, of the tasks that live workers know; without
    live workers (None), of all.

    Others may have written rows of any number of names: those of live workers are read, and some
    others.
    """
    (total,) = read(connection, store, _DUE, {"before": before})
    waiting = _waiting(store, connection, before, known)
    if known is None:
        oldest = utc(total["execution_time"])
        return _Overdue(waiting=waiting, rows=total["count"], oldest=oldest)
    overdue = sum(row["count"] for row in waiting)
    most = len(known) + MOST_NAMES
    names = read(connection, store, _DUE_NAMES, {"before": before, "most": most})
    strangers = {
        row["task_name"]: row["count"] for row in names if row["task_name"] not in known
    }
    orphans = sum(strangers.values())
    if len(names) == most:
        orphans = max(total["count"] - overdue, orphans)
    return _Overdue(
        waiting=waiting,
        rows=overdue,
        oldest=min((utc(row["execution_time"]) for row in waiting), default=None),
        orphans=orphans,
        orphan_tasks=list(strangers),
    )


def _waiting(
    store: Store,
    connection: sa.Connection,
    before: datetime,
    known: Collection[str] | None,
) -> Sequence[sa.RowMapping]:
    tasks = store.tables.tasks
    key = tasks.c.task_name, tasks.c.kind, runs_on(tasks).label("runs_on")
    oldest = sa.func.min(tasks.c.execution_time).label("execution_time")
    late = sa.select(*key, sa.func.count().label("count"), oldest).where(
        ~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time < before
    )
    late = late.group_by(sa.text("1, 2, 3")).order_by(tasks.c.task_name)
    if known is None:
        late = late.limit(MOST_NAMES)
    else:
        late = late.where(store.dialect.among(tasks.c.task_name, known))
    return connection.execute(late).mappings().all()


def _unroutable(
    store: Store, overdue: _Overdue, live: Sequence[WorkerInfo]
) -> dict[str, str]:
    """Return the overdue tasks that no live worker takes, each with the reason."""
    passed_over = {name for worker in live for name in worker.passed_over}
    asking: dict[str, Sequence[str]] = {}
    for row in overdue.waiting:
        name = row["task_name"]
        if row["runs_on"] is not None:
            asking[name] = tags_of(row["runs_on"])
        elif name in passed_over:
            asking.setdefault(name, ())
    found = {name: obstacle(name, tags, live) for name, tags in asking.items() if live}
    tasks = {row["task_name"] for row in overdue.waiting if row["kind"] == Kind.TASK}
    found |= dict.fromkeys(jobs_among(store, tasks), UNDER_A_JOB)
    return {name: why for name, why in sorted(found.items()) if why}


#: Such a row keeps the slot, or the due time, that it had before.
_UNREADABLE = """
SELECT task_name AS task, {f}count(*) AS rows,
       {f}min(coalesce(parked_due, slot, execution_time)) AS since,
       {f}max({f}substr(last_error, 1, 1000)) AS error,
       coalesce(state, '') = 'dead' AS dead, last_error LIKE :newer AS newer
FROM {tasks}
WHERE NOT picked AND (last_error LIKE :newer OR last_error LIKE :unreadable)
GROUP BY task_name, coalesce(state, '') = 'dead', last_error LIKE :newer
ORDER BY task_name, dead, newer LIMIT :most"""


def _unreadable(store: Store, connection: sa.Connection) -> list[Unreadable]:
    """Count rows that cannot be read."""
    given = {"newer": f"{NEWER}%", "unreadable": f"{UNREADABLE}%", "most": MOST_NAMES}
    found = []
    for row in read(connection, store, _UNREADABLE, given):
        error = row["error"].removeprefix(UNREADABLE).removeprefix(NEWER)
        flags = {"dead": bool(row["dead"]), "newer": bool(row["newer"])}
        found.append(filled(Unreadable, row, error=error, **flags))
    return found


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


#: An outage has an end: then jobs start on time. These have a row that is due for longer than the
#: time from slot to slot, and have skipped slots at each start of the last minute.
_BEHIND = """
SELECT DISTINCT o.task_name
FROM (SELECT task_name, task_instance, next_slot FROM {tasks}
      WHERE NOT picked AND state IS NULL AND {has_slot} AND execution_time <= :now
      ORDER BY execution_time LIMIT :oldest) AS o
WHERE o.next_slot <= :now
  AND EXISTS (SELECT 1 FROM {slots} AS s WHERE {mine} AND s.origin = 'catch_up'
              AND s.slot > :minute_ago AND s.slot <= :now)
  AND EXISTS (SELECT 1 FROM {slots} AS s WHERE {mine} AND s.origin = 'catch_up'
              AND s.slot > :two_ago AND s.slot <= :minute_ago)
  AND NOT EXISTS (SELECT 1 FROM {slots} AS s WHERE {mine} AND s.origin = 'schedule'
                  AND s.slot > :minute_ago AND s.slot <= :now)
ORDER BY o.task_name LIMIT :most"""
_MINE = """s.task_name = o.task_name AND s.task_instance = o.task_instance
AND s.started IS NOT NULL"""
#: Of the jobs that are due next, those whose newest three slots were skipped for a lock.
_LOCKED_OUT = """
SELECT o.task_name, {f}min(s.reason) AS reason
FROM (SELECT task_name, task_instance FROM {tasks}
      WHERE NOT picked AND state IS NULL AND {has_slot}
      ORDER BY execution_time LIMIT :oldest) AS o
JOIN {slots} AS s ON s.task_name = o.task_name AND s.task_instance = o.task_instance
    AND s.slot >= (SELECT n.slot FROM {slots} AS n
                   WHERE n.task_name = o.task_name AND n.task_instance = o.task_instance
                   ORDER BY n.slot DESC LIMIT 1 OFFSET 2)
GROUP BY o.task_name, o.task_instance
HAVING {f}min(CASE WHEN s.outcome = 'skipped' AND s.reason = 'lock_held' THEN 1 ELSE 0 END) = 1
ORDER BY o.task_name LIMIT :most"""


def _behind(store: Store, connection: sa.Connection, now: datetime) -> list[str]:
    """Return the jobs, of those that wait the longest, that cannot keep up."""
    given: dict[str, object] = {
        "now": now,
        "minute_ago": now - A_MINUTE,
        "two_ago": now - 2 * A_MINUTE,
    }
    given |= {"oldest": _OLDEST, "most": _SOME}
    found = read(connection, store, _BEHIND, given, mine=_MINE)
    return [row["task_name"] for row in found]


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
