"""Failures of all jobs and tasks since an instant, for the morning after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from slotwise.model.values import Value
from slotwise.model.vocabulary import Origin
from slotwise.store.reading.queries import ReadTransaction, read, reading
from slotwise.store.schema.rows import filled, utc
from slotwise.store.schema.tables import OF_INSTANCES
from slotwise.store.slots.store import Store

#: The ledger is ordered by slot. A failure is found if its slot is at most this much older than
#: the first instant.
OLDEST_SLOT: Final = timedelta(days=7)
#: A worker that is found lost after the first instant was heard of at most this much earlier.
_SILENCE: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Value):
    """A failed or lost slot, or a dead or waiting task (no ``slot``); ``reason`` is retry or rerun
    if it will run again.
    """

    name: str
    id: str
    slot: datetime | None
    at: datetime
    outcome: str
    reason: str | None
    attempts: int
    worker: str | None
    error: str | None


_SLOTS = """
SELECT task_name AS name, task_instance AS id, slot, origin, coalesce(finished, started) AS at,
       outcome, reason, attempts, worker, error
FROM {slots}
WHERE task_name = :name AND {family} AND slot >= :oldest
  AND outcome IN ('failed', 'dead', 'lost') AND coalesce(finished, started) >= :since
ORDER BY coalesce(finished, started) DESC LIMIT :limit"""
#: Every attempt that failed has a row, and an index by its end; a lost worker was heard of earlier.
_BY_ATTEMPTS = """
SELECT s.task_name AS name, s.task_instance AS id, s.slot, s.origin,
       coalesce(s.finished, s.started) AS at, s.outcome, s.reason, s.attempts, s.worker, s.error
FROM (SELECT DISTINCT task_name, task_instance, slot FROM {attempts} WHERE ended >= :heard) AS a
JOIN {slots} AS s ON s.task_name = a.task_name AND s.task_instance = a.task_instance
    AND s.slot = a.slot
WHERE s.outcome IN ('failed', 'dead', 'lost') AND coalesce(s.finished, s.started) >= :since
ORDER BY 5 DESC LIMIT :limit"""
#: Jobs that have failed without an attempt: their rows could not be read.
_FAILING = """
SELECT DISTINCT task_name FROM {tasks}
WHERE kind = 'plan' AND consecutive_failures > 0 AND last_failure >= :since"""
#: One-time tasks that have a row: dead ones, and those that wait for their next attempt or run it.
_TASKS = """
SELECT task_name AS name, task_instance AS id, last_failure AS at,
       CASE WHEN state = 'dead' THEN 'dead' ELSE 'failed' END AS outcome,
       CASE WHEN state = 'dead' THEN NULL ELSE 'retry' END AS reason,
       attempt AS attempts, picked_by AS worker, last_error AS error
FROM {tasks}
WHERE {is_task} AND (state = 'dead' OR consecutive_failures > 0)
  AND last_failure >= :since{of_name} ORDER BY last_failure DESC LIMIT :limit"""
_ATTEMPTS = """
SELECT a.task_name AS name, a.task_instance AS id, a.slot, s.origin, a.ended AS at, a.outcome,
       a.reason, a.number AS attempts, a.worker, a.error
FROM {attempts} AS a
LEFT JOIN {slots} AS s ON s.task_name = a.task_name AND s.task_instance = a.task_instance
    AND s.slot = a.slot
WHERE a.ended >= :since AND a.outcome IN ('failed', 'lost'){of_name}
ORDER BY a.ended DESC LIMIT :limit"""


def failures(
    store: Store, since: datetime, *, name: str | None = None, limit: int
) -> list[Failure]:
    """Return the newest failures since an instant, of one job or task, or of all."""
    given: dict[str, object] = {"name": name, "since": since, "limit": limit}
    given["oldest"] = since - OLDEST_SLOT
    given["heard"] = since - _SILENCE
    of_name = "" if name is None else " AND task_name = :name"
    with reading(store) as at:
        rows = at.read(_TASKS, given, of_name=of_name)
        if name is None:
            ended = _failed_slots_of_all(at, given)
        else:
            ended = list(_failed_slots(at, [name], given))
    tasks = [filled(Failure, row, slot=None) for row in rows]
    # Of a task with a row, the ledger may have the end as well.
    keys = {(one.name, one.id) for one in tasks}
    others = [
        one for one in ended if one.slot is not None or (one.name, one.id) not in keys
    ]
    return sorted(tasks + others, key=lambda one: one.at, reverse=True)[:limit]


def _failed_slots_of_all(
    at: ReadTransaction, given: Mapping[str, object]
) -> list[Failure]:
    """Return the newest failures of the ledger: of most jobs, there is nothing to look at."""
    found = [_of_slot(row) for row in at.read(_BY_ATTEMPTS, given)]
    known = {one.name for one in found}
    failing = {row["task_name"] for row in at.read(_FAILING, given)}
    return found + list(_failed_slots(at, sorted(failing - known), given))


def _failed_slots(
    at: ReadTransaction, names: Iterable[str], given: Mapping[str, object]
) -> Iterator[Failure]:
    """Yield the newest failures of the ledger, of each name: an index orders those of a job's own
    slots, another those of its instances.
    """
    for name in names:
        for family in ("task_instance = 'recurring'", OF_INSTANCES):
            mine = {**given, "name": name}
            yield from map(_of_slot, at.read(_SLOTS, mine, family=family))


def failed_attempts(
    store: Store, since: datetime, *, name: str | None = None, limit: int
) -> list[Failure]:
    """Return the newest attempts that failed or were lost, also of slots that succeeded later.

    One-time tasks are among them if they keep a record: the ledger has no slot of these, or their
    end.
    """
    given = {"name": name, "since": since, "limit": limit}
    of_name = "" if name is None else " AND a.task_name = :name"
    rows = read(store, _ATTEMPTS, given, of_name=of_name)
    return [_of_slot(row) for row in rows]


def _of_slot(row: sa.RowMapping) -> Failure:
    slot = None if row["origin"] in (None, Origin.TASK) else utc(row["slot"])
    return filled(Failure, row, slot=slot)
