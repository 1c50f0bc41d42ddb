"""The next slot of a backfill goes when one has ended."""

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
    """Let the next slot of a backfill go, since one of its slots has ended; at its pace after that one's start."""
    tasks, slots, controls = dialect.tables.tasks, dialect.tables.slots, dialect.tables.controls
    family = [tasks.c.task_name == row.task_name, tasks.c.plan_instance == row.plan_instance]
    queued = sa.select(tasks.c.task_instance, controls.c.arguments).outerjoin(
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
    due = max(now, (utc(started) or now) + parse_duration(pace)) if pace else now
    plan = sa.select(tasks.c.state).where(
        tasks.c.task_name == row.task_name, tasks.c.task_instance == row.plan_instance
    )
    awake = {"state": None, "execution_time": due, "parked_due": None}
    columns = asleep(due) if connection.scalar(plan) == PAUSED else awake
    connection.execute(tasks.update().where(*family, tasks.c.task_instance == found[0]).values(**columns))
