"""Jobs and recurring instances: the state of each, and the zone of its schedule."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from slotwise.decide.going_back import NEWER, UNREADABLE
from slotwise.model.records import FOREVER, RECURRING, claimed_since, to_micros
from slotwise.model.values import Value
from slotwise.model.vocabulary import Kind, ListedState
from slotwise.schedules import Disabled
from slotwise.schedules.description import UTC, zone_of
from slotwise.store.operations.instance_operations import InstanceFilter, matching
from slotwise.store.operations.job_operations import Paused
from slotwise.store.operations.transaction import zoned_text
from slotwise.store.planning.revision import Declared
from slotwise.store.reading.queries import PAGE, Statement, read, reading
from slotwise.store.reading.routing import obstacle, state_of_stuck
from slotwise.store.reading.workers import WorkerInfo, workers_in
from slotwise.store.schema.rows import Unread, filled, rows_apart, utc
from slotwise.store.schema.tables import Columns, Condition, is_plan
from slotwise.store.slots.store import Store

_DISABLED = str(Disabled())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo(Value):
    """A job, or a recurring instance.

    ``state``: waiting, running, paused, dead, disabled, instances (disabled, and its recurring
    instances run), ended (no further slot), unreadable, or, where it is due, "no_live_worker", or
    unroutable: the live workers cannot take it. ``reason`` says why, or gives the pause.

    ``refused``: live workers whose schedule for it is older than the row's, each with its
    revision.
    """

    job: str
    id: str
    state: str
    schedule: str = "–"
    next_slot: datetime | None = None
    due: datetime | None = None
    attempt: int = 0
    worker: str | None = None
    heartbeat: datetime | None = None
    #: Since when the slot is claimed that runs; of several, side by side, the one claimed first.
    running_since: datetime | None = None
    running_slot: datetime | None = None
    last_success: datetime | None = None
    last_failure: datetime | None = None
    consecutive_failures: int = 0
    last_error: str | None = None
    priority: int = 50
    runs_on: Sequence[str] = ()
    revision: str | None = None
    deployed: datetime | None = None
    refused: Sequence[dict[str, str | None]] = ()
    reason: str | None = None

    @property
    def is_newer(self) -> bool:
        """Whether the row waits for a worker of a newer release: no other can read it."""
        return self.state == ListedState.UNREADABLE and (self.reason or "").startswith(
            NEWER
        )


def jobs(store: Store, *, after: str = "", limit: int | None = None) -> list[JobInfo]:
    """Return jobs that have a plan row, by name, from the one after ``after``; without ``limit``,
    all.
    """
    name = store.tables.tasks.c.task_name
    wanted = _plans(store).where(store.tables.tasks.c.task_instance == RECURRING)
    wanted = wanted.order_by(name)
    if limit is None:
        return _job_infos(store, wanted.where(name > after))
    found: list[JobInfo] = []
    while len(found) < limit:
        names = _next_names(store, after, limit)
        if names:
            mine = wanted.where(store.dialect.among(name, names))
            found += _job_infos(store, mine.limit(limit - len(found)))
        if len(names) < limit:
            break
        after = names[-1]
    return found


#: By a descent into the index for each name, however many rows have it.
_NEXT_NAMES = """
WITH RECURSIVE names(name) AS (
    SELECT {f}min(task_name) FROM {tasks} WHERE task_name > :after
    UNION ALL
    SELECT (SELECT {f}min(task_name) FROM {tasks} WHERE task_name > names.name) FROM names
    WHERE names.name IS NOT NULL)
