"""The next slot of a backfill goes when one has ended.

Race: of two that end at once, both would count their pace from what was due before; so the second waits for the first
one's commit, at the order that both belong to. Of batches that wait there crosswise, for ends of several backfills, the
database calls one off, and it is tried again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from slotwise.decide.pause import asleep
from slotwise.model.durations import parse_duration
from slotwise.model.records import Row
from slotwise.model.vocabulary import State
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.rows import ledger_instance, utc


def release_next(
    connection: sa.Connection, dialect: Dialect, row: Row, now: datetime, *, never_began: bool = False
) -> None:
    """Let the next slot of a backfill go, since one of its slots has ended; at its pace after all that went before.

    Of one that never began the ledger has the start of an earlier run at most: the pace counts from now.

    Of several backfills of a job each runs so many at once as it was told: the place that has become free is not
    another one's. (One whose slot an operator cancels loses sight of it, and may run one more until that has ended.)
    """
    tasks, slots = dialect.tables.tasks, dialect.tables.slots
    family = _family(dialect, row)
    full: list[int] = []
    while (found := _oldest(connection, dialect, family, full)) is not None:
        said = json.loads(found.arguments or "{}")
        if "concurrency" not in said or _going(connection, dialect, row, found.control) < said["concurrency"]:
            break
        full.append(found.control)
    else:
        return
    own = sa.select(slots.c.started).where(
        slots.c.task_name == row.task_name, slots.c.task_instance == ledger_instance(row), slots.c.slot == row.slot
    )
    pace = said.get("pace")
    since = now if never_began else utc(connection.scalar(own)) or now
    due = max(now, _newest(connection, dialect, row, found.control, since) + parse_duration(pace)) if pace else now
    plan = sa.select(tasks.c.state).where(
        tasks.c.task_name == row.task_name, tasks.c.task_instance == row.plan_instance
    )
    awake = {"state": None, "execution_time": due, "parked_due": None}
    columns = asleep(due) if connection.scalar(plan) == State.PAUSED else awake
    connection.execute(tasks.update().where(*family, tasks.c.task_instance == found.task_instance).values(**columns))


def _family(dialect: Dialect, row: Row) -> list[sa.ColumnElement[bool]]:
    """The rows beside the plan row: an index has those, and of the numbers of orders there is none."""
    tasks = dialect.tables.tasks
    return [tasks.c.task_name == row.task_name, tasks.c.plan_instance == row.plan_instance]


def _oldest(
    connection: sa.Connection, dialect: Dialect, family: Sequence[sa.ColumnElement[bool]], full: Collection[int]
) -> Any:
    """The oldest slot that waits for another of its backfill, locked; and what that order said."""
    tasks, controls = dialect.tables.tasks, dialect.tables.controls
    queued = sa.select(tasks.c.task_instance, controls.c.arguments, tasks.c.control)
    queued = queued.outerjoin(controls, controls.c.id == tasks.c.control).where(*family, tasks.c.state == State.QUEUED)
    if full:
        queued = queued.where(tasks.c.control.not_in(full))
    return connection.execute(
        queued.order_by(tasks.c.slot).limit(1).with_for_update(skip_locked=True, of=tasks)
    ).first()


def _going(connection: sa.Connection, dialect: Dialect, row: Row, order: int) -> int:
    """How many slots of a backfill run, or may, beside the one that has just ended."""
    tasks = dialect.tables.tasks
    others = [*_family(dialect, row), tasks.c.control == order, tasks.c.task_instance != row.task_instance]
    awake = tasks.c.state.is_(None) | (tasks.c.state == State.PAUSED)
    return connection.scalar(sa.select(sa.func.count()).select_from(tasks).where(*others, awake)) or 0


def _newest(connection: sa.Connection, dialect: Dialect, row: Row, order: int, started: datetime) -> datetime:
    """When the newest of a backfill's slots that may start by now does so; ``started``: one that has ended did."""
    tasks, controls = dialect.tables.tasks, dialect.tables.controls
    connection.execute(sa.select(controls.c.id).where(controls.c.id == order).with_for_update())
    due = sa.func.coalesce(tasks.c.parked_due, tasks.c.execution_time, type_=tasks.c.execution_time.type)
    mine = [*_family(dialect, row), tasks.c.control == order, tasks.c.state.is_distinct_from(State.QUEUED)]
    going = sa.select(sa.func.max(due, type_=due.type)).where(*mine, tasks.c.picked | (tasks.c.attempt == 0))
    found = connection.scalar(going)
    return started if found is None else max(started, utc(found))
