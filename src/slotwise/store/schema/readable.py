"""Read rows that anybody may have written: each is decoded by itself, and an unreadable one costs only itself.

The rows of live workers are read like that, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import DataError

from slotwise.model.vocabulary import State
from slotwise.store.schema.rows import utc

#: What decoding a malformed value raises: in the driver, in a column type of ours, or in a view.
MALFORMED: Final = (DataError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Unread:
    """A row that cannot be decoded: its key, and the error in one line."""

    key: tuple[str, ...]
    error: str


def rows_apart(
    connection: sa.Connection, statement: sa.Select[tuple[object, ...]], *key: sa.Column[str]
) -> Iterator[sa.RowMapping | Unread]:
    """Yield the rows of a statement in its order; those that the driver cannot decode as ``Unread``."""
    try:
        yield from connection.execute(statement).mappings().all()
        return
    except MALFORMED:
        keys = connection.execute(statement.with_only_columns(*key)).all()
    for values in keys:
        one = statement.where(*(column == value for column, value in zip(key, values, strict=True)))
        try:
            found = connection.execute(one).mappings().first()
        except MALFORMED as error:
            inner = getattr(error, "orig", None) or error
            yield Unread(tuple(values), str(inner).partition("\n")[0])
        else:
            if found is not None:  # Race: it may have been deleted in between.
                yield found


def texts_of(document: str | None) -> list[str]:
    """Return the strings of a JSON array. Raises ValueError for anything else."""
    found = json.loads(document or "[]")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{document!r:.60} is not an array of strings")
    return found


def lists_of(document: str | None) -> Mapping[str, Sequence[str]]:
    """Return a JSON object of arrays of strings. Raises ValueError for anything else."""
    found = json.loads(document or "{}")
    if not isinstance(found, dict):
        raise ValueError(f"{document!r:.60} is not an object")
    return {name: texts_of(json.dumps(value)) for name, value in found.items()}


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
    found = []
    for row in rows_apart(connection, statement, workers.c.worker):
        name = row.key[0] if isinstance(row, Unread) else row["worker"]
        try:
            found.append(_unreadable(name, now) if isinstance(row, Unread) else _worker_info(row, now))
        except MALFORMED:
            found.append(_unreadable(name, now))
    return found


def _unreadable(worker: str, now: datetime) -> WorkerInfo:
    return WorkerInfo(
        worker=worker, host="", pid=0, state=State.UNREADABLE, live=False, capacity=0, running=0, tags=[], tasks=[],
        revision=None, refused=[], passed_over={}, version="", started=now, last_seen=now, skew=None,
    )  # fmt: skip


def _worker_info(row: sa.RowMapping, now: datetime) -> WorkerInfo:
    return WorkerInfo(
        worker=row["worker"], host=row["host"], pid=row["pid"], state=row["state"],
        live=row["last_seen"] + row["lease"] >= now, capacity=row["capacity"], running=row["running"],
        tags=texts_of(row["tags"]), tasks=texts_of(row["tasks"]), version=row["version"],
        revision=row["revision"], refused=texts_of(row["refused"]), passed_over=lists_of(row["passed_over"]),
        started=utc(row["started"]), last_seen=utc(row["last_seen"]),
        skew=None if row["skew"] is None else timedelta(seconds=row["skew"]),
    )  # fmt: skip
