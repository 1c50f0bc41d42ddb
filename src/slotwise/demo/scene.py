"""What the tables say right now: jobs, workers and take-overs, for the view and for timing the disasters."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.demo.jobs import digests
from slotwise.store.tables import tables
from slotwise.vocabulary import Outcome


@dataclass(frozen=True, slots=True)
class Scene:
    """One look; ``jobs`` and ``workers`` are empty while the database is away."""

    at: datetime | None = None
    jobs: list[dict[str, Any]] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=list)
    taken_over: list[dict[str, Any]] = field(default_factory=list)
    files: int = 0


def look(engine: sa.Engine) -> Scene:
    """One look at the tables, in one short transaction."""
    try:
        with engine.connect() as connection:
            at = connection.scalar(sa.select(sa.func.statement_timestamp()))
            return Scene(
                at, _jobs(connection), _workers(connection), _taken_over(connection),
                connection.scalar(sa.select(sa.func.count()).select_from(digests)) or 0,
            )  # fmt: skip
    except DBAPIError:
        return Scene()


def _jobs(connection: sa.Connection) -> list[dict[str, Any]]:
    tasks, slots = tables().tasks, tables().slots
    ended = (
        sa.select(
            slots.c.task_name,
            sa.func.count().filter(slots.c.outcome == Outcome.SUCCEEDED).label("succeeded"),
            sa.func.count().filter(slots.c.outcome == Outcome.FAILED).label("failed"),
            sa.func.count().filter(slots.c.outcome.in_((Outcome.LOST, Outcome.DEAD, Outcome.CANCELLED))).label("lost"),
        )
        .group_by(slots.c.task_name)
        .subquery()
    )
    statement = (
        sa.select(
            tasks.c.task_name.label("job"), tasks.c.slot, tasks.c.picked_by, tasks.c.attempt,
            ended.c.succeeded, ended.c.failed, ended.c.lost,
        )
        .select_from(tasks.outerjoin(ended, tasks.c.task_name == ended.c.task_name))
        .order_by(tasks.c.task_name)
    )  # fmt: skip
    return [dict(row) for row in connection.execute(statement).mappings()]


def _workers(connection: sa.Connection) -> list[dict[str, Any]]:
    workers = tables().workers
    statement = sa.select(workers.c.worker, workers.c.pid, workers.c.state, workers.c.last_seen, workers.c.lease)
    return [dict(row) for row in connection.execute(statement.order_by(workers.c.started)).mappings()]


def _taken_over(connection: sa.Connection) -> list[dict[str, Any]]:
    slots = tables().slots
    statement = (
        sa.select(slots.c.task_name, slots.c.slot, slots.c.outcome, slots.c.attempts, slots.c.lost, slots.c.worker)
        .where(slots.c.lost > 0)
        .order_by(slots.c.slot.desc())
        .limit(6)
    )
    return [dict(row) for row in connection.execute(statement).mappings()]
