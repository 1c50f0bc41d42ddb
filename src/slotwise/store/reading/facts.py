"""What the tables say about one slot of a job, or about one one-time task. Only reads, each in one
transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

import sqlalchemy as sa

from slotwise.model.records import RECURRING, TICK, Key, Row
from slotwise.model.vocabulary import PLANNED, RowState
from slotwise.schedules import Schedule
from slotwise.schedules.description import zone_of
from slotwise.schedules.text import readable
from slotwise.store.operations.job_operations import Paused, all_paused
from slotwise.store.operations.transaction import AuditEntry, audit_entry
from slotwise.store.planning.revision import Declared
from slotwise.store.reading.jobs import paused_by
from slotwise.store.reading.routing import UNDER_A_JOB, obstacle
from slotwise.store.reading.slots import (
    AttemptInfo,
    SlotInfo,
    attempts_of,
    gap_info,
    slot_info,
)
from slotwise.store.reading.worker_registry import WorkerInfo, worker_infos
from slotwise.store.schema.rows import row_of, utc
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
    """A slot: the job's own row (``plan``), a row beside it, and what the ledger has (``entry`` or
    ``gap``).

    ``facts`` also reads the ledger's neighbours and the operations on the job or on all, the
    newest first.
    """

    job: str
    slot: datetime
    now: datetime
    plan: Row | None
    beside: Row | None
    entry: SlotInfo | None
    gap: SlotInfo | None
    all_paused: Paused | None
    runs_on: Collection[str]
    workers: Sequence[WorkerInfo]
    before: SlotInfo | None = None
    after: SlotInfo | None = None
    operations: Sequence[AuditEntry] = ()
    pruned_until: datetime | None = None
    load: Load = field(default_factory=Load)
    attempts: Sequence[AttemptInfo] = ()

    @property
    def row(self) -> Row | None:
        """The row that this slot is in, or waits for; None if the job's row has passed it."""
        if self.beside is not None or self.plan is None or self.plan.slot is None:
            return self.beside
        return self.plan if self.plan.slot <= self.slot else None

    @property
    def is_over(self) -> bool:
        """Whether the ledger has its end."""
        if self.entry is not None:
            return self.entry.finished is not None
        return self.gap is not None and self.beside is None

    @property
    def paused(self) -> str | None:
        """Who paused the job, or all."""
        if (every := self.all_paused) is not None:
            return (
                "everything was "
                f"{paused_by(every, zone_of(self.plan.schedule if self.plan else None))}"
            )
        is_paused = (
            self.plan is not None
            and self.plan.state == RowState.PAUSED
            and not self.plan.picked
        )
        return "the job is paused" if is_paused else None

    @property
    def obstacle(self) -> str | None:
        """Why no live worker can take the job; None if one can."""
        return obstacle(self.job, self.runs_on, self.workers)

    @property
    def schedule(self) -> Schedule | None:
        """The schedule that decides, if this release can read it."""
        return readable(self.plan.schedule) if self.plan else None

    @property
    def is_slot(self) -> bool:
        """Whether the schedule, as it is now, has this slot."""
        schedule = self.schedule
        return (
            schedule is not None
            and not schedule.from_end
            and schedule.next_after(self.slot - TICK) == self.slot
        )

    @property
    def asked(self) -> list[AuditEntry]:
        """The operations on this very slot, the oldest first; a backfill only if the slot was
        missing then.
        """
        began = self.entry.started if self.entry else None

        def fills(operation: AuditEntry) -> bool:
            return operation.covers(self.slot) and (
                self.beside is not None or (began is not None and began >= operation.at)
            )

        return [
            operation
            for operation in reversed(self.operations)
            if operation.slot == self.slot or fills(operation)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """``row`` is the task's row, ``end`` its newest recorded end."""

    key: Key
    now: datetime
    row: Row | None
    error: str | None
    end: SlotInfo | None
    all_paused: Paused | None
    obstacle: str | None
    load: Load
    attempts: Sequence[AttemptInfo] = ()


def plan_row(store: Store, job: str) -> tuple[datetime, Row | None]:
    """Return the time, and the job's own row; None without one."""
    with _looking(store, job) as look:
        return look.now, look.row(store.tables.tasks.c.task_instance == RECURRING)


def slot_state(store: Store, job: str, slot: datetime) -> Facts:
    """Return what rows and ledger say about a slot now, without the rest."""
    with _looking(store, job) as look:
        return look.state(slot)


def facts(store: Store, job: str, slot: datetime, instance: str = RECURRING) -> Facts:
    slots = store.tables.slots
    with _looking(store, job, instance) as look:
        started = look.of(slots).where(slots.c.started.is_not(None))
        state = look.state(slot)
        return replace(
            state,
            attempts=look.attempts(slot, state.entry),
            before=look.slot(
                started.where(slots.c.slot < slot).order_by(slots.c.slot.desc())
            ),
            after=look.slot(
                started.where(slots.c.slot > slot).order_by(slots.c.slot.asc())
            ),
            operations=look.operations(),
            pruned_until=pruned_until(look.connection, store),
            load=look.load(),
        )


def task_facts(store: Store, task: str, id: str) -> TaskFacts:
    tasks = store.tables.tasks
    slots = store.tables.slots
    with _looking(store, task, id) as look:
        found = look.first(look.of(tasks))
        row = look.row(tasks.c.task_instance == id)
        plan = look.row(tasks.c.task_instance == RECURRING)
        end = look.slot(
            look.of(slots)
            .where(slots.c.finished.is_not(None))
            .order_by(slots.c.finished.desc())
        )
        attempts = (
            look.attempts(None, end) if row is None else look.attempts(row.slot, None)
        )
        return TaskFacts(
            key=Key(task, id),
            now=look.now,
            row=row,
            attempts=attempts,
            error=None if found is None else found["last_error"],
            end=end,
            all_paused=all_paused(look.connection, store.tables),
            load=look.load(),
            obstacle=UNDER_A_JOB
            if plan is not None and plan.is_plan
            else obstacle(task, (), look.workers()),
        )


@contextmanager
def _looking(store: Store, name: str, instance: str = RECURRING) -> Iterator[_Look]:
    with store.transaction() as connection:
        yield _Look(store, connection, store.dialect.now(connection), name, instance)


@dataclass(frozen=True, slots=True)
class _Look:
    """Reads what concerns one instance of a task."""

    store: Store
    connection: sa.Connection
    now: datetime
    name: str
    instance: str

    def of(self, table: sa.Table) -> sa.Select[tuple[object, ...]]:
        return sa.select(table).where(
            table.c.task_name == self.name, table.c.task_instance == self.instance
        )

    def first(self, statement: sa.Select[tuple[object, ...]]) -> sa.RowMapping | None:
        return self.connection.execute(statement.limit(1)).mappings().first()

    def slot(self, statement: sa.Select[tuple[object, ...]]) -> SlotInfo | None:
        found = self.first(statement)
        return None if found is None else slot_info(found)

    def attempts(self, slot: datetime | None, last: SlotInfo | None) -> list[AttemptInfo]:
        return attempts_of(
            self.connection, self.store.tables, Key(self.name, self.instance), slot, last
        )

    def row(self, *conditions: sa.ColumnElement[bool]) -> Row | None:
        tasks = self.store.tables.tasks
        columns = self.store.dialect.row_columns
        found = self.connection.execute(
            sa.select(*columns).where(tasks.c.task_name == self.name, *conditions)
        ).first()
        return None if found is None else row_of(found)

    def state(self, slot: datetime) -> Facts:
        """Return what rows and ledger have of a slot.

        Race: a worker may settle or pass the slot between these statements. It writes the rows and
        the ledger in one transaction, so the rows are read first: if they have passed the slot,
        the ledger read after them has its end.
        """
        tasks = self.store.tables.tasks
        slots = self.store.tables.slots
        gaps = self.store.tables.gaps
        plan = self.row(tasks.c.task_instance == self.instance)
        beside = self.row(tasks.c.plan_instance == self.instance, tasks.c.slot == slot)
        entry = self.slot(self.of(slots).where(slots.c.slot == slot))
        # Ranges may overlap where a queue was restored: the newest counts. Of those that begin
        # before the slot, the nearest hundred are searched: a slot in none would be sought in all
        # of them.
        begun = self.of(gaps).where(gaps.c.first_slot <= slot)
        near = begun.order_by(gaps.c.first_slot.desc()).limit(100).subquery()
        gap = self.first(
            sa.select(near)
            .where(near.c.last_slot >= slot)
            .order_by(near.c.first_slot.desc())
        )
        declared = self.connection.scalar(self.of(tasks).with_only_columns(tasks.c.plan))
        return Facts(
            job=self.name,
            slot=slot,
            now=self.now,
            plan=plan,
            beside=beside,
            entry=entry,
            gap=None if gap is None else gap_info(gap),
            runs_on=Declared.readable(declared).runs_on,
            all_paused=all_paused(self.connection, self.store.tables),
            workers=self.workers(),
        )

    def operations(self) -> list[AuditEntry]:
        controls = self.store.tables.controls
        about = (controls.c.task_name == self.name) | controls.c.task_name.is_(None)
        found = self.connection.execute(
            sa.select(controls).where(about).order_by(controls.c.id.desc()).limit(500)
        )
        operations = [audit_entry(row) for row in found.mappings()]
        return [
            operation
            for operation in operations
            if operation.is_about_all or operation.id == self.instance
        ]

    def workers(self) -> list[WorkerInfo]:
        workers = self.store.tables.workers
        return worker_infos(
            self.connection,
            sa.select(workers, sa.literal(0).label("running")),
            workers,
            self.now,
        )

    def load(self) -> Load:
        tasks = self.store.tables.tasks
        starts = self.store.tables.starts
        count = (
            sa.select(sa.func.count())
            .select_from(tasks)
            .where(tasks.c.task_name == self.name)
        )
        beside = [tasks.c.plan_instance == self.instance, tasks.c.origin.in_(PLANNED)]
        counted = (
            sa.select(starts.c.at, starts.c.count)
            .where(starts.c.task_name == self.name)
            .order_by(starts.c.at)
        )
        return Load(
            running=self.connection.scalar(count.where(tasks.c.picked)) or 0,
            places=self.connection.scalar(count.where(*beside)) or 0,
            starts=[(utc(at), number) for at, number in self.connection.execute(counted)],
            recovery_rate=self.store.database.settings.recovery_rate,
        )
