"""Rows of live workers, and the tags that a row lists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

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
    found: list[str] = json.loads(text or "[]")
    return found


def worker_info(row: sa.RowMapping, now: datetime) -> WorkerInfo:
    """A worker's row; whether it lives, at ``now``."""
    return WorkerInfo(
        worker=row["worker"], host=row["host"], pid=row["pid"], state=row["state"],
        live=row["last_seen"] + row["lease"] >= now, capacity=row["capacity"], running=row["running"],
        tags=json.loads(row["tags"] or "[]"), tasks=json.loads(row["tasks"] or "[]"), version=row["version"],
        revision=row["revision"], refused=json.loads(row["refused"] or "[]"),
        passed_over=json.loads(row["passed_over"] or "{}"),
        started=utc(row["started"]), last_seen=utc(row["last_seen"]),
        skew=None if row["skew"] is None else timedelta(seconds=row["skew"]),
    )  # fmt: skip
