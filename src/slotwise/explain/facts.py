"""All that the tables say about one slot: ledger, gaps, rows, orders, workers. Only reads, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from slotwise.errors import InvalidSchedule
from slotwise.model.records import RECURRING, TICK, Row
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.operations.job_operations import Paused, all_paused
from slotwise.store.reading.views import SlotInfo, gap_info, obstacle, slot_info
from slotwise.store.schema.audit_rows import AuditEntry, audit_entry
from slotwise.store.schema.rows import row_of
from slotwise.store.schema.tables import runs_on
from slotwise.store.schema.worker_rows import WorkerInfo, tags_of, worker_info
from slotwise.store.slots.retention import pruned_until
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``plan`` is the job's own row, ``row`` one of this very slot beside it; ``before`` and ``after`` the ledger's
    neighbours; ``orders`` those that concern the job, or all, the newest first."""

    job: str
    slot: datetime
    now: datetime
    entry: SlotInfo | None
    gap: SlotInfo | None
    plan: Row | None
    row: Row | None
    runs_on: str | None
    before: SlotInfo | None
    after: SlotInfo | None
    orders: Sequence[AuditEntry]
    paused: Paused | None
    pruned_until: datetime | None
    workers: Sequence[WorkerInfo]

    @property
    def schedule(self) -> Schedule | None:
        """The schedule that decides, if this release can read it."""
        try:
            return parse_schedule(self.plan.schedule) if self.plan and self.plan.schedule else None
        except InvalidSchedule:
            return None

    @property
    def is_slot(self) -> bool:
        """Whether the schedule, as it is now, has this slot."""
        schedule = self.schedule
        return schedule is not None and not schedule.from_end and schedule.next_after(self.slot - TICK) == self.slot

    @property
    def asked(self) -> list[AuditEntry]:
        """The orders about this very slot, the oldest first; a backfill if the slot was among those that it found
        missing: it waits, or has started since.
        """
        began = self.entry.started if self.entry else None

        def fills(order: AuditEntry) -> bool:
            return order.covers(self.slot) and (self.row is not None or (began is not None and began >= order.at))

        return [order for order in reversed(self.orders) if order.slot == self.slot or fills(order)]

    @property
    def obstacle(self) -> str | None:
        """Why no live worker can take the job; None: one can."""
        return obstacle(self.job, tags_of(self.runs_on), self.workers)


def facts(store: Store, job: str, slot: datetime, instance: str = RECURRING) -> Facts:
    """What the tables say about this slot."""
    with store.transaction() as connection:
        look = _Look(store, connection, job, slot, instance)
        return Facts(
            job=job, slot=slot, now=store.dialect.now(connection), entry=look.entry(), gap=look.gap(),
            plan=look.row(look.tasks.c.task_instance == instance),
            row=look.row(look.tasks.c.plan_instance == instance, look.tasks.c.slot == slot), runs_on=look.runs_on(),
            before=look.neighbour(later=False), after=look.neighbour(later=True), orders=look.orders(),
            paused=all_paused(connection, store.tables), pruned_until=pruned_until(connection, store),
            workers=look.workers(),
        )  # fmt: skip


class _Look:
    def __init__(self, store: Store, connection: sa.Connection, job: str, slot: datetime, instance: str) -> None:
        self._store, self._connection = store, connection
        self._job, self._slot, self._instance = job, slot, instance
        self.tasks = store.tables.tasks

    def entry(self) -> SlotInfo | None:
        slots = self._store.tables.slots
        found = self._first(sa.select(slots).where(*self._of(slots), slots.c.slot == self._slot))
        return None if found is None else slot_info(found)

    def gap(self) -> SlotInfo | None:
        """The newest range that has this slot; ranges may overlap, where a queue was restored.

        Of those that begin before it, the nearest hundred: a slot in none would be sought in all of them.
        """
        gaps = self._store.tables.gaps
        begun = sa.select(gaps).where(*self._of(gaps), gaps.c.first_slot <= self._slot)
        near = begun.order_by(gaps.c.first_slot.desc()).limit(100).subquery()
        found = self._first(sa.select(near).where(near.c.last_slot >= self._slot).order_by(near.c.first_slot.desc()))
        return None if found is None else gap_info(found)

    def neighbour(self, *, later: bool) -> SlotInfo | None:
        slots = self._store.tables.slots
        beyond = slots.c.slot > self._slot if later else slots.c.slot < self._slot
        order = slots.c.slot.asc() if later else slots.c.slot.desc()
        started = sa.select(slots).where(*self._of(slots), beyond, slots.c.started.is_not(None)).order_by(order)
        found = self._first(started)
        return None if found is None else slot_info(found)

    def row(self, *conditions: sa.ColumnElement[bool]) -> Row | None:
        columns = self._store.dialect.row_columns
        found = self._connection.execute(
            sa.select(*columns).where(self.tasks.c.task_name == self._job, *conditions)
        ).first()
        return None if found is None else row_of(found)

    def runs_on(self) -> str | None:
        return self._connection.scalar(
            sa.select(runs_on(self.tasks)).where(
                self.tasks.c.task_name == self._job, self.tasks.c.task_instance == self._instance
            )
        )

    def orders(self) -> list[AuditEntry]:
        controls = self._store.tables.controls
        about = (controls.c.task_name == self._job) | controls.c.task_name.is_(None)
        found = self._connection.execute(sa.select(controls).where(about).order_by(controls.c.id.desc()).limit(500))
        orders = [audit_entry(row) for row in found.mappings()]
        return [order for order in orders if order.is_about_all or order.id == self._instance]

    def workers(self) -> list[WorkerInfo]:
        workers, now = self._store.tables.workers, self._store.dialect.now(self._connection)
        rows = self._connection.execute(sa.select(workers, sa.literal(0).label("running"))).mappings()
        return [worker_info(row, now) for row in rows]

    def _of(self, table: sa.Table) -> list[sa.ColumnElement[bool]]:
        return [table.c.task_name == self._job, table.c.task_instance == self._instance]

    def _first(self, statement: sa.Select[Any]) -> sa.RowMapping | None:
        return self._connection.execute(statement.limit(1)).mappings().first()
