"""Ledger rows that have lost their row in the queue, and rows that have lost theirs in the ledger."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from slotwise.store.dialect import Dialect
from slotwise.store.rows import Change, ledger_instance


def end_orphans(connection: sa.Connection, dialect: Dialect, name: str, instance: str, now: datetime) -> None:
    """End slots that are open in the ledger and stand in no row: it was deleted, or the queue was restored alone.

    Those are among the newest; the others of a long history are not looked through. What never began is not lost.
    """
    slots, rows = dialect.tables.slots, dialect.tables.tasks.alias("standing")
    plan = [slots.c.task_name == name, slots.c.task_instance == instance]
    newest = sa.select(slots.c.slot).where(*plan).order_by(slots.c.slot.desc()).limit(100)
    stands = sa.exists().where(
        rows.c.task_name == name, rows.c.slot == slots.c.slot,
        sa.func.coalesce(rows.c.plan_instance, rows.c.task_instance) == instance,
    )  # fmt: skip
    began = slots.c.attempts > 0
    connection.execute(
        slots.update()
        .where(*plan, slots.c.slot.in_(newest.scalar_subquery()), slots.c.finished.is_(None), ~stands)
        .values(
            outcome=sa.case((began, "lost"), else_="cancelled"), reason="orphaned",
            lost=slots.c.lost + sa.case((began, 1), else_=0), finished=now,
        )
    )  # fmt: skip


def settle_stranger(connection: sa.Connection, dialect: Dialect, change: Change) -> None:
    """The queue was restored alone: the ledger has nothing of this claim, or what has begun since. Both must end."""
    row, record, now = change.held.row, change.transition.record, change.held.now
    if record is not None and record.final:
        statement = dialect.insert(dialect.tables.slots).values(
            task_name=row.task_name, task_instance=ledger_instance(row), slot=row.slot, outcome=record.outcome,
            reason=record.reason, error=record.error, attempts=record.attempts, lost=record.lost,
            origin=row.origin or "schedule", token=row.version, worker=row.picked_by, finished=now,
        )  # fmt: skip
        connection.execute(statement.on_conflict_do_nothing())
    end_orphans(connection, dialect, row.task_name, ledger_instance(row), now)
