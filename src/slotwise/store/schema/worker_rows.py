"""Rows of live workers, and the tags that a row lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.vocabulary import State
from slotwise.store.schema.readable import MALFORMED, Unread, lists_of, rows_apart, texts_of
from slotwise.store.schema.rows import utc


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker's row; ``live``: it was seen within its lease, by the database's time."""

    worker: str
    host: str
    pid: int
    state: str
    live: bool
    capacity: int
    running: int
    tags: Sequence[str]
    tasks: Sequence[str]
    revision: str | None
    refused: Sequence[str]
    #: Tasks that it knows and does not claim, with the tags that they ask for.
    passed_over: Mapping[str, Sequence[str]]
    version: str
    started: datetime
    last_seen: datetime
    skew: timedelta | None


def tags_of(text: str | None) -> list[str]:
    """The tags that stand in a row."""
    try:
        return texts_of(text)
    except MALFORMED:
        return []


def worker_infos(
    connection: sa.Connection, statement: sa.Select[tuple[object, ...]], workers: sa.Table, now: datetime
) -> list[WorkerInfo]:
    """Return the workers that a statement selects. A malformed row is a worker that is ``unreadable`` and not live."""
    return [_readable(row, now) for row in rows_apart(connection, statement, workers.c.worker)]


def _readable(row: sa.RowMapping | Unread, now: datetime) -> WorkerInfo:
    if isinstance(row, Unread):
        return _unreadable(row.key[0], now)
    try:
        return worker_info(row, now)
    except MALFORMED:
        return _unreadable(row["worker"], now)


def _unreadable(worker: str, now: datetime) -> WorkerInfo:
    return WorkerInfo(
        worker=worker, host="", pid=0, state=State.UNREADABLE, live=False, capacity=0, running=0, tags=[], tasks=[],
        revision=None, refused=[], passed_over={}, version="", started=now, last_seen=now, skew=None,
    )  # fmt: skip


def worker_info(row: sa.RowMapping, now: datetime) -> WorkerInfo:
    """Return a worker's row; whether it lives, at ``now``. Raises one of ``MALFORMED``."""
    return WorkerInfo(
        worker=row["worker"], host=row["host"], pid=row["pid"], state=row["state"],
        live=row["last_seen"] + row["lease"] >= now, capacity=row["capacity"], running=row["running"],
        tags=texts_of(row["tags"]), tasks=texts_of(row["tasks"]), version=row["version"],
        revision=row["revision"], refused=texts_of(row["refused"]), passed_over=lists_of(row["passed_over"]),
        started=utc(row["started"]), last_seen=utc(row["last_seen"]),
        skew=None if row["skew"] is None else timedelta(seconds=row["skew"]),
    )  # fmt: skip
