"""What the ledger and the gaps know as decided, whatever a row itself says; and whether a slot may start."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from slotwise.model.records import RECURRING
from slotwise.model.vocabulary import PLANNED, Outcome
from slotwise.store.dialects.row_by_row import RowByRow
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import Tables

#: Of so many slots one may have been started again after newer ones.
_NEWEST = 100

#: Whether a slot that the ledger has already, in a row ``s``, may start: in each of PostgreSQL's statements that enter
#: one. It has not ended, does not run, and was never started if its job starts each slot once (``strict``).
MAY_START = """\
s.finished IS NULL AND s.outcome <> 'running'
      AND (s.attempts = 0 OR NOT excluded.task_name = ANY (%(strict)s::text[]))"""


def may_start(slots: sa.Table, *, strict: bool) -> sa.ColumnElement[bool]:
    """As MAY_START, for a slot that is entered by itself."""
    was_never_started = sa.literal(not strict) | (slots.c.attempts == 0)
    return slots.c.finished.is_(None) & (slots.c.outcome != Outcome.RUNNING) & was_never_started


def newest_decided(
    connection: sa.Connection, dialect: RowByRow, name: str, instance: str, *, strict: bool
) -> datetime | None:
    """The newest slot that the ledger or a gap knows as started or decided; detached runs do not count."""
    plan = {"name": name, "instance": instance}
    found: Any = connection.execute(_newest(dialect.tables, strict=strict), plan).one()
    return _newest_of(found[0], found[1])


def _newest_of(in_ledger: datetime | None, in_gaps: datetime | None) -> datetime | None:
    return max((found for found in (in_ledger, in_gaps) if found), default=None)


@lru_cache(maxsize=16)
def _newest(tables: Tables, *, strict: bool) -> sa.Select[tuple[datetime | None, datetime | None]]:
    """Made once: each late slot asks."""
    slots, gaps, name, instance = (
        tables.slots,
        tables.gaps,
        sa.bindparam("name", type_=sa.Text),
        sa.bindparam("instance", type_=sa.Text),
    )
    decided: sa.ColumnElement[bool] = slots.c.finished.is_not(None)
    if strict:
        decided = decided | (slots.c.outcome != Outcome.CLAIMED)
    in_ledger = (
        sa.select(slots.c.slot)
        .where(slots.c.task_name == name, slots.c.task_instance == instance)
        .where(slots.c.origin.in_(PLANNED), decided)
        .order_by(slots.c.slot.desc())
        .limit(1)
    )
    in_gaps = (
        sa.select(gaps.c.last_slot)
        .where(gaps.c.task_name == name, gaps.c.task_instance == instance)
        .order_by(gaps.c.first_slot.desc())
        .limit(1)
    )
    return sa.select(in_ledger.scalar_subquery(), in_gaps.scalar_subquery())


def last_start(connection: sa.Connection, dialect: RowByRow, name: str) -> datetime | None:
    """When one of the newest slots of a job's schedule was last started, as far as the ledger knows."""
    slots = dialect.tables.slots
    newest = (
        sa.select(slots.c.started)
        .where(slots.c.task_name == name, slots.c.task_instance == RECURRING)
        .where(slots.c.origin.in_(PLANNED), slots.c.started.is_not(None))
        .order_by(slots.c.slot.desc())
        .limit(_NEWEST)
        .subquery()
    )
    found = connection.scalar(sa.select(sa.func.max(newest.c.started, type_=newest.c.started.type)))
    return None if found is None else utc(found)
