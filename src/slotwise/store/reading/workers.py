"""Workers that have signed in, as people see them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache

import sqlalchemy as sa

from slotwise.model.values import Value
from slotwise.model.vocabulary import WorkerState
from slotwise.store.reading.queries import ReadTransaction, reading
from slotwise.store.schema.rows import MALFORMED, Unread, filled, rows_apart, texts_of
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo(Value):
    """A worker's row; ``live``: it was seen within its lease, by the database's time."""

    worker: str
    host: str = ""
    pid: int = 0
    state: str
    live: bool = False
    capacity: int = 0
    running: int = 0
    tags: Sequence[str] = ()
    tasks: Sequence[str] = ()
    revision: str | None = None
    refused: Sequence[str] = ()
    #: Tasks that it knows and does not claim, with the tags that they ask for.
    passed_over: Mapping[str, Sequence[str]] = field(default_factory=dict)
    version: str = ""
    started: datetime
    last_seen: datetime
    skew: timedelta | None = None


def all_workers(store: Store) -> list[WorkerInfo]:
    """Return all workers that have signed in and not out, the newest first."""
    tasks = store.tables.tasks
    is_held = tasks.c.picked & (tasks.c.picked_by == store.tables.workers.c.worker)
    running = sa.select(sa.func.count()).where(is_held).scalar_subquery()
    with reading(store) as at:
        return workers_in(at, at.now(), running.label("running"))


def workers_in(
    at: ReadTransaction, now: datetime, *counts: sa.ColumnElement[int]
) -> list[WorkerInfo]:
    """Return all workers, with these counts. One with a malformed row is ``unreadable``, and not
    live.
    """
    workers = at.tables.workers
    wanted = sa.select(workers, *counts).order_by(workers.c.started.desc())
    found = []
    for one in rows_apart(
        at.connection,
        wanted,
        workers.c.worker,
        read=lambda row: _worker_info(row, now),
    ):
        if isinstance(one, Unread):
            (name,) = one.key
            state = WorkerState.UNREADABLE
            one = WorkerInfo(worker=name, state=state, started=now, last_seen=now)
        found.append(one)
    return found


def _worker_info(row: sa.RowMapping, now: datetime) -> WorkerInfo:
    return filled(
        WorkerInfo,
        row,
        live=row["last_seen"] + row["lease"] >= now,
        skew=None if row["skew"] is None else timedelta(seconds=row["skew"]),
        passed_over=_lists_of(row["passed_over"]),
        tags=texts_in(row["tags"]),
        tasks=texts_in(row["tasks"]),
        refused=texts_in(row["refused"]),
    )


#: The lists of most workers are alike: of thousands of rows each is decoded once.
@lru_cache(maxsize=1024)
def texts_in(document: str | None) -> tuple[str, ...]:
    return tuple(texts_of(document))


@lru_cache(maxsize=1024)
def _lists_of(document: str | None) -> Mapping[str, Sequence[str]]:
    """Return a JSON object of arrays of strings. Raises ValueError for anything else."""
    found = json.loads(document or "{}")
    if not isinstance(found, dict):
        raise ValueError(f"{document!r:.60} is not an object")
    return {name: texts_of(json.dumps(value)) for name, value in found.items()}


def tags_of(text: str | None) -> list[str]:
    try:
        return texts_of(text)
    except MALFORMED:
        return []
