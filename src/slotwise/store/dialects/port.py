"""The port to a database: the statements that differ from database to database, as verbs.

All verbs run in the caller's transaction. The conformance suite holds every dialect to the same
answers. The bodies here are the portable form: each row by itself, by key and version, in plain
SQLAlchemy. They read rows before they write them, and are right where there is one writer at a
time, so that reading is locking, as under SQLite's BEGIN IMMEDIATE. They keep the laws and owe no
speed. A dialect with several writers replaces them.

A place is where a database keeps a row (PostgreSQL's ctid); it is opaque, and None where rows are
written by key.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import sqlalchemy as sa

from slotwise.decide.claim import Start, is_weighed
from slotwise.model.clock import Clock, host_now
from slotwise.model.records import (
    Claim,
    Fence,
    Gap,
    Key,
    LedgerEntry,
    LedgerKey,
    Row,
    Transition,
    to_micros,
)
from slotwise.model.vocabulary import PLANNED, Outcome
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.by_row import ByRow, least, of_key
from slotwise.store.dialects.task_statements import TaskStatements
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import (
    CLAIMED_DATA,
    FLAW,
    HOLD_COLUMNS,
    LAST_ATTEMPT,
    LAST_VERSION,
    LONGEST_LEASE,
    ROW_COLUMNS,
    Change,
    Held,
    decided,
    expect,
    row_of,
)
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, MOST_HELD, Tables, is_plan

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

#: An insert that knows ON CONFLICT.
Upsert: TypeAlias = "postgresql.Insert | sqlite.Insert"
#: Ranks are priorities, negated.
FIRST = -(2**31)
LAST = 2**31 - 1


class Parted(Exception):
    """A row was advanced without its ledger row: the transaction must be rolled back."""


class Range(NamedTuple):
    """Ranks of a task that a claim searches; a single rank from those due at ``since`` on."""

    task_name: str
    first: int = FIRST
    last: int = LAST
    since: datetime | None = None


class Order(NamedTuple):
    """What a claim takes: up to ``limit`` due rows of the tasks ``names``, for ``holder``.

    ``lost``: at most so many rows, also of one-time tasks, whose holder has died before; they go
    first.
    """

    holder: str
    names: Sequence[str]
    limit: int
    lease: timedelta
    lost: int = 1
    #: This row of a task alone, whatever it is.
    instance: str | None = None
    #: What is due was seen to be of one priority, so the oldest go first.
    is_level: bool = False
    #: The jobs with ``give_up``, whose slots are entered as claimed; and those whose new slots are
    #: not entered, as they are to be decided on.
    strict: Collection[str] = ()
    weighed: Collection[str] = ()
    #: Slots later than that are not entered either, nor are catch-ups.
    late: timedelta | None = None
    #: Of one-time tasks: rows before these cursors are left to a claim without.
    ranges: Sequence[Range] | None = None
    #: Slots that are due before this may be left out: see ``Due``.
    since: datetime | None = None


class Dialect(ABC):
    """The verbs of claims, held rows and the ledger."""

    name: ClassVar[str]
    #: Whether ``advance`` is worth a call.
    has_fast_finish: ClassVar[bool] = False

    def __init__(self, tables: Tables, clock: Clock) -> None:
        tasks, self.tables, self.clock, self.by_row = (
            tables.tasks,
            tables,
            clock,
            ByRow(self, tables),
        )
        self.row_columns = [tasks.c[name] for name in ROW_COLUMNS]
        lease = tasks.c.lease  # one that no driver can decode must not stop heartbeats
        is_lease = lease.between(
            sa.literal(timedelta(0), lease.type), sa.literal(LONGEST_LEASE, lease.type)
        )
        held = {"lease": sa.case((is_lease, lease)).label("lease")}
        self.hold_columns = [held.get(name, tasks.c[name]) for name in HOLD_COLUMNS]
        #: The key in the order in which rows are locked, which is the order in which Python sorts.
        self.key_order: tuple[Any, Any] = (tasks.c.task_name, tasks.c.task_instance)

    @abstractmethod
    def insert(self, table: sa.Table, /) -> Upsert:
        """SQLAlchemy's insert that knows ON CONFLICT."""

    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        """Return the commands on one-time tasks; with ``wake`` they notify workers of rows due
        within that time.
        """
        return TaskStatements(self)

    # -- time and transactions --------------------------------------------------------------------

    @abstractmethod
    def now(self, connection: Joinable) -> datetime:
        """Return the database's time, or the test's."""

    def ago(
        self, connection: Joinable, span: timedelta = timedelta(0)
    ) -> sa.ColumnElement[datetime]:
        """Return the time ``span`` ago as a part of a statement."""
        return sa.literal(self.now(connection) - span, Instant)

    def transaction_id(self, connection: sa.Connection) -> str | None:
        """Return the argument of ``committed``; None if a commit is never in doubt."""
        return None

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Return whether that transaction committed; None while it is undecided."""
        raise AssertionError("a commit is never in doubt")

    def hurry(self, connection: sa.Connection, wait: timedelta) -> None:
        """Let the rest of this transaction wait for each lock for so long at most."""
        return

    def locked(self, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """Return the condition that a row is among those that ``found``, a SELECT of keys with a
        LIMIT, locks.

        Rows that another transaction has locked are skipped.
        """
        return sa.tuple_(*found.selected_columns).in_(found)

    @abstractmethod
    def merged(
        self, document: sa.ColumnElement[object], changes: Mapping[str, object]
    ) -> sa.ColumnElement[object]:
        """Return a JSON column with these keys set, none of which is null, as a part of a
        statement.
        """

    @abstractmethod
    def among(
        self, column: sa.ColumnElement[str], names: Collection[str]
    ) -> sa.ColumnElement[bool]:
        """Return the condition that a column has one of any number of names."""

    def alone(self, connection: sa.Connection, name: str) -> bool:
        """Return whether no other open transaction got True for this task; the answer holds until
        this one ends.
        """
        return True

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        """Take the task's latch until this transaction ends; wait while another transaction
        excludes it.

        A transaction that creates an instance shares it. An operation on all rows of a job takes
        it exclusively, so it misses no row that is being created.
        """
        return

    # -- claims -----------------------------------------------------------------------------------

    def claim(
        self, connection: sa.Connection, order: Order
    ) -> list[tuple[Row, datetime, bool]]:
        """Claim due slots; return each with the time and whether its ledger row was written.

        Recurring slots that are on time, and detached ones, are entered into the ledger at once
        and may start. A plan row with missed slots, or whose slot the ledger already has, is
        returned with False; ``decide`` handles it.
        """
        now = self.now(connection)
        taken = [
            self._take(connection, key, order, now)
            for key in self.by_row.due(connection, order)
        ]
        return [(row, now, self._enter(connection, row, order, now)) for row in taken]

    def claim_tasks(
        self, connection: sa.Connection, order: Order
    ) -> tuple[list[Row], bool]:
        """Claim due one-time tasks, by priority, then by name as given, then by age; return
        whether slots may be due.

        Rows whose holder has died before are left to ``claim``.
        """
        now = self.now(connection)
        return [
            self._take(connection, key, order, now)
            for key in self.by_row.due(connection, order, IS_TASK)
        ], True

    def _take(
        self, connection: sa.Connection, key: Key, order: Order, now: datetime
    ) -> Row:
        tasks = self.tables.tasks
        version = to_micros(now)
        is_newer = is_plan(tasks) & (
            tasks.c.watermark.is_(None) | (tasks.c.watermark < tasks.c.slot)
        )
        taken = tasks.update().where(*of_key(tasks, key), *self.by_row.waiting(now))
        taken = taken.values(
            picked=True,
            picked_by=order.holder,
            last_heartbeat=now,
            lease=order.lease,
            attempt=least(tasks.c.attempt, LAST_ATTEMPT) + 1,
            version=sa.case(
                (tasks.c.version < version, version),
                else_=least(tasks.c.version, LAST_VERSION) + 1,
            ),
            watermark=sa.case((is_newer, tasks.c.slot), else_=tasks.c.watermark),
        )
        data = sa.literal_column(CLAIMED_DATA, tasks.c.task_data.type)
        columns = [
            data if column.name == "task_data" else column for column in self.row_columns
        ]
        *values, flaw = connection.execute(
            taken.returning(*columns, sa.literal_column(FLAW, sa.Text))
        ).one()
        return row_of(values, flaw)

    def _enter(
        self, connection: sa.Connection, row: Row, order: Order, now: datetime
    ) -> bool:
        if is_weighed(row, now, order.weighed, order.late):
            return False
        on_time = (
            row.is_detached
            or row.attempt > 1
            or row.next_slot is None
            or row.next_slot > now
        )
        return row.ledger_key is None or (
            on_time and self.by_row.enter(connection, row, now, order.strict)
        )

    def due_names(
        self, connection: sa.Connection, limit: int, since: datetime | None
    ) -> Sequence[Sequence[Any]]:
        """Return name, priority and due time of up to ``limit`` due slots, oldest first, and of
        rows of dead holders.

        Slots that are due before ``since`` may be left out.
        """
        tasks = self.tables.tasks
        due = sa.select(
            tasks.c.task_name,
            sa.func.coalesce(tasks.c.priority, 50),
            tasks.c.execution_time,
        )
        due = (
            due.where(*self.by_row.waiting(self.now(connection)))
            .order_by(tasks.c.execution_time)
            .limit(limit)
        )
        kinds = (sa.text(HAS_SLOT), tasks.c.lost_count > 0)
        return [row for kind in kinds for row in connection.execute(due.where(kind))]

    def due_tasks(self, connection: sa.Connection, names: Sequence[str]) -> set[str]:
        """Return those of these names that have due rows of any kind."""
        name = self.tables.tasks.c.task_name
        due = self.by_row.waiting(self.now(connection))
        found = sa.select(name).where(
            *due, name.in_(list(names)), self.by_row.not_all_paused()
        )
        return set(connection.scalars(found.distinct()))

    def first_slots(
        self, connection: sa.Connection, limit: int, *, lost: int, since: datetime | None
    ) -> list[tuple[str, timedelta]]:
        """Return name and time until due of the first ``limit`` waiting slots, and of as many rows
        of dead holders.

        None of the latter if ``lost`` is 0. Slots that are due before ``since`` are left out.
        Return none at all where a look with many names is no dearer than one without.
        """
        return []

    def next_due(
        self,
        connection: sa.Connection,
        names: Sequence[str],
        tasks: Sequence[str],
        *,
        lost: int = 1,
        since: datetime | None = None,
        no_slots: bool = False,
    ) -> tuple[timedelta | None, datetime | None]:
        """Return the time until the next waiting slot of ``names`` or task of ``tasks`` is due;
        None: nothing waits.

        ``lost`` = 0: without the rows whose holder has died before; ``no_slots``: without other
        slots. Without ``since``, return also a value for it, if many due slots of other names lie
        before those of ``names``: the due time of the first, or now.
        """
        rows = self.tables.tasks
        now = self.now(connection)
        fresh = rows.c.lost_count == 0
        kinds = [(names, sa.text(HAS_SLOT) & fresh), (tasks, sa.text(IS_TASK) & fresh)]
        if lost:
            kinds.append((names, rows.c.lost_count > 0))
        waiting = sa.select(
            sa.func.min(rows.c.execution_time, type_=rows.c.execution_time.type)
        )
        waiting = waiting.where(*self.by_row.waiting(), self.by_row.not_all_paused())
        found = [
            connection.scalar(waiting.where(rows.c.task_name.in_(list(some)), kind))
            for some, kind in kinds
        ]
        due = min((one for one in found if one is not None), default=None)
        return None if due is None else due - now, None

    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Key], strict: Collection[str]
    ) -> list[datetime | None]:
        """Return for each plan row the newest slot that is decided according to the ledger or a
        gap.
        """
        return [
            _newest_of(
                *connection.execute(
                    _newest(self.tables, strict=plan.task_name in strict), plan._asdict()
                ).one()
            )
            for plan in plans
        ]

    def begin(
        self,
        connection: sa.Connection,
        started: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        """Write the decided slots on plan rows that this transaction has claimed, and enter them
        into the ledger.

        Return the keys of those that may run.
        """
        for row in started:
            begun = (
                self.tables.tasks.update()
                .where(*self.by_row.under(row, row.picked_by))
                .values(decided(row))
            )
            expect(connection.execute(begun).rowcount, 1, row)
        return {
            row.key for row in started if self.by_row.enter(connection, row, now, strict)
        }

    def start_alike(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        start: Start,
        now: datetime,
        strict: Collection[str],
    ) -> set[Key] | None:
        """As ``gaps`` and ``begin``, for plan rows whose schedule, slot and decision are the same:
        that of the first.

        Return the keys of those that may run; None: all. The others are then decided one by one.
        """
        return set()

    # -- held rows --------------------------------------------------------------------------------

    def beat(
        self, connection: sa.Connection, holder: str, claims: Sequence[Claim]
    ) -> set[Fence]:
        """Renew these claims without waiting; return those renewed. The others must be read
        again.
        """
        beat = self.tables.tasks.update().values(last_heartbeat=self.now(connection))
        held = {claim.fence: self.by_row.under(claim.row, claim.holder) for claim in claims}
        return {
            fence
            for fence, mine in held.items()
            if connection.execute(beat.where(*mine)).rowcount
        }

    def silent_rows(
        self, connection: sa.Connection, names: Sequence[str]
    ) -> tuple[datetime, list[Row]]:
        """Return the time, and held rows of these tasks, of any holder: ``MOST_HELD`` with the
        oldest heartbeats.
        """
        held = sa.select(*self.hold_columns).where(
            self.tables.tasks.c.picked, self.tables.tasks.c.task_name.in_(list(names))
        )
        held = held.order_by(self.tables.tasks.c.last_heartbeat).limit(MOST_HELD)
        return self.now(connection), [
            row_of(values, names=HOLD_COLUMNS) for values in connection.execute(held)
        ]

    def finish(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> tuple[str | None, int]:
        """Delete the rows of one-time tasks that succeeded, unless an operation has changed them
        meanwhile.

        Return the transaction's id and the number of rows. Wait for locks.
        """
        tasks = self.tables.tasks
        unasked = (
            tasks.c.state.is_(None),
            tasks.c.wanted_due.is_(None),
            tasks.c.cancel_requested.is_(None),
        )
        gone = [
            tasks.delete().where(*self.by_row.held(claim), *unasked) for claim in claims
        ]
        return None, sum(connection.execute(one).rowcount for one in gone)

    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, Transition]]
    ) -> tuple[str | None, set[Fence]]:
        """Release plan rows whose slots were on time and succeeded, unless an operation has
        changed them meanwhile.

        Return the transaction's id and the released rows; the others are unchanged. Skip locked
        rows, but wait for ledger rows. Raise Parted if a row was advanced and its ledger row was
        not.
        """
        return None, set()

    def hold(
        self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool
    ) -> list[Held]:
        """Lock the rows that are still held under these claims; those absent are lost, or
        locked.
        """
        now = self.now(connection)
        look = sa.select(*self.row_columns)
        found = [
            connection.execute(look.where(*self.by_row.held(claim))).first()
            for claim in claims
        ]
        return [Held(row=row_of(values), now=now) for values in found if values is not None]

    def lock(
        self, connection: sa.Connection, keys: Iterable[Key], *, wait: bool
    ) -> set[Key]:
        """Lock these rows in the order of their keys; return those that stay locked by others,
        none if it waits.
        """
        return set()

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """Write the new state of rows locked by ``hold``, and what the ledger has of them, under
        the token.

        A ledger row that is final already is unchanged. Raise if a row was not written.
        """
        self.by_row.release(connection, changes)

    # -- the ledger -------------------------------------------------------------------------------

    def mark_running(self, connection: sa.Connection, claim: Claim) -> bool:
        """Mark a claimed slot as running in the ledger; return whether it was there and not marked
        yet.

        The commit of this transaction must be durable: after a crash of the server the slot must
        not start again.
        """
        slots = self.tables.slots
        marked = slots.update().where(
            *self.by_row.entry_of(claim), slots.c.outcome == Outcome.CLAIMED
        )
        marked = marked.values(outcome=Outcome.RUNNING, started=self.now(connection))
        return connection.execute(marked).rowcount == 1

    def mark_tasks(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        """As ``mark_running``, for claimed one-time tasks of one holder, in their rows; return
        those marked.
        """
        mark = (
            self.tables.tasks.update()
            .values(marked=self.now(connection))
            .where(self.tables.tasks.c.marked.is_(None))
        )
        return {
            one.fence
            for one in claims
            if connection.execute(mark.where(*self.by_row.held(one))).rowcount
        }

    def entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], *, wait: bool
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        """Lock these ledger rows; return each key's entry and place, or (None, None); locked ones
        are absent.
        """
        slots = self.tables.slots
        final = slots.c.finished.is_not(None).label("final")
        look = sa.select(
            slots.c.outcome, slots.c.token, final, slots.c.aborted, slots.c.started
        )
        found = {
            key: connection.execute(look.where(*self.by_row.at(key))).mappings().first()
            for key in keys
        }
        return {
            key: (None if values is None else LedgerEntry(**values), None)
            for key, values in found.items()
        }

    def gaps(
        self, connection: sa.Connection, gaps: Sequence[tuple[Row, Gap]], now: datetime
    ) -> None:
        """Enter slots that will not run: a ledger row for one, a gap row for several.

        The job's last gap is extended if it ends with ``gap.after`` and has the same reason.
        """
        whole = [
            (row, part)
            for row, gap in gaps
            for part in self.by_row.close_open_slots(connection, row, gap, now)
        ]
        for row, gap in whole:
            place = {**row.plan_key._asdict(), "reason": gap.reason}
            if gap.count == 1:
                skipped = {"slot": gap.first, "outcome": Outcome.SKIPPED, "finished": now}
                self.by_row.insert_new(connection, self.tables.slots, place | skipped)
            elif not self._extend_gap(connection, row, gap, now):
                several = {
                    "first_slot": gap.first,
                    "last_slot": gap.last,
                    "count": gap.count,
                    "created": now,
                }
                self.by_row.upsert(  # what was decided once is never undone
                    connection,
                    self.tables.gaps,
                    place | several,
                    again=lambda new: {
                        name: new[name]
                        for name in ("last_slot", "count", "reason", "created")
                    },
                    where=lambda new: new.last_slot > self.tables.gaps.c.last_slot,
                )

    def _extend_gap(
        self, connection: sa.Connection, row: Row, gap: Gap, now: datetime
    ) -> bool:
        """Extend the job's last gap by one that follows it, for the same reason; return whether it
        does.

        A slot of an earlier schedule may lie between.
        """
        if gap.after is None:
            return False
        gaps = self.tables.gaps
        slots = self.tables.slots
        between = sa.select(slots.c.slot).where(*of_key(slots, row.plan_key))
        between = between.where(slots.c.slot > gap.after, slots.c.slot < gap.first)
        follows = [
            gaps.c.last_slot == gap.after,
            gaps.c.reason == gap.reason,
            gaps.c.first_slot < gap.first,
        ]
        extended = gaps.update().where(
            *of_key(gaps, row.plan_key), *follows, ~between.exists()
        )
        extended = extended.values(
            last_slot=gap.last, count=gaps.c.count + gap.count, created=now
        )
        return connection.execute(extended).rowcount == 1


class SQLite(Dialect):
    """The portable form, with the host's clock. Each transaction takes the write lock when it
    begins.
    """

    name = "sqlite"

    @staticmethod
    def insert(table: sa.Table, /) -> Upsert:
        from sqlalchemy.dialects.sqlite import (
            insert,
        )  # late, as its driver: a worker on PostgreSQL does not need it

        return insert(table)

    def now(self, connection: Joinable) -> datetime:
        return self.clock.override() or host_now()

    def merged(
        self, document: sa.ColumnElement[object], changes: Mapping[str, object]
    ) -> sa.ColumnElement[object]:
        return sa.func.json_patch(
            document, sa.literal(changes, document.type), type_=document.type
        )

    def among(
        self, column: sa.ColumnElement[str], names: Collection[str]
    ) -> sa.ColumnElement[bool]:
        each = sa.func.json_each(json.dumps(list(names))).table_valued("value")
        return column.in_(sa.select(each.c.value))


class Transaction(NamedTuple):
    """A transaction that writes: its connection, the dialect of its statements, and the time at
    which it decides.
    """

    connection: sa.Connection
    dialect: Dialect
    now: datetime


def _newest_of(in_ledger: datetime | None, in_gaps: datetime | None) -> datetime | None:
    return max((found for found in (in_ledger, in_gaps) if found), default=None)


@lru_cache(maxsize=16)
def _newest(tables: Tables, *, strict: bool) -> sa.Executable:
    """Built once: each late slot needs one."""
    slots = tables.slots
    gaps = tables.gaps
    name = sa.bindparam("task_name", type_=sa.Text)
    instance = sa.bindparam("task_instance", type_=sa.Text)
    is_decided: sa.ColumnElement[bool] = slots.c.finished.is_not(None)
    if strict:
        is_decided = is_decided | (slots.c.outcome != Outcome.CLAIMED)
    in_ledger = (
        sa.select(slots.c.slot)
        .where(slots.c.task_name == name, slots.c.task_instance == instance)
        .where(slots.c.origin.in_(PLANNED), is_decided)
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
