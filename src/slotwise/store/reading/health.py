"""The state of the cluster at one instant: which rows wait, and why nobody takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.decide.going_back import NEWER, UNREADABLE
from slotwise.model.records import FOREVER
from slotwise.model.values import Value
from slotwise.model.vocabulary import Kind, WorkerState
from slotwise.store.operations.job_operations import all_paused
from slotwise.store.reading.jobs import common_zone, jobs_among, paused_by
from slotwise.store.reading.queries import ReadTransaction, reading
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
        return (
            self.newer and self.since is not None and now - self.since < NEWER_PATIENCE
        )


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
    #: Some of the jobs, of those that are due next, that no live worker knows; none without live
    #: workers.
    unknown_jobs: Sequence[str] = ()
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
    #: Live workers with a handler that has run for longer than its ``warn_after``, and what they
    #: run.
    slow: Mapping[str, Sequence[str]] = field(default_factory=dict)
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
    with reading(store) as at:
        now = at.now()
        found = _without_overdue(at, now, fleet)
        paused = all_paused(at.connection, at.tables)
        if paused is None:
            overdue = _overdue(at, now - overdue_after, fleet.known)
            found = replace(found, behind=_behind(at, now))
    if paused is not None:
        return replace(found, paused=paused_by(paused, common_zone(store)))
    unroutable = _unroutable(store, overdue, fleet.live)
    return replace(_with_overdue(found, overdue), unroutable=unroutable)


def _with_overdue(found: Health, overdue: _Overdue) -> Health:
    orphan_tasks = sorted({*found.orphan_tasks, *overdue.orphan_tasks})
    return replace(
        found,
        overdue=overdue.rows,
        oldest_due=overdue.oldest,
        orphans=found.orphans + overdue.orphans,
        orphan_tasks=orphan_tasks[:MOST_NAMES],
    )


def _without_overdue(at: ReadTransaction, now: datetime, fleet: _Fleet) -> Health:
    """Return what holds also while all is paused: nothing of it is about rows that wait."""
    silent, undecoded = _silent(at, now)
    unreadable = _unreadable(at) + undecoded
    lost = [name for name in silent if not fleet.may_run(name)]
    (dead,) = at.read(_DEAD, {})
    return Health(
        overdue=0,
        oldest_due=None,
        unroutable={},
        now=now,
        live_workers=len(fleet.live),
        hanging=_running(at, fleet, WorkerState.HANGING),
        slow=_running(at, fleet, WorkerState.SLOW),
        gone_workers=fleet.gone,
        silent=len(silent) - len(lost),
        dead=dead["count"],
        locked_out=_locked_out(at),
        unreadable_workers=sorted(fleet.in_state(WorkerState.UNREADABLE)),
        orphans=len(lost),
        orphan_tasks=sorted(set(lost))[:MOST_NAMES],
        unknown_jobs=_unknown_jobs(at, fleet),
        refused=fleet.refused,
        unreadable=[one for one in unreadable if fleet.may_run(one.task)],
        ended_calendars=_ended_calendars(at, now + _CALENDAR_NOTICE),
    )


class _Fleet:
    """The workers, and what the live ones know."""

    def __init__(self, workers: Sequence[WorkerInfo]) -> None:
        self._workers = workers
        self.live = [worker for worker in workers if worker.live]
        names = {name for worker in self.live for name in worker.tasks}
        #: The tasks that live workers know; None without live workers.
        self.known = names if self.live else None

    @property
    def gone(self) -> list[str]:
        silent = {worker.worker for worker in self._workers if not worker.live}
        return sorted(silent.difference(self.in_state(WorkerState.UNREADABLE)))

    @property
    def refused(self) -> list[str]:
        return sorted({name for worker in self.live for name in worker.refused})

    def may_run(self, name: str) -> bool:
        """Whether a live worker knows this task, or none is alive to say so."""
        return self.known is None or name in self.known

    def in_state(self, state: WorkerState) -> list[str]:
        return [worker.worker for worker in self._workers if worker.state == state]


_NEXT_JOBS = """
SELECT DISTINCT task_name FROM (
    SELECT task_name FROM {tasks}
    WHERE NOT picked AND state IS NULL AND {has_slot} AND execution_time < :end
    ORDER BY execution_time LIMIT :most) AS next
