"""Counts of rows by name, each up to ``MOST``; each name is found by one index look-up, however
many rows have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar

import sqlalchemy as sa

from slotwise.model.values import Value
from slotwise.store.reading.queries import read
from slotwise.store.reading.routing import NO_WORKER_LIVES
from slotwise.store.schema.rows import utc
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


_WAITS = f"NOT picked AND state IS NULL AND {IS_TASK}"
_WAITING = """
SELECT {f}count(*) AS count FROM (SELECT 1 FROM {tasks} WHERE {waits} AND task_name = :name
                                  LIMIT :most) AS counted"""
_OTHERS = """
SELECT * FROM (SELECT task_name, 'running' AS state, {f}count(*) AS count FROM {tasks}
               WHERE picked AND {is_task} GROUP BY task_name ORDER BY task_name LIMIT :names) AS r
UNION ALL
SELECT * FROM (SELECT task_name, state, {f}count(*) AS count FROM {tasks}
               WHERE NOT picked AND state IN ('paused', 'blocked', 'dead') AND {is_task}
               GROUP BY task_name, state ORDER BY task_name LIMIT :names) AS o"""


def task_counts(store: Store) -> list[TaskCount]:
    """Return the counts by name, of ``MOST_NAMES`` tasks that have a row."""
    with store.transaction() as connection:
        counts = _counts_of(connection, store)
    now = store.now() + HALF
    found = []
    for name, counted in sorted(counts.items()):
        wait = store.due.next_due([], [name])
        line = TaskCount(
            task=name,
            next_due=None if wait is None else (now + wait).replace(microsecond=0),
            waiting=counted["waiting"],
            running=counted["running"],
            paused=counted["paused"],
            blocked=counted["blocked"],
            dead=counted["dead"],
        )
        found.append(line)
    return found


def _counts_of(connection: sa.Connection, store: Store) -> dict[str, Counter[str]]:
    """Return the counts by name and state."""
    counts: dict[str, Counter[str]] = {}
    for row in read(connection, store, _OTHERS, {"names": MOST_NAMES}):
        if row["task_name"] in counts or len(counts) < MOST_NAMES:
            counts.setdefault(row["task_name"], Counter())[row["state"]] = row["count"]
    waiting = names_in(connection, store, "{tasks}", _WAITS)
    for name in list(islice(waiting, max(MOST_NAMES - len(counts), 0))):
        counts.setdefault(name, Counter())
    for name, counted in counts.items():
        given = {"name": name, "most": MOST + 1}
        (row,) = read(connection, store, _WAITING, given, waits=_WAITS)
        counted["waiting"] = row["count"]
    return counts


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
    with store.transaction() as connection:
        given = {"name": name, "now": store.dialect.now(connection), "most": MOST + 1}
        (row,) = read(connection, store, _DUE, given, waits=_WAITS)
    return DueTasks(
        due=row["due"], oldest=utc(row["at"]), id=row["id"], running=row["running"]
    )


def names_in(
    connection: sa.Connection, store: Store, table: str, where: str = "1 = 1"
) -> Iterator[str]:
    """Yield each name in a table once, in order: by one index look-up for each, however many rows
    have it.
    """
    text = f"SELECT {{f}}min(task_name) AS name FROM {table} WHERE {where} AND task_name > :last"
    last = ""
    while True:
        (row,) = read(connection, store, text, {"last": last})
        if row["name"] is None:
            return
        last = row["name"]
        yield last
