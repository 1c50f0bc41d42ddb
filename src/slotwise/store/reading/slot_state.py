"""The state of one slot of a job, as a process that wants to run it needs to know it. Only reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from slotwise.model.records import RECURRING, Row
from slotwise.model.vocabulary import State
from slotwise.schedules import Disabled, Schedule, parse_schedule
from slotwise.store.operations.job_operations import all_paused
from slotwise.store.planning.revision import Declared
from slotwise.store.reading.views import SlotInfo, gap_info, obstacle, paused_by, slot_info
from slotwise.store.schema.rows import row_of
from slotwise.store.schema.worker_rows import worker_info
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """``plan`` is the job's own row, ``beside`` a row of this very slot; ``entry`` and ``gap`` are the ledger's.

    ``paused`` says who paused the job, or all; ``has_worker``: a live worker can run the job.
    """

    slot: datetime
    now: datetime
    plan: Row | None
    beside: Row | None
    entry: SlotInfo | None
    gap: SlotInfo | None
    paused: str | None
    has_worker: bool

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


def plan_row(store: Store, job: str) -> tuple[datetime, Row | None]:
    """Return the time, and the job's own row; None without one."""
    with store.transaction() as connection:
        return store.dialect.now(connection), _row(store, connection, job, _own(store))


def schedule_of(row: Row | None) -> Schedule:
    """Return the schedule that decides: the row's text. Raise InvalidSchedule if this release cannot read it."""
    return Disabled() if row is None or row.schedule is None else parse_schedule(row.schedule)


def slot_state(store: Store, job: str, slot: datetime) -> SlotState:
    """Return the state of a slot.

    Race: a worker may settle or pass the slot between these statements. It writes the rows and the ledger in one
    transaction, so the rows are read first: if they have passed the slot, the ledger read after them has its end.
    """
    tasks, slots, gaps, workers = store.tables.tasks, store.tables.slots, store.tables.gaps, store.tables.workers
    with store.transaction() as connection:
        now = store.dialect.now(connection)
        plan = _row(store, connection, job, _own(store))
        beside = _row(store, connection, job, (tasks.c.plan_instance == RECURRING) & (tasks.c.slot == slot))
        entry = _first(connection, _of(slots, job).where(slots.c.slot == slot))
        begun = _of(gaps, job).where(gaps.c.first_slot <= slot).order_by(gaps.c.first_slot.desc()).limit(100).subquery()
        gap = _first(connection, sa.select(begun).where(begun.c.last_slot >= slot).limit(1))
        every = all_paused(connection, store.tables)
        declared = connection.scalar(sa.select(tasks.c.plan).where(tasks.c.task_name == job, _own(store)))
        rows = connection.execute(sa.select(workers, sa.literal(0).label("running"))).mappings()
        stuck = obstacle(job, Declared.load(declared).runs_on, [worker_info(row, now) for row in rows])
    paused = "the job is paused" if plan is not None and plan.state == State.PAUSED and not plan.picked else None
    if every is not None:
        paused = f"all is {paused_by(every.author, every.since, every.note)}"
    return SlotState(
        slot=slot, now=now, plan=plan, beside=beside, entry=None if entry is None else slot_info(entry),
        gap=None if gap is None else gap_info(gap), paused=paused, has_worker=stuck is None,
    )  # fmt: skip


def _own(store: Store) -> sa.ColumnElement[bool]:
    return store.tables.tasks.c.task_instance == RECURRING


def _of(table: sa.Table, job: str) -> sa.Select[tuple[object, ...]]:
    return sa.select(table).where(table.c.task_name == job, table.c.task_instance == RECURRING)


def _first(connection: sa.Connection, statement: sa.Select[tuple[object, ...]]) -> sa.RowMapping | None:
    return connection.execute(statement).mappings().first()


def _row(store: Store, connection: sa.Connection, job: str, which: sa.ColumnElement[bool]) -> Row | None:
    tasks, columns = store.tables.tasks, store.dialect.row_columns
    found = connection.execute(sa.select(*columns).where(tasks.c.task_name == job, which)).first()
    return None if found is None else row_of(found)