ORDER BY task_name"""


def _unknown_jobs(at: ReadTransaction, fleet: _Fleet) -> list[str]:
    """Return the jobs that no live worker knows, of the rows that are due next."""
    found = at.read(_NEXT_JOBS, {"end": FOREVER, "most": MOST_HELD})
    names = [row["task_name"] for row in found]
    return [name for name in names if not fleet.may_run(name)][:MOST_NAMES]


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
    at: ReadTransaction, before: datetime, known: Collection[str] | None
) -> _Overdue:
    """Count rows that were due before this instant, of the tasks that live workers know; without
    live workers (None), of all.

    Others may have written rows of any number of names: those of live workers are read, and some
    others.
    """
    (total,) = at.read(_DUE, {"before": before})
    waiting = _waiting(at, before, known)
    if known is None:
        oldest = utc(total["execution_time"])
        return _Overdue(waiting=waiting, rows=total["count"], oldest=oldest)
    most = len(known) + MOST_NAMES
    names = at.read(_DUE_NAMES, {"before": before, "most": most})
    found = _among_known(waiting, names, known)
    if len(names) < most:
        return found
    return replace(found, orphans=max(total["count"] - found.rows, found.orphans))


def _among_known(
    waiting: Sequence[sa.RowMapping],
    names: Sequence[sa.RowMapping],
    known: Collection[str],
) -> _Overdue:
    """Count rows of these known tasks that wait, and those of other names."""
    strangers = {
        row["task_name"]: row["count"]
        for row in names
        if row["task_name"] not in known
    }
    return _Overdue(
        waiting=waiting,
        rows=sum(row["count"] for row in waiting),
        oldest=min((utc(row["execution_time"]) for row in waiting), default=None),
        orphans=sum(strangers.values()),
        orphan_tasks=list(strangers),
    )


def _waiting(
    at: ReadTransaction, before: datetime, known: Collection[str] | None
) -> Sequence[sa.RowMapping]:
    tasks = at.tables.tasks.c
    key = tasks.task_name, tasks.kind, runs_on(tasks).label("runs_on")
    oldest = sa.func.min(tasks.execution_time).label("execution_time")
    late = sa.select(*key, sa.func.count().label("count"), oldest).where(
        ~tasks.picked, tasks.state.is_(None), tasks.execution_time < before
    )
    late = late.group_by(sa.text("1, 2, 3")).order_by(tasks.task_name)
    if known is None:
        late = late.limit(MOST_NAMES)
    else:
        late = late.where(at.store.dialect.among(tasks.task_name, known))
    return at.rows(late)


def _unroutable(
    store: Store, overdue: _Overdue, live: Sequence[WorkerInfo]
) -> dict[str, str]:
    """Return the overdue tasks that no live worker takes, each with the reason."""
    tags = _tags_asked(overdue.waiting, live) if live else {}
    found = {name: obstacle(name, asked, live) for name, asked in tags.items()}
    tasks = {row["task_name"] for row in overdue.waiting if row["kind"] == Kind.TASK}
    found |= dict.fromkeys(jobs_among(store, tasks), UNDER_A_JOB)
    return {name: why for name, why in sorted(found.items()) if why}


def _tags_asked(
    waiting: Sequence[sa.RowMapping], live: Sequence[WorkerInfo]
) -> dict[str, Sequence[str]]:
    """Return the tags that the rows of a task require; none, if only workers know them."""
    passed_over = {name for worker in live for name in worker.passed_over}
    asked: dict[str, Sequence[str]] = {}
    for row in waiting:
        name = row["task_name"]
        if row["runs_on"] is not None:
            asked[name] = tags_of(row["runs_on"])
        elif name in passed_over:
            asked.setdefault(name, ())
    return asked


#: Such a row keeps the slot, or the due time, that it had before.
_UNREADABLE = """
SELECT task_name AS task, {f}count(*) AS number,
       {f}min(coalesce(parked_due, slot, execution_time)) AS since,
       {f}max({f}substr(last_error, 1, 1000)) AS error,
       coalesce(state, '') = 'dead' AS dead, last_error LIKE :newer AS newer
