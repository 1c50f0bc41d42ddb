"""The next slot of a backfill goes when one has ended.

Race: of two that end at once, both would count their pace from what was due before; so the second waits for the first
one's commit, at the order that both belong to. Whoever waits there has all other locks that it needs.
"""

from __future__ import annotations

import json
from datetime import datetime

import sqlalchemy as sa

from slotwise.durations import parse_duration
from slotwise.execution import Row
from slotwise.pauses import PAUSED, QUEUED, asleep
from slotwise.store.dialect import Dialect
from slotwise.store.rows import ledger_instance, utc


def release_next(connection: sa.Connection, dialect: Dialect, row: Row, now: datetime) -> None:
    """Let the next slot of a backfill go, since one of its slots has ended; at its pace after all that went before."""
    tasks, slots, controls = dialect.tables.tasks, dialect.tables.slots, dialect.tables.controls
    family = [tasks.c.task_name == row.task_name, tasks.c.plan_instance == row.plan_instance]
    queued = sa.select(tasks.c.task_instance, controls.c.arguments, tasks.c.control).outerjoin(
        controls, controls.c.id == tasks.c.control
    )
    queued = queued.where(*family, tasks.c.state == QUEUED).order_by(tasks.c.slot).limit(1)
    found = connection.execute(queued.with_for_update(skip_locked=True, of=tasks)).first()
    if found is None:
        return
    started = connection.scalar(
        sa.select(slots.c.started).where(
            slots.c.task_name == row.task_name, slots.c.task_instance == ledger_instance(row), slots.c.slot == row.slot
        )
    )
    pace = json.loads(found[1] or "{}").get("pace")
    due = max(now, _newest(connection, dialect, found[2], utc(started) or now) + parse_duration(pace)) if pace else now
    plan = sa.select(tasks.c.state).where(
        tasks.c.task_name == row.task_name, tasks.c.task_instance == row.plan_instance
    )
    awake = {"state": None, "execution_time": due, "parked_due": None}
    columns = asleep(due) if connection.scalar(plan) == PAUSED else awake
    connection.execute(tasks.update().where(*family, tasks.c.task_instance == found[0]).values(**columns))


def _newest(connection: sa.Connection, dialect: Dialect, order: int, started: datetime) -> datetime:
    """When the newest of a backfill's slots that may start by now does so; ``started``: one that has ended did."""
    tasks, controls = dialect.tables.tasks, dialect.tables.controls
    connection.execute(sa.select(controls.c.id).where(controls.c.id == order).with_for_update())
    due = sa.func.coalesce(tasks.c.parked_due, tasks.c.execution_time, type_=tasks.c.execution_time.type)
    going = [tasks.c.control == order, tasks.c.state.is_distinct_from(QUEUED), tasks.c.picked | (tasks.c.attempt == 0)]
    found = connection.scalar(sa.select(sa.func.max(due, type_=due.type)).where(*going))
    return started if found is None else max(started, utc(found))
