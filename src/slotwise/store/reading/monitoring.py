"""Figures for monitoring: what is due of each name, and how long ago jobs have succeeded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.records import FOREVER, from_micros
from slotwise.model.values import Value
from slotwise.schedules import Disabled
from slotwise.schedules.text import readable
from slotwise.store.reading.queries import Statement, reading
from slotwise.store.reading.task_counts import MOST
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import IS_TASK, RANK, is_plan
from slotwise.store.slots.store import Store

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


#: The oldest due slots, by name.
_SLOTS = """
SELECT task_name, {f}count(*) AS count, {f}min(execution_time) AS execution_time
FROM (SELECT task_name, execution_time FROM {tasks}
      WHERE NOT picked AND state IS NULL AND {has_slot} AND execution_time <= :now
      ORDER BY execution_time LIMIT :most) AS oldest
GROUP BY task_name"""
#: Due tasks by name and priority, which lead the queue's index. The first row of an order is read,
#: not a minimum, for which PostgreSQL might read the whole table.
_TASKS = """
WITH RECURSIVE names (name) AS (
    SELECT (SELECT task_name FROM {tasks} WHERE {waits} ORDER BY task_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task_name FROM {tasks} WHERE {waits} AND task_name > names.name
            ORDER BY task_name LIMIT 1)
    FROM names WHERE names.name IS NOT NULL
), heads (name, rank) AS (
    SELECT names.name, (SELECT {rank} FROM {tasks} WHERE {waits} AND task_name = names.name
                        ORDER BY {rank} LIMIT 1)
    FROM names WHERE names.name IS NOT NULL
    UNION ALL
    SELECT heads.name, (SELECT {rank} FROM {tasks}
                        WHERE {waits} AND task_name = heads.name AND {rank} > heads.rank
                        ORDER BY {rank} LIMIT 1)
    FROM heads WHERE heads.rank IS NOT NULL
)
SELECT heads.name AS task_name,
       (SELECT {f}count(*) FROM (SELECT 1 FROM {tasks} WHERE {due} LIMIT :most) AS counted)
           AS count,
       (SELECT execution_time FROM {tasks} WHERE {due} ORDER BY execution_time LIMIT 1)
           AS execution_time
FROM heads WHERE heads.rank IS NOT NULL"""
_WAITS = f"NOT picked AND state IS NULL AND {IS_TASK}"
_DUE = f"{_WAITS} AND task_name = heads.name AND {RANK} = heads.rank AND execution_time <= :now"


def backlog(store: Store) -> list[Backlog]:
    """Return the due rows of each job and task, by name. Of the jobs' slots together, the oldest
    ``MOST`` count.
    """
    with reading(store) as at:
        now = at.now()
        given = {"now": now, "most": MOST + 1}
        slots = at.read(_SLOTS, given)
        tasks = at.read(_TASKS, given, waits=_WAITS, due=_DUE)
    found = dict[str, Backlog]()
    for row in [*slots, *tasks]:
        if row["count"]:
            name = row["task_name"]
            known = found.get(name, Backlog(name=name, waiting=0, oldest=_NONE))
            found[name] = Backlog(
                name=name,
                waiting=min(known.waiting + row["count"], MOST),
                oldest=max(known.oldest, now - utc(row["execution_time"])),
            )
    return [one for _, one in sorted(found.items())]


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
    with reading(store) as at:
        now = at.now()
        rows = at.rows(_successes(store, jobs)) if jobs else []
    found = dict[str, SinceSuccess]()
    for row in rows:
        if (first := _waits_since(row)) is not None:
            one = _since(row["schedule"], first, now)
            known = found.setdefault(row["task_name"], one)
            found[row["task_name"]] = SinceSuccess(
                since=max(known.since, one.since),
                overdue=max(known.overdue, one.overdue),
            )
    return found


def _waits_since(row: sa.RowMapping) -> datetime | None:
    """Return the oldest success or planning; None for rows of another program."""
    instants = [utc(row["success"])] if row["success"] else []
    if row["created"]:
        instants.append(from_micros(row["created"]))
    return min(instants, default=None)


def _successes(store: Store, jobs: Collection[str]) -> Statement:
    """Select, by job and schedule, the oldest last success, and the first planning of a row
    without one.
    """
    tasks = store.tables.tasks.c
    success = tasks.last_success
    created = sa.case((success.is_(None), tasks.created_version))
    key = tasks.task_name, tasks.schedule
    oldest = sa.func.min(success).label("success")
    planned = sa.func.min(created).label("created")
    found = sa.select(*key, oldest, planned).where(
        store.dialect.among(tasks.task_name, jobs),
        is_plan(tasks),
        tasks.schedule != str(Disabled()),
        tasks.state.is_not(None) | (tasks.execution_time < FOREVER),
    )
    return found.group_by(*key)


def _since(text: str, success: datetime, now: datetime) -> SinceSuccess:
    schedule = readable(text)
    next_slot = None if schedule is None else schedule.next_after(success)
    overdue = _NONE if next_slot is None else max(now - next_slot, _NONE)
    return SinceSuccess(since=max(now - success, _NONE), overdue=overdue)
