"""Pause and resume, of a job or of all.

A paused job's rows have a state, which no claim looks at. A pause of all is one row of ``scheduled_meta``, which every
claim asks for: so it also holds for tasks and jobs that come later. Races:

- against a claim: whoever locks the row first; a claim that came first goes on, and its settlement parks the row;
- against a settlement: it holds the row's lock; the order sees what it wrote, or it sees the order's state;
- against a planner: it changes text and due time of a waiting row, never its state;
- against an instance that is being made: by the job's latch; it is made before and sleeps, or after and sees the pause;
- against another pause or resume: by the rows' locks, or that of the one row; the second finds nothing to do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from slotwise.decide.pause import Passed, slept
from slotwise.errors import InvalidSchedule
from slotwise.model.records import FOREVER, Row
from slotwise.model.vocabulary import State
from slotwise.schedules import parse_schedule
from slotwise.store.operations.transaction import Operation
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import PAUSED_KEY, Tables, is_plan
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """Who paused all, when and why."""

    since: datetime
    author: str
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A job that goes on: how many of its slots were skipped (paused), and which one is next."""

    job: str
    skipped: int
    next_slot: datetime | None


def pause(operation: Operation, job: str) -> bool:
    """Nothing of the job starts any more; False if it was paused already."""
    if not any(row.state is None for row in operation.rows_of(job, for_good=True)):
        return False
    tasks, number = operation.store.tables.tasks, operation.sign("pause", job=job)
    # All at once: held rows are locked meanwhile, and no heartbeat gets through; there may be thousands beside them.
    due, waits = tasks.c.execution_time, ~tasks.c.picked
    statement = tasks.update().where(tasks.c.task_name == job, tasks.c.state.is_(None)).values(
        state=State.PAUSED, parked_due=sa.case((waits, due), else_=tasks.c.parked_due),
        execution_time=sa.case((waits, sa.literal(FOREVER, Instant)), else_=due),
        # A row beside the plan keeps the order that made it, and a held row the order of a trigger that waits for it.
        control=sa.case((is_plan(tasks), sa.func.coalesce(tasks.c.control, number)), else_=tasks.c.control),
    )  # fmt: skip
    operation.connection.execute(statement)
    return True


def pause_all(operation: Operation) -> bool:
    """Nothing starts any more, whatever it is and whenever it comes; False if all was paused already."""
    meta = operation.store.tables.meta
    said = {"since": operation.now.isoformat(), "author": operation.author.name, "note": operation.author.note}
    row = {"key": PAUSED_KEY, "value": json.dumps(said)}
    if not operation.store.dialect.by_row.insert_new(operation.connection, meta, row, meta.c.key):
        return False
    operation.sign("pause")
    return True


def resume(operation: Operation, job: str, *, replay: bool) -> list[Resumed]:
    """The job goes on; empty if it was not paused. ``replay``: leave slots of the pause to the job's catch-up."""
    rows = [row for row in operation.rows_of(job, for_good=True) if row.state == State.PAUSED]
    if not rows:
        return []
    operation.sign("resume", job=job, replay=replay or None)
    found = [_wake(operation, row, replay=replay) for row in rows]
    tasks = operation.store.tables.tasks
    # The end of a held row looks for triggers that wait for it, if an operation has written to that row.
    is_done = sa.and_(is_plan(tasks), ~tasks.c.picked, tasks.c.cancel_requested.is_(None))
    statement = tasks.update().where(tasks.c.task_name == job, tasks.c.state == State.PAUSED).values(
        state=None, parked_due=None, control=sa.case((is_done, None), else_=tasks.c.control),
        execution_time=sa.case((tasks.c.picked, tasks.c.execution_time), else_=_due(tasks)),
    )  # fmt: skip
    operation.connection.execute(statement)
    return [one for one in found if one is not None]


def _due(tasks: sa.Table) -> sa.ColumnElement[datetime]:
    """When a row that sleeps would be due."""
    return sa.func.coalesce(tasks.c.parked_due, tasks.c.execution_time)


def resume_all(operation: Operation, *, replay: bool) -> list[Resumed] | None:
    """All goes on, but for jobs that are paused by name; None if not all was paused."""
    meta, tasks = operation.store.tables.meta, operation.store.tables.tasks
    gone = operation.connection.execute(meta.delete().where(meta.c.key == PAUSED_KEY)).rowcount
    if not gone:
        return None
    operation.sign("resume", replay=replay or None)
    if replay:
        return []
    rows = operation.rows(is_plan(tasks), tasks.c.state.is_(None), ~tasks.c.picked, tasks.c.slot <= operation.now)
    found = [_wake(operation, row, replay=False) for row in rows]
    return [one for one in found if one is not None and one.skipped]


def _wake(operation: Operation, row: Row, *, replay: bool) -> Resumed | None:
    """Pass what a plan row has missed; None for any other row. What a holder missed is for its settlement to decide."""
    if not row.is_plan:
        return None
    passed = None if row.picked or replay else _slept(row, operation.now)
    if passed is None:
        return Resumed(job=row.task_name, skipped=0, next_slot=row.slot)
    awake: dict[str, Any] = {} if row.cancel_requested else {"control": None}
    if row.state == State.PAUSED:
        awake["execution_time"] = _due(operation.store.tables.tasks)
    operation.skip(row, *passed.gaps)
    operation.change(row, **{**awake, **passed.row, "state": None, "parked_due": None})
    return Resumed(job=row.task_name, skipped=passed.count, next_slot=passed.row.get("slot", row.slot))


def _slept(row: Row, now: datetime) -> Passed | None:
    try:
        return slept(row, parse_schedule(row.schedule or "-"), now)
    except InvalidSchedule:
        return None  # a newer release wrote it: a worker that can read it decides by its catch-up


def all_paused(connection: sa.Connection, tables: Tables) -> Paused | None:
    """Who paused all; None if nobody did."""
    found = connection.scalar(sa.select(tables.meta.c.value).where(tables.meta.c.key == PAUSED_KEY))
    if found is None:
        return None
    said = json.loads(found)
    return Paused(since=utc(datetime.fromisoformat(said["since"])), author=said["author"], note=said["note"])


def is_all_paused(store: Store) -> Paused | None:
    """As ``all_paused``, in a transaction of its own."""
    with store.transaction() as connection:
        return all_paused(connection, store.tables)
