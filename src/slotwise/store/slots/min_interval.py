"""How near to each other two starts of a job come whose slots run in rows of their own: its ``min_interval``.

The plan row says when the newest of them came. Only jobs that ask for both are looked at; for any other the row's own
due time is enough, since one row has one start at a time.

Races. The instant is read, and written, under the lock of the plan row, within the claim's transaction: a first start
has that lock, for it claims the plan row; an attempt in a row of its own takes it. Claims never wait: who does not get
it comes up again in a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa

from slotwise.decide import PLACE_PAUSE
from slotwise.jobs.definition import Definition
from slotwise.model.records import Row
from slotwise.model.vocabulary import PLANNED
from slotwise.store.dialects.dialect import Dialect
from slotwise.store.schema.column_types import from_micros
from slotwise.store.schema.rows import ledger_instance, utc


class MinInterval:
    """Of each job that keeps one: ``min_interval``."""

    def __init__(self, dialect: Dialect, definitions: Mapping[str, Definition]) -> None:
        self._tasks = dialect.tables.tasks
        self._least = {
            name: found.min_interval
            for name, found in definitions.items()
            if found.min_interval is not None and found.overlap.detaches
        }

    def is_kept_by(self, row: Row) -> bool:
        """Whether it is an attempt in a row of its own that keeps one: not by an order, and not called off."""
        return row.task_name in self._least and row.origin in PLANNED and row.is_detached and not row.cancel_requested

    def defer(self, connection: sa.Connection, row: Row, now: datetime) -> datetime | None:
        """When this claimed row, which is about to start, comes up again; None: it is far enough from any other."""
        if not (self.is_kept_by(row) or (row.is_plan and row.task_name in self._least)):
            return None
        last = sa.select(self._tasks.c.last_start).where(*self._plan_of(row))
        found = connection.execute(last.with_for_update(skip_locked=True)).first()
        if found is None:  # locked; or deleted, and what has begun goes on by itself
            return now + PLACE_PAUSE if connection.execute(last).first() is not None else None
        newest = utc(found[0])
        if newest is None or (row.attempt == 1 and row.first_version and newest == from_micros(row.first_version)):
            return None  # nobody has started since it was handed back before it began
        due = newest + self._least[row.task_name]
        return due if due > now else None

    def note(self, connection: sa.Connection, row: Row, now: datetime) -> None:
        """It starts now."""
        if row.task_name in self._least and row.origin in (*PLANNED, None):
            connection.execute(self._tasks.update().where(*self._plan_of(row)).values(last_start=now))

    def _plan_of(self, row: Row) -> list[sa.ColumnElement[bool]]:
        return [self._tasks.c.task_name == row.task_name, self._tasks.c.task_instance == ledger_instance(row)]