SELECT name FROM names WHERE name IS NOT NULL LIMIT :limit"""


def _next_names(store: Store, after: str, limit: int) -> list[str]:
    """Return the next names of jobs and tasks that have rows, in order."""
    found = read(store, _NEXT_NAMES, {"after": after, "limit": limit})
    return [row["name"] for row in found]


def job(store: Store, name: str, instance: str = RECURRING) -> JobInfo | None:
    """Return a job, or one of its instances; None if it has no plan row."""
    tasks = store.tables.tasks
    mine = tasks.c.task_name == name, tasks.c.task_instance == instance
    return next(iter(_job_infos(store, _plans(store).where(*mine))), None)


def instances(
    store: Store,
    name: str,
    *,
    limit: int | None = None,
    after: str = "",
    where: InstanceFilter | None = None,
    failing: bool = False,
    stale: timedelta | None = None,
) -> list[JobInfo]:
    """Return recurring instances of a task, by id, from the one after ``after``. ``failing``:
    those whose last run failed; ``stale``: those without a success for so long.
    """
    tasks = store.tables.tasks.c
    id = tasks.task_instance
    wanted = _plans(store).where(tasks.task_name == name, id != RECURRING, id > after)
    if where is not None:
        wanted = wanted.where(*matching(store.tables, tasks, where))
    wanted = wanted.where(*_in_trouble(store, failing=failing, stale=stale))
    return _job_infos(store, wanted.order_by(id).limit(limit))


def _in_trouble(
    store: Store, *, failing: bool, stale: timedelta | None
) -> Iterator[Condition]:
    tasks = store.tables.tasks.c
    if failing:
        yield tasks.consecutive_failures > 0
    if stale is not None:
        yield _has_no_success_since(tasks, store.now() - stale)


def _has_no_success_since(tasks: Columns, at: datetime) -> Condition:
    """Whether a row is older than that, and had no success since then."""
    is_older = sa.or_(
        tasks.created_version.is_(None), tasks.created_version < to_micros(at)
    )
    return sa.and_(
        is_older, sa.or_(tasks.last_success.is_(None), tasks.last_success < at)
    )


_COUNTS = """
SELECT {column}, {f}count(*) AS count FROM {tasks} WHERE kind = 'plan' AND {where}
GROUP BY {column}"""


def instance_counts(
    store: Store, *, after: str = "", until: str | None = None
) -> dict[str, int]:
    """Return the number of recurring instances of each task that has any, by names after
    ``after`` and up to ``until``.
    """
    where = "task_instance <> 'recurring' AND task_name > :after"
    if until is not None:
        where += " AND task_name <= :until"
    given = {"after": after, "until": until}
    found = read(store, _COUNTS, given, column="task_name", where=where)
    return {row["task_name"]: row["count"] for row in found}


def schedules(store: Store) -> dict[str, int]:
    """Return each schedule in force, as text, with the number of its jobs and instances."""
    found = read(store, _COUNTS, {}, column="schedule", where="1 = 1")
    return {row["schedule"]: row["count"] for row in found}


def jobs_among(store: Store, names: Collection[str]) -> set[str]:
    """Return those of these names that have a plan row."""
    if not names:
        return set()
    tasks = store.tables.tasks.c
    named = store.dialect.among(tasks.task_name, names)
    mine = tasks.task_instance == RECURRING, is_plan(tasks), named
    with reading(store) as at:
        return {
            row["task_name"]
            for row in at.rows(sa.select(tasks.task_name).where(*mine))
        }


# -- time zones -----------------------------------------------------------------------------------


def zones(
    store: Store, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], ZoneInfo]:
    """Return the zone of each of these jobs and instances that has a plan row: of its schedule,
    else UTC.
    """
    if not keys:
        return {}
    names = sorted({name for name, _ in keys})
    ids = sorted({id for _, id in keys})
    found = read(store, _ZONES, {"names": names, "ids": ids})
    return {
        (row["task_name"], row["task_instance"]): zone_of(row["schedule"])
        for row in found
    }


_ZONES = """
SELECT task_name, task_instance, schedule FROM {tasks}
WHERE kind = 'plan' AND task_name IN :names AND task_instance IN :ids"""
#: The index of due slots finds them among millions of one-time tasks.
_NEXT_DUE = """
SELECT schedule FROM {tasks} WHERE NOT picked AND state IS NULL AND {has_slot}
ORDER BY execution_time LIMIT :most"""


def common_zone(store: Store) -> ZoneInfo:
    """Return the zone for times that belong to no job: the one zone besides UTC of the jobs due
    next, or UTC.
    """
    found = read(store, _NEXT_DUE, {"most": PAGE})
    zones = {zone_of(row["schedule"]) for row in found} - {UTC}
    return zones.pop() if len(zones) == 1 else UTC


# -- rows -----------------------------------------------------------------------------------------


def _plans(store: Store) -> Statement:
    return sa.select(store.tables.tasks).where(is_plan(store.tables.tasks.c))


def _job_infos(store: Store, statement: Statement) -> list[JobInfo]:
    tasks = store.tables.tasks
    audit = store.tables.controls.c
    is_pause = (audit.id == tasks.c.control) & (audit.command == "pause")
    pause = audit.at, audit.author, audit.note
    wanted = statement.add_columns(*pause, _has_instances(tasks))
    wanted = wanted.join_from(tasks, store.tables.controls, is_pause, isouter=True)
    key = tasks.c.task_name, tasks.c.task_instance
    with reading(store) as at:
        now = at.now()
        workers = workers_in(at, now)
        found = rows_apart(
            at.connection, wanted, *key, read=lambda row: _job_info(row, workers, now)
        )
        lines = [_unread(one) if isinstance(one, Unread) else one for one in found]
        runs = _runs_beside(store, at.connection, {line.job for line in lines})
        return [_with_run(line, runs.get((line.job, line.id))) for line in lines]


def _runs_beside(
    store: Store, connection: sa.Connection, names: Collection[str]
) -> dict[tuple[str, str], JobInfo]:
    """Return what runs beside the rows of these jobs: triggers, backfills and slots side by side;
    of each job and instance the run that was claimed first.
    """
    tasks = store.tables.tasks.c
    key = tasks.task_name, tasks.task_instance
    is_beside = tasks.picked & (tasks.kind == Kind.DETACHED)
    runs = sa.select(*store.dialect.row_columns)  # without data, which may be large
    mine = is_beside, store.dialect.among(key[0], names)
    wanted = runs.where(*mine).order_by(tasks.version.desc())
    found = rows_apart(connection, wanted, *key, read=_run)
    return {(one.job, one.id): one for one in found if isinstance(one, JobInfo)}


def _run(row: sa.RowMapping) -> JobInfo:
    return JobInfo(
        job=row["task_name"],
        id=row["plan_instance"],
        state=ListedState.RUNNING,
        attempt=row["attempt"],
        worker=row["picked_by"],
        heartbeat=utc(row["last_heartbeat"]),
        running_since=claimed_since(row["version"]),
        running_slot=utc(row["slot"]),
    )


def _with_run(line: JobInfo, run: JobInfo | None) -> JobInfo:
    """Return a job with what runs beside its row, unless its own slot was claimed before."""
    since = None if run is None else run.running_since
    if run is None or since is None or (line.running_since or since) < since:
        return line
    return replace(
        line,
        state=run.state if line.state == ListedState.WAITING else line.state,
        attempt=run.attempt,
        worker=run.worker,
        heartbeat=run.heartbeat,
        running_since=since,
        running_slot=run.running_slot,
    )


def _has_instances(tasks: sa.Table) -> Condition:
    """Whether recurring instances of a job whose own schedule is disabled have schedules."""
    other = tasks.alias("other")
    exists = sa.exists().where(
        other.c.task_name == tasks.c.task_name,
        other.c.task_instance != RECURRING,
        is_plan(other.c),
    )
    return sa.case((tasks.c.schedule == _DISABLED, exists), else_=sa.false()).label(
        "has_instances"
    )


def _unread(row: Unread) -> JobInfo:
    name, id = row.key
    return JobInfo(job=name, id=id, state=ListedState.UNREADABLE, reason=row.error)


def _job_info(
    row: sa.RowMapping, workers: Sequence[WorkerInfo], now: datetime
) -> JobInfo:
    """Return a plan row, with author, time and note of its pause, as a line, at ``now``."""
    declared = Declared.load(row["plan"])
    name = row["task_name"]
    due = utc(row["parked_due"] or row["execution_time"])
    is_parked = row["slot"] is None or due >= FOREVER
    state = _state(row, is_parked=is_parked)
    reason = _reason(row, state)
    if state == ListedState.WAITING and row["execution_time"] <= now:
        reason = obstacle(name, declared.runs_on, workers)
        state = state_of_stuck(reason) if reason else state
    return filled(
        JobInfo,
        row,
        job=name,
        id=row["task_instance"],
        state=state,
        reason=reason,
        next_slot=None if is_parked else utc(row["slot"]),
        due=None if is_parked else due,
        worker=row["picked_by"],
        heartbeat=utc(row["last_heartbeat"]),
        running_since=claimed_since(row["version"]) if row["picked"] else None,
        running_slot=utc(row["slot"]) if row["picked"] else None,
        consecutive_failures=row["consecutive_failures"] or 0,
        priority=50 if row["priority"] is None else row["priority"],
        runs_on=declared.runs_on,
        revision=declared.revision,
        deployed=declared.deployed,
        refused=_refused(name, workers),
    )


def _refused(
    name: str, workers: Sequence[WorkerInfo]
) -> Sequence[dict[str, str | None]]:
    return [
        {"worker": worker.worker, "revision": worker.revision}
        for worker in workers
        if worker.live and name in worker.refused
    ]


def _state(row: sa.RowMapping, *, is_parked: bool) -> str:
    if row["state"]:
        return str(row["state"])
    if row["picked"]:
        return ListedState.RUNNING
    if (row["last_error"] or "").startswith((UNREADABLE, NEWER)):
        return ListedState.UNREADABLE
    if not is_parked:
        return ListedState.WAITING
    if row["schedule"] != _DISABLED:
        return ListedState.ENDED
    return ListedState.INSTANCES if row["has_instances"] else ListedState.DISABLED


def _reason(row: sa.RowMapping, state: str) -> str | None:
    if state == ListedState.PAUSED and row["author"] is not None:
        pause = Paused(since=utc(row["at"]), author=row["author"], note=row["note"])
        return paused_by(pause, zone_of(row["schedule"]))
    if state == ListedState.UNREADABLE:
        return str(row["last_error"]).removeprefix(UNREADABLE)
    return None


def paused_by(pause: Paused, zone: ZoneInfo = UTC) -> str:
    """Return author, time and note of a pause, as text."""
    said = f": {pause.note}" if pause.note else ""
    return (
        f"paused by {pause.author} at "
        f"{zoned_text(pause.since.replace(microsecond=0), zone)}{said}"
    )
