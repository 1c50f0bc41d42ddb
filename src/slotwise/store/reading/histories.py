"""What deploys have changed, and which workers were alive when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from slotwise.model.values import Value
from slotwise.store.reading.queries import NO_LIMIT, read, reading
from slotwise.store.reading.workers import texts_in
from slotwise.store.schema.rows import filled
from slotwise.store.slots.history import GONE
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployInfo(Value):
    """A schedule that a deploy has planned. ``former`` is the one before; None for a new job."""

    job: str
    id: str
    at: datetime
    former: str | None
    schedule: str
    revision: str | None
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLife(Value):
    """One start of a worker. ``ended`` is None while it lives, or if its end is unknown.

    ``outcome``: ``left`` (it has signed out) or ``gone`` (it was last seen when it ``ended``).
    ``reason``: why it began to drain at ``drained``, as SIGTERM. ``tasks`` is empty if the worker
    knew more than 500.
    """

    worker: str
    host: str
    version: str
    revision: str | None
    capacity: int
    tags: Sequence[str]
    tasks: Sequence[str]
    started: datetime
    drained: datetime | None
    ended: datetime | None
    outcome: str | None
    reason: str | None


class Absence(NamedTuple):
    """A time without a worker; ``last`` was the last one before, ``until`` is None if it lasts."""

    since: datetime
    until: datetime | None
    last: WorkerLife


#: How far from an instant its neighbours are looked for.
_NEAR = timedelta(days=2)
_DEPLOYS = """
SELECT task_name AS job, task_instance AS id, at, former, schedule, revision, worker
FROM {deploys} WHERE at >= :start AND at < :end{of_job}{of_id}
ORDER BY at DESC, task_name DESC LIMIT :limit"""
#: A worker that is silent has no end yet: that is written when its row is deleted.
_LIVES = """
SELECT h.*, w.last_seen, w.lease FROM {worker_history} AS h
LEFT JOIN {workers} AS w ON w.worker = h.worker
WHERE (h.ended >= :start OR h.ended IS NULL) AND h.started < :end
ORDER BY h.started DESC LIMIT :limit"""


def deploys(
    store: Store,
    start: datetime,
    end: datetime,
    *,
    job: str | None = None,
    id: str | None = None,
    limit: int | None = None,
) -> list[DeployInfo]:
    """Return the changes of schedules from ``start`` to before ``end``, the newest first."""
    given: dict[str, object] = {"start": start, "end": end, "job": job, "id": id}
    given["limit"] = limit or NO_LIMIT
    of_job = "" if job is None else " AND task_name = :job"
    of_id = "" if id is None else " AND task_instance = :id"
    rows = read(store, _DEPLOYS, given, of_job=of_job, of_id=of_id)
    return [filled(DeployInfo, row) for row in rows]


def absence(store: Store, job: str, at: datetime) -> Absence | None:
    """Return the time around an instant in which no worker that knew this job claimed anything, up
    to two days; None if one did, or if the history knows none.
    """
    able = _able(store, job, at)
    before = [life for life in able if life.started <= at]
    if not before or any(_claimed_until(life, at) >= at for life in before):
        return None
    last = max(before, key=lambda life: _claimed_until(life, at))
    later = [life.started for life in able if life.started > at]
    since = _claimed_until(last, at)
    return Absence(since=since, until=min(later, default=None), last=last)


def _able(store: Store, job: str, at: datetime) -> list[WorkerLife]:
    """Return the workers around an instant that knew this job."""
    near = worker_lives(store, at - _NEAR, at + _NEAR)
    return [life for life in near if job in life.tasks or not life.tasks]


def _claimed_until(life: WorkerLife, at: datetime) -> datetime:
    """Return when a worker ceased to claim; ``at`` if it has not."""
    return life.drained or life.ended or at


def worker_lives(
    store: Store, start: datetime, end: datetime, *, limit: int | None = None
) -> list[WorkerLife]:
    """Return the workers that lived between these instants, those started last first."""
    given = {"start": start, "end": end, "limit": limit or NO_LIMIT}
    with reading(store) as at:
        now = at.now()
        rows = at.read(_LIVES, given)
    lives = [_life(row, now) for row in rows]
    return [one for one in lives if one.ended is None or one.ended >= start]


def _life(row: sa.RowMapping, now: datetime) -> WorkerLife:
    end: Mapping[str, object] = {}
    last_seen = row["last_seen"]
    if last_seen is not None:
        is_silent = last_seen + row["lease"] < now
        end = {
            "ended": last_seen if is_silent else None,
            "outcome": GONE if is_silent else None,
        }
    return filled(
        WorkerLife,
        row,
        tags=texts_in(row["tags"]),
        tasks=texts_in(row["tasks"]),
        **end,
    )
