"""What the tables say about one slot of a job, or about one one-time task. Only reads, each in one
transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

import sqlalchemy as sa

from slotwise.jobs.definition import Definition
from slotwise.model.records import EARLIEST, FOREVER, RECURRING, TICK, Key, Row
from slotwise.model.vocabulary import RowState
from slotwise.schedules import Schedule
from slotwise.schedules.description import zone_of
from slotwise.schedules.text import readable
from slotwise.store.operations.job_operations import Paused, all_paused
from slotwise.store.operations.pauses import Pause, pause_over
from slotwise.store.operations.transaction import AuditEntry, audit_entry
from slotwise.store.planning.revision import Declared
from slotwise.store.reading.finish import FinishForecast, finish_forecasts
from slotwise.store.reading.histories import Absence, DeployInfo, absence, deploys
from slotwise.store.reading.jobs import paused_by
from slotwise.store.reading.queries import ReadTransaction, reading
from slotwise.store.reading.routing import UNDER_A_JOB, obstacle
from slotwise.store.reading.slots import (
    AttemptInfo,
    SlotInfo,
    attempts_of,
    entry_of,
    gap_info,
)
from slotwise.store.reading.workers import WorkerInfo, workers_in
from slotwise.store.schema.rows import row_of, utc
from slotwise.store.slots.retention import pruned_until
from slotwise.store.slots.store import Store

#: Changes of a schedule that are read, the newest ones.
MOST_DEPLOYS = 100


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
    #: Changes of the job's schedule, the newest first.
    deploys: Sequence[DeployInfo] = ()
    #: The time around the slot without a worker.
    absence: Absence | None = None
    #: Whether the slot, which is due, will end in time.
    finish: FinishForecast | None = None
    #: What the job declares, if this process knows it.
    definition: Definition | None = None
    #: The pause of its name, of its instance, or of all, as far as one is kept by name.
    pause: Pause | None = None

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
                self.beside is not None
                or (began is not None and began >= operation.at)
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
    definition: Definition | None = None
    #: The pause of its name, of its instance, or of all, as far as one is kept by name.
    pause: Pause | None = None


def plan_row(store: Store, job: str) -> tuple[datetime, Row | None]:
    """Return the time, and the job's own row; None without one."""
    with _reading(store, job) as reader:
        return reader.now, reader.row(store.tables.tasks.c.task_instance == RECURRING)


def slot_state(store: Store, job: str, slot: datetime) -> Facts:
    """Return what rows and ledger say about a slot now, without the rest."""
    with _reading(store, job) as reader:
        return reader.state(slot)


def facts(store: Store, job: str, slot: datetime, instance: str = RECURRING) -> Facts:
    changes = deploys(
        store, EARLIEST, FOREVER, job=job, id=instance, limit=MOST_DEPLOYS
    )
    absent = absence(store, job, slot)
    finish = _finish_of(store, job, slot, instance)
    with _reading(store, job, instance) as reader:
        state = reader.state(slot)
        started = "s.started IS NOT NULL AND s.slot"
        return replace(
            state,
            attempts=reader.attempts(slot, state.entry),
            before=reader.entry(f"{started} < :slot ORDER BY s.slot DESC", slot),
            after=reader.entry(f"{started} > :slot ORDER BY s.slot", slot),
            operations=reader.operations(),
            pruned_until=pruned_until(reader.at.connection, store, job),
            load=reader.load(),
            deploys=changes,
            absence=absent,
            finish=finish,
        )


def _finish_of(
    store: Store, job: str, slot: datetime, instance: str
) -> FinishForecast | None:
    for one in finish_forecasts(store, [job]):
        if (one.id, one.slot) == (instance, slot):
            return one
    return None


def task_facts(store: Store, task: str, id: str) -> TaskFacts:
    tasks = store.tables.tasks
    with _reading(store, task, id) as reader:
        row = reader.row(tasks.c.task_instance == id)
        end = reader.entry("s.finished IS NOT NULL ORDER BY s.finished DESC")
        return TaskFacts(
            key=Key(task, id),
            now=reader.now,
            row=row,
            attempts=reader.attempts(row.slot if row else None, None if row else end),
            error=reader.read(_ERROR)[0]["error"],
            end=end,
            all_paused=reader.all_paused(),
            pause=reader.pause(),
            load=reader.load(),
            obstacle=reader.obstacle_of_task(),
            definition=store.definitions.get(task),
        )


