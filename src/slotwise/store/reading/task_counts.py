"""Counts of rows by name, each up to ``MOST``; each name is found by one index look-up, however
many rows have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar

from slotwise.model.values import Value
from slotwise.model.vocabulary import ListedState
from slotwise.store.queue.queue import TaskInfo
from slotwise.store.reading.jobs import jobs_among
from slotwise.store.reading.queries import ReadTransaction, reading
from slotwise.store.reading.routing import (
    NO_WORKER_LIVES,
    UNDER_A_JOB,
    obstacle,
    state_of_stuck,
)
from slotwise.store.reading.task_pace import Pace, paces
from slotwise.store.reading.workers import all_workers
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import IS_TASK
from slotwise.store.slots.counts import HOUR
from slotwise.store.slots.store import Store

MOST = 10_000
#: How many names are counted, and read from tables that others may have filled with names.
MOST_NAMES = 1_000
HALF = timedelta(milliseconds=500)
Column = TypeVar("Column")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCount(Value):
    """Counts of one task. ``waiting`` is ``MOST`` + 1 if more wait. ``next_due`` is the first due
    time of those that wait, to the second; where more wait than are counted, about, and at most a
    day ago.

    Of those that wait, so many are ``due``, the ``oldest`` since then. ``came`` is how many come
    due in an hour, None without a backlog that is older than the counts; ``ended`` is how many
    succeed in an hour, 0 while it is too early to say. Both are measured since the oldest came
    due: of at least five minutes, and at most an hour. Those that are due will have ended in the
    time ``left``, None if none ends or if it is too early to say.
    """

    task: str
    waiting: int = 0
    due: int = 0
    oldest: datetime | None = None
    came: float | None = None
    ended: float = 0.0
    left: timedelta | None = None
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


_WAITS = f"NOT picked AND state IS NULL AND {IS_TASK}"
_WAITING = """
SELECT {f}count(*) AS waiting, {f}min(execution_time) AS execution_time,
       {f}count(CASE WHEN execution_time <= :now THEN 1 END) AS due
FROM (SELECT execution_time FROM {tasks} WHERE {waits} AND task_name = :name
      LIMIT :most) AS counted"""
_CAME = """
SELECT {f}count(*) AS number FROM (
    SELECT 1 FROM {tasks} WHERE {waits} AND task_name = :name
    AND execution_time > :began AND execution_time <= :now LIMIT :most) AS came"""
_OTHERS = """
SELECT * FROM (SELECT task_name, 'running' AS state, {f}count(*) AS count FROM {tasks}
               WHERE picked AND {is_task} GROUP BY task_name ORDER BY task_name LIMIT :names) AS r
