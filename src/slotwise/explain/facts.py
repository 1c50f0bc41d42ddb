"""What the tables say about one slot, or about one one-time task. Only reads, each in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa

from slotwise.model.records import RECURRING, TICK, Key, Row
from slotwise.model.vocabulary import PLANNED
from slotwise.schedules import Schedule
from slotwise.schedules.text import readable
from slotwise.store.operations.audit import AuditEntry, audit_entry
from slotwise.store.operations.job_operations import Paused, all_paused
from slotwise.store.planning.revision import Declared
from slotwise.store.reading.views import SlotInfo, gap_info, obstacle, slot_info
from slotwise.store.schema.rows import row_of, utc
from slotwise.store.schema.worker_rows import WorkerInfo, worker_infos
from slotwise.store.slots.retention import pruned_until
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What may keep a due start of a task waiting, in the whole cluster."""

    #: Rows of the task that are held.
    running: int = 0
    #: Rows of the plan's slots that run side by side, or wait for a retry.
    places: int = 0
    #: The starts that a ``rate_limit`` counts, each with its instant.
    starts: Sequence[tuple[datetime, int]] = ()
    #: The setting ``recovery_rate`` of this process.
    recovery_rate: int | None = None


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
    runs_on: Collection[str]
    before: SlotInfo | None
    after: SlotInfo | None
    orders: Sequence[AuditEntry]
    paused: Paused | None
    pruned_until: datetime | None
    workers: Sequence[WorkerInfo]
    load: Load = field(default_factory=Load)

    @property
    def schedule(self) -> Schedule | None:
        """The schedule that decides, if this release can read it."""
        return readable(self.plan.schedule) if self.plan else None

    @property
    def is_slot(self) -> bool:
        """Whether the schedule, as it is now, has this slot."""
        schedule = self.schedule
        return schedule is not None and not schedule.from_end and schedule.next_after(self.slot - TICK) == self.slot

    @property
    def asked(self) -> list[AuditEntry]:
        """The operations on this very slot, the oldest first.

        A backfill is one if the slot was missing then: the slot waits, or has started since.
        """
        began = self.entry.started if self.entry else None

        def fills(order: AuditEntry) -> bool:
            return order.covers(self.slot) and (self.row is not None or (began is not None and began >= order.at))

        return [order for order in reversed(self.orders) if order.slot == self.slot or fills(order)]

    @property
    def obstacle(self) -> str | None:
        """Why no live worker can take the job; None if one can."""
        return obstacle(self.job, self.runs_on, self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """``row`` is the task's row, ``end`` its newest recorded end."""

    key: Key
    now: datetime
    row: Row | None
    error: str | None
    end: SlotInfo | None
    paused: Paused | None
    obstacle: str | None
    load: Load


def facts(store: Store, job: str, slot: datetime, instance: str = RECURRING) -> Facts:
    """Return what the tables say about this slot."""
    tasks, slots, gaps = store.tables.tasks, store.tables.slots, store.tables.gaps
    with store.transaction() as connection:
        look, now = _Look(store, connection, job, instance), store.dialect.now(connection)
        # Ranges may overlap where a queue was restored: the newest counts. Of those that begin before the slot, the
        # nearest hundred are searched: a slot in none would be sought in all of them.
        begun = look.of(gaps).where(gaps.c.first_slot <= slot)
        near = begun.order_by(gaps.c.first_slot.desc()).limit(100).subquery()
        gap = look.first(sa.select(near).where(near.c.last_slot >= slot).order_by(near.c.first_slot.desc()))
        started = look.of(slots).where(slots.c.started.is_not(None))
        plan = look.first(look.of(tasks))
        return Facts(
            job=job, slot=slot, now=now, entry=look.slot(look.of(slots).where(slots.c.slot == slot)),
            gap=None if gap is None else gap_info(gap), plan=look.row(tasks.c.task_instance == instance),
            row=look.row(tasks.c.plan_instance == instance, tasks.c.slot == slot),
            runs_on=() if plan is None else Declared.readable(plan["plan"]).runs_on,
            before=look.slot(started.where(slots.c.slot < slot).order_by(slots.c.slot.desc())),
            after=look.slot(started.where(slots.c.slot > slot).order_by(slots.c.slot.asc())),
            orders=look.orders(), paused=all_paused(connection, store.tables),
            pruned_until=pruned_until(connection, store), workers=look.workers(now), load=look.load(),
        )  # fmt: skip


def task_facts(store: Store, task: str, id: str) -> TaskFacts:
    """Return what the tables say about a one-time task."""
    tasks, slots = store.tables.tasks, store.tables.slots
    with store.transaction() as connection:
        look, now = _Look(store, connection, task, id), store.dialect.now(connection)
        row = look.row(tasks.c.task_instance == id)
        found = look.first(look.of(tasks))
        return TaskFacts(
            key=Key(task, id), now=now, row=row, error=None if found is None else found["last_error"],
            end=look.slot(look.of(slots).where(slots.c.finished.is_not(None)).order_by(slots.c.finished.desc())),
            paused=all_paused(connection, store.tables), obstacle=obstacle(task, (), look.workers(now)),
            load=look.load(),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Look:
    """Reads what concerns one instance of a task."""

    store: Store
    connection: sa.Connection
    name: str
    instance: str

    def of(self, table: sa.Table) -> sa.Select[tuple[object, ...]]:
        return sa.select(table).where(table.c.task_name == self.name, table.c.task_instance == self.instance)

    def first(self, statement: sa.Select[tuple[object, ...]]) -> sa.RowMapping | None:
        return self.connection.execute(statement.limit(1)).mappings().first()

    def slot(self, statement: sa.Select[tuple[object, ...]]) -> SlotInfo | None:
        found = self.first(statement)
        return None if found is None else slot_info(found)

    def row(self, *conditions: sa.ColumnElement[bool]) -> Row | None:
        tasks, columns = self.store.tables.tasks, self.store.dialect.row_columns
        found = self.connection.execute(sa.select(*columns).where(tasks.c.task_name == self.name, *conditions)).first()
        return None if found is None else row_of(found)

    def orders(self) -> list[AuditEntry]:
        controls = self.store.tables.controls
        about = (controls.c.task_name == self.name) | controls.c.task_name.is_(None)
        found = self.connection.execute(sa.select(controls).where(about).order_by(controls.c.id.desc()).limit(500))
        orders = [audit_entry(row) for row in found.mappings()]
        return [order for order in orders if order.is_about_all or order.id == self.instance]

    def workers(self, now: datetime) -> list[WorkerInfo]:
        workers = self.store.tables.workers
        return worker_infos(self.connection, sa.select(workers, sa.literal(0).label("running")), workers, now)

    def load(self) -> Load:
        tasks, starts = self.store.tables.tasks, self.store.tables.starts
        count = sa.select(sa.func.count()).select_from(tasks).where(tasks.c.task_name == self.name)
        beside = [tasks.c.plan_instance == self.instance, tasks.c.origin.in_(PLANNED)]
        counted = sa.select(starts.c.at, starts.c.count).where(starts.c.task_name == self.name).order_by(starts.c.at)
        return Load(
            running=self.connection.scalar(count.where(tasks.c.picked)) or 0,
            places=self.connection.scalar(count.where(*beside)) or 0,
            starts=[(utc(at), number) for at, number in self.connection.execute(counted)],
            recovery_rate=self.store.database.settings.recovery_rate,
        )
