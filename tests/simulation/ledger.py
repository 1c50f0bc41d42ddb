"""What the tables say at one moment, read at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from slotwise.model.records import RECURRING
from slotwise.store.slots.store import Store


@dataclass(frozen=True)
class Ledger:
    """Queue, slots and gaps of one job or of all."""

    rows: list[sa.RowMapping]
    slots: dict[tuple[str, datetime], sa.RowMapping]
    gaps: dict[str, list[sa.RowMapping]]

    @classmethod
    def read(cls, store: Store) -> Ledger:
        tables = store.tables
        with store.transaction() as connection:
            rows = list(connection.execute(sa.select(tables.tasks)).mappings())
            slots = list(connection.execute(sa.select(tables.slots)).mappings())
            gaps = list(connection.execute(sa.select(tables.gaps).order_by(tables.gaps.c.first_slot)).mappings())
        by_job: dict[str, list[Any]] = {}
        for gap in gaps:
            by_job.setdefault(gap["task_name"], []).append(gap)
        return cls(rows, {(slot["task_name"], slot["slot"]): slot for slot in slots}, by_job)

    def gap_at(self, job: str, slot: datetime) -> bool:
        """Whether a slot is in one of the job's ranges."""
        return any(gap["first_slot"] <= slot <= gap["last_slot"] for gap in self.gaps.get(job, []))

    def is_due(self, now: datetime) -> bool:
        """Whether anything is left to be started."""
        return any(not row["picked"] and row["state"] is None and row["execution_time"] <= now for row in self.rows)

    def plan_row(self, job: str) -> sa.RowMapping | None:
        found = [row for row in self.rows if (row["task_name"], row["task_instance"]) == (job, RECURRING)]
        return found[0] if found else None