_ERROR = """
SELECT {f}max(last_error) AS error FROM {tasks}
WHERE task_name = :name AND task_instance = :id"""
#: Ranges may overlap where a queue was restored: the newest counts. Of those that begin before the
#: slot, the nearest hundred are searched: a slot in none would be sought in all of them.
_GAP = """
SELECT * FROM (SELECT * FROM {gaps}
               WHERE task_name = :name AND task_instance = :id AND first_slot <= :slot
               ORDER BY first_slot DESC LIMIT 100) AS near
WHERE last_slot >= :slot ORDER BY first_slot DESC LIMIT 1"""
_DECLARED = "SELECT plan FROM {tasks} WHERE task_name = :name AND task_instance = :id"
_HELD = """
SELECT (SELECT {f}count(*) FROM {tasks} WHERE task_name = :name AND picked) AS running,
       (SELECT {f}count(*) FROM {tasks} WHERE task_name = :name AND plan_instance = :id
        AND origin IN ('schedule', 'catch_up')) AS places"""
_OPERATIONS = """
SELECT * FROM {controls} WHERE task_name = :name OR task_name IS NULL
ORDER BY id DESC LIMIT 500"""
_STARTS = "SELECT at, count FROM {starts} WHERE task_name = :name ORDER BY at"


@contextmanager
def _reading(store: Store, name: str, instance: str = RECURRING) -> Iterator[_Reader]:
    with reading(store) as at:
        yield _Reader(at, at.now(), name, instance)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads what concerns one instance of a task."""

    at: ReadTransaction
    now: datetime
    name: str
    instance: str

    def read(self, text: str, slot: datetime | None = None) -> Sequence[sa.RowMapping]:
        given = {"name": self.name, "id": self.instance, "slot": slot}
        return self.at.read(text, given)

    def entry(self, condition: str, slot: datetime | None = None) -> SlotInfo | None:
        given = {"name": self.name, "id": self.instance, "slot": slot}
        return entry_of(self.at, f"s.task_instance = :id AND {condition}", given)

    def attempts(
        self, slot: datetime | None, last: SlotInfo | None
    ) -> list[AttemptInfo]:
        return attempts_of(self.at, Key(self.name, self.instance), slot, last)

    def row(self, *conditions: sa.ColumnElement[bool]) -> Row | None:
        columns = self.at.store.dialect.row_columns
        of_name = self.at.tables.tasks.c.task_name == self.name
        row = sa.select(*columns).where(of_name, *conditions)
        found = self.at.connection.execute(row).first()
        return None if found is None else row_of(found)

    def state(self, slot: datetime) -> Facts:
        """Return what rows and ledger have of a slot.

        Race: a worker may settle or pass the slot between these statements. It writes the rows and
        the ledger in one transaction, so the rows are read first: if they have passed the slot,
        the ledger read after them has its end.
        """
        tasks = self.at.tables.tasks.c
        plan = self.row(tasks.task_instance == self.instance)
        beside = self.row(tasks.plan_instance == self.instance, tasks.slot == slot)
        return Facts(
            job=self.name,
            slot=slot,
            now=self.now,
            plan=plan,
            beside=beside,
            entry=self.entry("s.slot = :slot", slot),
            gap=self.gap(slot),
            runs_on=self.runs_on(),
            all_paused=self.all_paused(),
            pause=self.pause(),
            workers=self.workers(),
            definition=self.at.store.definitions.get(self.name),
        )

    def gap(self, slot: datetime) -> SlotInfo | None:
        return next(map(gap_info, self.read(_GAP, slot)), None)

    def runs_on(self) -> Sequence[str]:
        plan = next((row["plan"] for row in self.read(_DECLARED)), None)
        return Declared.readable(plan).runs_on

    def all_paused(self) -> Paused | None:
        return all_paused(self.at.connection, self.at.tables)

    def pause(self) -> Pause | None:
        return pause_over(
            self.at.connection, self.at.tables, self.now, self.name, self.instance
        )

    def operations(self) -> list[AuditEntry]:
        operations = map(audit_entry, self.read(_OPERATIONS))
        return [
            operation
            for operation in operations
            if operation.is_about_all or operation.id == self.instance
        ]

    def workers(self) -> list[WorkerInfo]:
        return workers_in(self.at, self.now)

    def obstacle_of_task(self) -> str | None:
        """Return why no live worker takes a one-time task of this name."""
        plan = self.row(self.at.tables.tasks.c.task_instance == RECURRING)
        if plan is not None and plan.is_plan:
            return UNDER_A_JOB
        return obstacle(self.name, (), self.workers())

    def load(self) -> Load:
        (held,) = self.read(_HELD)
        return Load(
            running=held["running"],
            places=held["places"],
            starts=[(utc(row["at"]), row["count"]) for row in self.read(_STARTS)],
            recovery_rate=self.at.store.database.settings.recovery_rate,
        )
