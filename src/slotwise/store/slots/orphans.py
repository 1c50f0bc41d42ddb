"""Ledger rows that have lost their row in the queue, and rows that have lost theirs in the ledger."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

import sqlalchemy as sa

from slotwise.model.vocabulary import Origin, Outcome, Reason
from slotwise.store.dialects.dialect import Dialect
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import Change, ledger_instance
from slotwise.store.schema.tables import Tables, of_plan

#: So many of the newest slots of a plan.
LOOKED_AT = 100


def end_orphans(connection: sa.Connection, dialect: Dialect, name: str, instance: str, now: datetime) -> None:
    """End slots that are open in the ledger and stand in no row: it was deleted, or the queue was restored alone.

    Those are among the newest; the others of a long history are not looked through. What never began is not lost.
    """
    connection.execute(_ending(dialect.tables), {"plan_name": name, "plan_of": instance, "now": now})


@lru_cache(maxsize=16)
def _ending(tables: Tables) -> sa.Update:
    """Made once: each plan of a job asks."""
    slots, rows = tables.slots, tables.tasks.alias("standing")
    name, instance = sa.bindparam("plan_name", type_=sa.Text), sa.bindparam("plan_of", type_=sa.Text)
    plan = [slots.c.task_name == name, slots.c.task_instance == instance]
    newest = sa.select(slots.c.slot).where(*plan).order_by(slots.c.slot.desc()).limit(LOOKED_AT)
    stands = sa.exists().where(
        rows.c.task_name == name, rows.c.slot == slots.c.slot, of_plan(rows, instance)
    )  # fmt: skip
    began = slots.c.started.is_not(None)
    return (
        slots.update()
        .where(*plan, slots.c.slot.in_(newest.scalar_subquery()), slots.c.finished.is_(None), ~stands)
        .values(
            outcome=sa.case((began, Outcome.LOST.value), else_=Outcome.CANCELLED.value), reason=Reason.ORPHANED,
            lost=slots.c.lost + sa.case((began, 1), else_=0), finished=sa.bindparam("now", type_=Instant),
        )
    )  # fmt: skip


def has_orphans(tables: Tables) -> sa.ColumnElement[bool]:
    """Of a plan row of the queue, within a statement that reads it: whether there is anything to end."""
    slots, plan, rows = tables.slots, tables.tasks, tables.tasks.alias("standing")
    newest = (
        sa.select(slots.c.task_name, slots.c.task_instance, slots.c.slot, slots.c.finished)
        .where(slots.c.task_name == plan.c.task_name, slots.c.task_instance == plan.c.task_instance)
        .order_by(slots.c.slot.desc())
        .limit(LOOKED_AT)
        .correlate(plan)
        .subquery("newest")
    )
    stands = sa.exists().where(
        rows.c.task_name == newest.c.task_name, rows.c.slot == newest.c.slot, of_plan(rows, newest.c.task_instance)
    )  # fmt: skip
    return sa.select(newest.c.slot).where(newest.c.finished.is_(None), ~stands).exists()


def settle_stranger(connection: sa.Connection, dialect: Dialect, change: Change) -> None:
    """The queue was restored alone: the ledger has nothing of this claim, or what has begun since. Both must end."""
    row, record, now = change.held.row, change.transition.record, change.held.now
    if record is not None and record.final:
        statement = dialect.insert(dialect.tables.slots).values(
            task_name=row.task_name, task_instance=ledger_instance(row), slot=row.slot, outcome=record.outcome,
            reason=record.reason, error=record.error, attempts=record.attempts, lost=record.lost,
            origin=row.origin or Origin.SCHEDULE, token=row.version, worker=row.picked_by, finished=now,
        )  # fmt: skip
        connection.execute(statement.on_conflict_do_nothing())
    end_orphans(connection, dialect, row.task_name, ledger_instance(row), now)