UNION ALL
SELECT * FROM (SELECT task_name, state, {f}count(*) AS count FROM {tasks}
               WHERE NOT picked AND state IN ('paused', 'blocked', 'dead') AND {is_task}
               GROUP BY task_name, state ORDER BY task_name LIMIT :names) AS o"""


def task_counts(store: Store) -> list[TaskCount]:
    """Return the counts by name, of ``MOST_NAMES`` tasks that have a row."""
    with reading(store) as at:
        now = at.now()
        lines = [
            _with_waiting(at, name, states, now)
            for name, states in sorted(_states_of(at).items())
        ]
        found = paces(at, now, {line.task: line.oldest for line in lines})
        paced = [_with_pace(at, line, found[line.task], now) for line in lines]
    return [_with_next_due(store, line) if line.has_more else line for line in paced]


def _with_pace(
    at: ReadTransaction, line: TaskCount, pace: Pace, now: datetime
) -> TaskCount:
    came = came_per_hour(at, line.task, pace, line.oldest, now)
    return replace(line, came=came, ended=pace.out, left=pace.left(line.due))


def came_per_hour(
    at: ReadTransaction, name: str, pace: Pace, oldest: datetime | None, now: datetime
) -> float | None:
    """Return how many come due in an hour, of the time that the pace has; None if those that are
    due are no backlog that is older.

    The one that has waited longest is claimed first. So all that came due after it still wait.
    """
    if pace.began is None or oldest is None or oldest > pace.began:
        return None
    given = {"name": name, "began": pace.began, "now": now, "most": MOST}
    (row,) = at.read(_CAME, given, waits=_WAITS)
    return float(row["number"] * (HOUR / (now - pace.began)))


def _with_next_due(store: Store, line: TaskCount) -> TaskCount:
    """The first due time of all rows, as a worker looks for it: from now on, so that it is right
    to about a second.
    """
    wait = store.due.next_due([], [line.task])
    now = store.now()
    due = None if wait is None else (now + wait + HALF).replace(microsecond=0)
    return replace(line, next_due=due)


def _states_of(at: ReadTransaction) -> dict[str, Counter[str]]:
    """Return the counts of rows that do not wait by name and state, and the names of others."""
    counts: dict[str, Counter[str]] = {}
    for row in at.read(_OTHERS, {"names": MOST_NAMES}):
        name = row["task_name"]
        if name in counts or len(counts) < MOST_NAMES:
            counts.setdefault(name, Counter())[row["state"]] = row["count"]
    names = names_in(at, "{tasks}", _WAITS)
    waiting = list(islice(names, max(MOST_NAMES - len(counts), 0)))
    return counts | {name: Counter() for name in waiting if name not in counts}


def _with_waiting(
    at: ReadTransaction, name: str, states: Mapping[str, int], now: datetime
) -> TaskCount:
    given = {"name": name, "most": MOST + 1, "now": now}
    (row,) = at.read(_WAITING, given, waits=_WAITS)
    first = None if row["execution_time"] is None else utc(row["execution_time"])
    oldest = first if row["due"] else None
    return TaskCount(
        task=name,
        waiting=row["waiting"],
        next_due=None if first is None else first.replace(microsecond=0),
        due=row["due"],
        oldest=oldest,
        running=states["running"],
        paused=states["paused"],
        blocked=states["blocked"],
        dead=states["dead"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTasks:
    """Tasks of one name: how many are due (``MOST`` + 1 if more are), the first due time, the id
    of one that is due, and how many run.
    """

    due: int
    oldest: datetime | None
    id: str | None
    running: int


_DUE = """
SELECT {f}count(*) AS due, {f}min(execution_time) AS at, {f}min(task_instance) AS id,
       (SELECT {f}count(*) FROM {tasks} WHERE picked AND {is_task} AND task_name = :name) AS running
FROM (SELECT execution_time, task_instance FROM {tasks}
      WHERE {waits} AND task_name = :name AND execution_time <= :now LIMIT :most) AS waiting"""


def due_tasks(store: Store, name: str) -> DueTasks:
    """Return what is due of one task."""
    with reading(store) as at:
        given = {"name": name, "now": at.now(), "most": MOST + 1}
        (row,) = at.read(_DUE, given, waits=_WAITS)
    return DueTasks(
        due=row["due"], oldest=utc(row["at"]), id=row["id"], running=row["running"]
    )


def names_in(at: ReadTransaction, table: str, where: str = "1 = 1") -> Iterator[str]:
    """Yield each name in a table once, in order: by one index look-up for each, however many rows
    have it.
    """
    text = f"SELECT {{f}}min(task_name) AS name FROM {table} WHERE {where} AND task_name > :last"
    last = ""
    while True:
        (row,) = at.read(text, {"last": last})
        if row["name"] is None:
            return
        last = row["name"]
        yield last


# -- why nobody takes due tasks --------------------------------------------------------------------


def stranded(store: Store, names: Collection[str]) -> dict[str, str]:
    """Return those of these one-time tasks that no live worker takes, each with the reason."""
    workers = all_workers(store)
    under_jobs = jobs_among(store, names)
    found = {
        name: UNDER_A_JOB if name in under_jobs else obstacle(name, (), workers)
        for name in names
    }
    return {name: why for name, why in found.items() if why is not None}


def with_reasons(store: Store, lines: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Return these tasks; those that are due and that no live worker takes with that state and
    the reason.
    """
    if not any(line.state == ListedState.WAITING for line in lines):
        return list(lines)
    now = store.now()
    due = {line.task for line in lines if _is_due(line, now)}
    reasons = stranded(store, due) if due else {}
    return [
        replace(
            line, state=state_of_stuck(reasons[line.task]), reason=reasons[line.task]
        )
        if _is_due(line, now) and line.task in reasons
        else line
        for line in lines
    ]


def _is_due(line: TaskInfo, now: datetime) -> bool:
    return (
        line.state == ListedState.WAITING and line.due is not None and line.due <= now
    )


def counts_with_reasons(store: Store, lines: Sequence[TaskCount]) -> list[TaskCount]:
    """Return these counts; those of due tasks that no live worker takes with the reason."""
    now = store.now()
    due = {
        line.task
        for line in lines
        if line.next_due is not None and line.next_due <= now
    }
    reasons = stranded(store, due)
    return [replace(line, reason=reasons.get(line.task)) for line in lines]
