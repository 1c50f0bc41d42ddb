"""The trace context that an integration stores with a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from slotwise.settings.settings import Settings
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.queue.queue import Inserted
from slotwise.store.schema.tables import Tables, is_task, tables


def trace_of(
    connection: sa.Connection, known: Tables, name: str, id: str
) -> dict[str, str] | None:
    """Return the headers that ``store_trace`` has stored with a task; None without any."""
    tasks = known.tasks.c
    mine = tasks.task_name == name, tasks.task_instance == id
    plan = connection.scalar(sa.select(tasks.plan).where(*mine))
    carrier = plan.get("trace") if isinstance(plan, dict) else None
    return carrier if isinstance(carrier, dict) else None


def store_trace(
    tx: Joinable,
    rows: Sequence[Inserted],
    carrier: Mapping[str, str],
    *,
    settings: Settings,
) -> None:
    """Store the headers of a trace with these tasks, within a hook of their insert.

    A task whose id existed already keeps its headers. Rows that a worker holds do not change.
    """
    tasks = tables(settings.table_prefix, settings.schema).tasks
    mine = sa.tuple_(tasks.c.task_name, tasks.c.task_instance).in_(
        [(row.task, row.id) for row in rows]
    )
    fresh = sa.and_(mine, is_task(tasks.c), tasks.c.plan.is_(None), ~tasks.c.picked)
    tx.execute(tasks.update().where(fresh).values(plan={"trace": dict(carrier)}))