FROM {tasks}
WHERE NOT picked AND (last_error LIKE :newer OR last_error LIKE :unreadable)
GROUP BY task_name, coalesce(state, '') = 'dead', last_error LIKE :newer
ORDER BY task_name, dead, newer LIMIT :most"""


def _unreadable(at: ReadTransaction) -> list[Unreadable]:
    """Count rows that cannot be read."""
    given = {"newer": f"{NEWER}%", "unreadable": f"{UNREADABLE}%", "most": MOST_NAMES}
    found = []
    for row in at.read(_UNREADABLE, given):
        error = row["error"].removeprefix(UNREADABLE).removeprefix(NEWER)
        flags = {"dead": bool(row["dead"]), "newer": bool(row["newer"])}
        rows = row["number"]
        found.append(filled(Unreadable, row, rows=rows, error=error, **flags))
    return found


def _silent(at: ReadTransaction, now: datetime) -> tuple[list[str], list[Unreadable]]:
    """Return the task of each row that is held past its lease, and the held rows that cannot
    be decoded.
    """
    tasks = at.tables.tasks.c
    key = tasks.task_name, tasks.task_instance
    held = sa.select(*key, tasks.last_heartbeat, tasks.lease).where(tasks.picked)
    first = held.order_by(tasks.last_heartbeat).limit(MOST_HELD)
    silent = list[str]()
    undecoded = list[Unreadable]()
    for row in rows_apart(at.connection, first, *key, read=lambda row: row):
        if isinstance(row, Unread):
            undecoded.append(_undecoded(row))
        elif _is_silent(row, now):
            silent.append(row["task_name"])
    return silent, undecoded


def _undecoded(row: Unread) -> Unreadable:
    name, _ = row.key
    return Unreadable(task=name, rows=1, since=None, error=row.error, dead=False)


def _is_silent(row: sa.RowMapping, now: datetime) -> bool:
    if row["last_heartbeat"] is None or row["lease"] is None:
        return False
    return bool(row["last_heartbeat"] < now - row["lease"])


def _running(
    at: ReadTransaction, fleet: _Fleet, state: WorkerState
) -> dict[str, list[str]]:
    """Return the names of the tasks whose rows each worker in this state holds."""
    workers = fleet.in_state(state)
    return {name: _run_by(at, name) for name in workers}


_RUN_BY = """
SELECT DISTINCT task_name FROM {tasks} WHERE picked AND picked_by = :worker
ORDER BY task_name LIMIT :most"""


def _run_by(at: ReadTransaction, worker: str) -> list[str]:
    held = at.read(_RUN_BY, {"worker": worker, "most": MOST_NAMES})
    return [row["task_name"] for row in held]


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
#: Why the newest slots but so many of a job did not run: an index look-up, of nearly all jobs one.
_NEWEST = """(SELECT CASE WHEN s.outcome = 'skipped' THEN s.reason END FROM {{slots}} AS s
       WHERE s.task_name = o.task_name AND s.task_instance = o.task_instance
       ORDER BY s.slot DESC LIMIT 1 OFFSET {}) = 'lock_held'"""
_LOCKED_OUT = f"""
SELECT DISTINCT o.task_name
FROM (SELECT task_name, task_instance FROM {{tasks}}
      WHERE NOT picked AND state IS NULL AND {{has_slot}}
      ORDER BY execution_time LIMIT :oldest) AS o
WHERE {" AND ".join(_NEWEST.format(older) for older in range(3))}
ORDER BY o.task_name LIMIT :most"""


def _behind(at: ReadTransaction, now: datetime) -> list[str]:
    """Return the jobs, of those that wait the longest, that cannot keep up."""
    given: dict[str, object] = {
        "now": now,
        "minute_ago": now - A_MINUTE,
        "two_ago": now - 2 * A_MINUTE,
    }
    given |= {"oldest": _OLDEST, "most": _SOME}
    found = at.read(_BEHIND, given, mine=_MINE)
    return [row["task_name"] for row in found]


def _locked_out(at: ReadTransaction) -> dict[str, str]:
    most = {"oldest": _OLDEST, "most": _SOME}
    found = at.read(_LOCKED_OUT, most)
    return dict.fromkeys((row["task_name"] for row in found), "lock_held")


def _ended_calendars(at: ReadTransaction, by: datetime) -> dict[str, int]:
    """Return the last year of each calendar that lists no days of this instant's year.

    Its days are stored by year: ``2026:0101,0106 2027:0101``.
    """
    years = {}
    for row in at.read("SELECT name, days FROM {calendars} ORDER BY name", {}):
        last = row["days"].split()[-1].partition(":")[0] if row["days"] else ""
        if last.isdecimal() and int(last) < by.year:
            years[row["name"]] = int(last)
    return years
