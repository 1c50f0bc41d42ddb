"""What the ledger and the gaps know as decided of a plan row, whatever the row itself says."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from slotwise.execution import RECURRING
from slotwise.store.dialect import Dialect
from slotwise.store.rows import utc


def newest_decided(
    connection: sa.Connection, dialect: Dialect, name: str, instance: str, *, strict: bool
) -> datetime | None:
    """The newest slot that the ledger or a gap knows as started or decided; detached runs do not count."""
    slots, gaps = dialect.tables.slots, dialect.tables.gaps
    decided: sa.ColumnElement[bool] = slots.c.finished.is_not(None)
    if strict:
        decided = decided | (slots.c.outcome != "claimed")
    in_ledger = connection.scalar(
        sa.select(slots.c.slot)
        .where(slots.c.task_name == name, slots.c.task_instance == instance)
        .where(slots.c.origin.in_(("schedule", "catch_up")), decided)
        .order_by(slots.c.slot.desc())
        .limit(1)
    )
    in_gaps = connection.scalar(
        sa.select(gaps.c.last_slot)
        .where(gaps.c.task_name == name, gaps.c.task_instance == instance)
        .order_by(gaps.c.first_slot.desc())
        .limit(1)
    )
    return max((found for found in (in_ledger, in_gaps) if found), default=None)


def last_start(connection: sa.Connection, dialect: Dialect, name: str) -> datetime | None:
    """When the newest slot of a job's schedule was started, as far as the ledger knows."""
    slots = dialect.tables.slots
    found = connection.scalar(
        sa.select(slots.c.started)
        .where(slots.c.task_name == name, slots.c.task_instance == RECURRING)
        .where(slots.c.origin.in_(("schedule", "catch_up")), slots.c.started.is_not(None))
        .order_by(slots.c.slot.desc())
        .limit(1)
    )
    return None if found is None else utc(found)
