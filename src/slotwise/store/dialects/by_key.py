"""The verbs by key and version: right in every database, with any number of writers.

Each locks rows with SELECT … FOR UPDATE in the order of keys, decides, and writes them in the same
READ COMMITTED transaction, with a count of the rows. A database without locks has one writer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import sqlalchemy as sa

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
)
from slotwise.model.vocabulary import Outcome
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects import key_guards, key_locks
from slotwise.store.dialects.conditions import Conditions
from slotwise.store.dialects.due_rows import DueRows, newest_decided, newest_of
from slotwise.store.dialects.gaps import enter_gaps
from slotwise.store.dialects.port import (
    ClaimRequest,
    Dialect,
    NewRow,
    Transaction,
)
from slotwise.store.dialects.row_values import (
    RELEASED,
    Values,
    among_keys,
    claimed,
    enters_at_once,
    fence_of,
    fences_in,
    held_fence,
    least,
    new_entry,
    readable_lease,
)
from slotwise.store.dialects.undone_entries import undo_entry
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import (
    ADDED_COLUMNS,
    HOLD_COLUMNS,
    LAST_ATTEMPT,
    LAST_VERSION,
    ROW_COLUMNS,
    Change,
    Held,
    decided,
    expect,
    row_of,
    stored,
)
from slotwise.store.schema.tables import (
    HAS_SLOT,
    IS_TASK,
    MOST_HELD,
    Expression,
    Tables,
)

KeyOrder: TypeAlias = tuple[Expression, Expression]


class ByKey(Dialect):
    """What all bases of a dialect share."""

    has_fast_finish = False
    is_one_statement = False
    __hash__ = object.__hash__

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self.tables = tables
        self.clock = clock
        self.conditions = Conditions(tables)
        self._due = DueRows(tables, self.conditions, self.among)
        tasks = tables.tasks.c
        self.row_columns = [tasks[name] for name in ROW_COLUMNS]
        held = {"lease": readable_lease(tasks.lease)}
        self.hold_columns = [held.get(name, tasks[name]) for name in HOLD_COLUMNS]
        self.key_order: KeyOrder = (tasks.task_name, tasks.task_instance)

    # -- what a database does in its own way ------------------------------------------------------

    @abstractmethod
    def values_of(
        self, rows: Sequence[Mapping[str, object]], types: Mapping[str, Any]
    ) -> sa.FromClause:
        """Return a table of these rows, with a column of each of these names and types, as a part
        of a statement. A batch is sent as one or few parameters.
        """

    @abstractmethod
    def durably(self, connection: sa.Connection) -> None:
        """Let the commit of this transaction wait for the disk, where sessions can choose."""

    def begin_guard(self, connection: Joinable, lease: timedelta) -> None:
        """Prepare a caller's transaction for the lock of a guard: end it if it is idle for so long,
        where the database can do that.
        """

    def end_guard(self, connection: Joinable) -> None:
        """The bound of an idle transaction ends with it, where it is one of the transaction."""

    def claimed_columns(self) -> Sequence[Expression]:
        """Return what a claim reads of each row; see ``lock_due``."""
        return self._due.claimed_columns()

    def held(self) -> sa.ColumnElement[bool]:
        """Return the condition that a row is held, as an index finds it."""
        return self.tables.tasks.c.picked

    def ago(
        self, connection: Joinable, span: timedelta = timedelta(0)
    ) -> sa.ColumnElement[datetime]:
        return sa.literal(self.now(connection) - span, Instant)

    # -- batches ----------------------------------------------------------------------------------

    def change_each(
        self,
        connection: Joinable,
        table: sa.Table,
        changes: Sequence[tuple[Values, Values]],
        *conditions: sa.ColumnElement[bool],
        **same: object,
    ) -> int:
        """Write rows: for each the values that find it, and those that it gets, of the same columns
        in all. Return how many rows were written.
        """
        mine, given = changes[0]
        types = {f"its_{name}": table.c[name].type for name in mine}
        types |= {f"new_{name}": table.c[name].type for name in given}
        rows = [
            {f"its_{name}": value for name, value in its.items()}
            | {f"new_{name}": value for name, value in new.items()}
            for its, new in changes
        ]
        values = self.values_of(rows, types)
        found = [table.c[name] == values.c[f"its_{name}"] for name in mine]
        new = {name: values.c[f"new_{name}"] for name in given}
        statement = self.update_of(table).where(*found, *conditions)
        statement = statement.values(**new, **same)
        return connection.execute(statement).rowcount

    def update_of(self, table: sa.Table) -> sa.Update:
        """Return the begin of an update of rows with the keys of given ones."""
        return table.update()

    def select_these(
        self,
        rows: Sequence[Values],
        key: Sequence[sa.Column[Any]],
        *columns: Expression,
    ) -> sa.Select[Any]:
        """Return a SELECT of the rows that have one of these keys."""
        values = self.values_of(rows, {column.name: column.type for column in key})
        mine = [column == values.c[column.name] for column in key]
        return sa.select(*columns).where(*mine)

    # -- looks without a lock ---------------------------------------------------------------------

    def due_keys(
        self, connection: sa.Connection, request: ClaimRequest, kind: str = HAS_SLOT
    ) -> list[Key]:
        queries = self._due.claimable(request, self.now(connection), kind)
        key = (self.tables.tasks.c.task_name, self.tables.tasks.c.task_instance)
        found = [
            Key(*row)
            for query in queries
            for row in connection.execute(query.with_only_columns(*key))
        ]
        return found[: request.limit]

    def due_names(
        self, connection: sa.Connection, limit: int, since: datetime | None
    ) -> Sequence[Sequence[Any]]:
        queries = self._due.names(self.now(connection), limit)
        return [row for query in queries for row in connection.execute(query)]

    def first_slots(
        self,
        connection: sa.Connection,
        limit: int,
        *,
        lost: int,
        since: datetime | None,
    ) -> list[tuple[str, timedelta]]:
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
        queries = self._due.next(names, tasks, self.now(connection), lost=lost > 0)
        found = [connection.scalar(query) for query in queries]
        due = min((one for one in found if one is not None), default=None)
        return None if due is None else due - self.now(connection), None

    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Key], strict: Collection[str]
    ) -> list[datetime | None]:
        newest: list[datetime | None] = []
        for plan in plans:
            query = newest_decided(self.tables, strict=plan.task_name in strict)
            found = connection.execute(query, plan._asdict()).one()
            newest.append(newest_of(*found))
        return newest

    def still_held(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> set[Fence]:
        tasks = self.tables.tasks.c
        fence = (tasks.task_name, tasks.task_instance, tasks.version)
        asked = [(*claim.key, claim.token) for claim in claims]
        mine = [tasks.picked_by == claims[0].holder, tasks.picked]
        query = sa.select(*fence).where(*mine, sa.tuple_(*fence).in_(asked))
        return fences_in(connection.execute(query))

    def silent_rows(
        self, connection: sa.Connection, names: Sequence[str]
    ) -> tuple[datetime, list[Row]]:
        tasks = self.tables.tasks.c
        mine = self.held(), self.among(tasks.task_name, names)
        held = sa.select(self.ago(connection), *self.hold_columns).where(*mine)
        oldest = held.order_by(tasks.last_heartbeat).limit(MOST_HELD)
        found = connection.execute(oldest).all()
        # About no row it is of no use.
        now = found[0][0] if found else self.clock.override() or host_now()
        return now, [row_of(values[1:], names=HOLD_COLUMNS) for values in found]

    def alone(self, connection: sa.Connection, name: str) -> bool:
        return key_locks.alone(self, connection, name)

    def insert_turn(
        self, connection: sa.Connection, row: Mapping[str, object]
    ) -> bool:
        """Insert a row of ``keys`` once. Race: of two, one waits for the other's commit."""
        return self.insert_new(connection, self.tables.keys, row)

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        key_locks.latch(self, connection, name, shared=shared)

    def guard(
        self, connection: Joinable, claim: Claim, saved: Values | None = None
    ) -> bool:
        return key_guards.guard(self, connection, claim, saved)

    # -- claims -----------------------------------------------------------------------------------

    def claim(
        self, connection: sa.Connection, request: ClaimRequest
    ) -> list[tuple[Row, datetime, bool]]:
        now = self.now(connection)
        rows = self._take(connection, request, now, HAS_SLOT)
        entering = [row for row in rows if enters_at_once(row, request, now)]
        entered = self.enter_slots(connection, entering, now, request.strict)
        entered |= {row.key for row in rows if not row.has_slot}
        return [(row, now, row.key in entered) for row in rows]

    def claim_tasks(
        self, connection: sa.Connection, request: ClaimRequest
    ) -> tuple[list[Row], bool]:
        return self._take(connection, request, self.now(connection), IS_TASK), True

    def _take(
        self,
        connection: sa.Connection,
        request: ClaimRequest,
        now: datetime,
        kind: str,
    ) -> list[Row]:
        """Lock due rows that no other claim has locked, and hold them."""
        tasks = self.tables.tasks
        found = self.lock_due(connection, request, now, kind)
        if not found:
            return []
        rows: list[Row] = []
        changes: list[tuple[Values, Values]] = []
        names = ("version", "attempt", "watermark")
        for *columns, before, size in found:
            row = claimed(columns, before, size, request, now)
            its: Values = {**row.key._asdict(), "version": before}
            changes.append((its, {name: getattr(row, name) for name in names}))
            rows.append(row)
        written = self.change_each(
            connection,
            tasks,
            changes,
            ~tasks.c.picked,
            picked=True,
            picked_by=request.holder,
            last_heartbeat=now,
            lease=request.lease,
        )
        expect(written, len(rows), rows[0])
        return rows

    def lock_due(
        self,
        connection: sa.Connection,
        request: ClaimRequest,
        now: datetime,
        kind: str,
    ) -> list[Sequence[Any]]:
        """Return the columns of a Row, its version, and the size of its payload, which is not read
        if it is too large.

        Race: a row that another claim has just taken and committed is checked again by the
        database when it is locked.
        """
        lost, fresh = self._due.claimable(request, now, kind)
        found: list[Sequence[Any]] = []
        for query, most in ((lost, request.lost), (fresh, request.limit)):
            size_left = min(most, request.limit - len(found))
            if size_left > 0:
                columns = self.claimed_columns()
                some = query.with_only_columns(*columns).limit(size_left)
                found += connection.execute(
                    some.with_for_update(skip_locked=True)
                ).all()
        return found

    def enter(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        if not rows:
            return set()
        tasks = self.tables.tasks
        changes = [(fence_of(row), decided(row)) for row in rows]
        mine = tasks.c.picked_by == rows[0].picked_by
        written = self.change_each(connection, tasks, changes, mine)
        expect(written, len(rows), rows[0])
        return self.enter_slots(connection, rows, now, strict)

    def enter_slots(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        """As ``enter``, of rows that have these slots already."""
        return {
            row.key for row in rows if self._enter_slot(connection, row, now, strict)
        }

    def _enter_slot(
        self,
        connection: sa.Connection,
        row: Row,
        now: datetime,
        strict: Collection[str],
    ) -> bool:
        slots = self.tables.slots
        gives_up = row.task_name in strict
        names = ("outcome", "reason", "collapsed", "token", "worker", "started")

        def again(new: NewRow) -> dict[str, Expression]:
            return {
                "started_before": slots.c.started,
                "attempts": least(slots.c.attempts, LAST_ATTEMPT) + 1,
                **{name: new[name] for name in names},
            }

        return self.upsert(
            connection,
            slots,
            new_entry(row, now, gives_up=gives_up),
            again,
            where=lambda new: self.conditions.may_start(gives_up=gives_up),
        )

    # -- held rows --------------------------------------------------------------------------------

    def _lock_held(
        self,
        connection: sa.Connection,
        claims: Sequence[Claim],
        columns: Sequence[Expression],
        *conditions: sa.ColumnElement[bool],
        wait: bool,
        beside_guards: bool = False,
    ) -> Sequence[Sequence[Any]]:
        """Lock the rows that are held under these claims, in the order of keys.

        ``beside_guards``: also those that a guard has locked, where the database has such locks.
        """
        tasks = self.tables.tasks
        fences = [held_fence(one) for one in claims]
        key = [tasks.c[name] for name in fences[0]]
        query = self.select_these(fences, key, *columns)
        query = query.where(tasks.c.picked, *conditions).order_by(*self.key_order)
        locked = query.with_for_update(skip_locked=not wait, key_share=beside_guards)
        return connection.execute(locked).all()

    def hold(
        self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool
    ) -> list[Held]:
        columns = [
            sa.null().label("task_data") if column.key == "task_data" else column
            for column in self.row_columns
        ]
        found = self._lock_held(connection, claims, columns, wait=wait)
        if not found:
            return []
        now = self.now(connection)
        id = self.transaction_id(connection)
        return [
            Held(row=row_of(values), now=now, transaction_id=id) for values in found
        ]

    def lock(
        self, connection: sa.Connection, keys: Iterable[Key], *, wait: bool
    ) -> set[Key]:
        tasks = self.tables.tasks
        key = [tasks.c.task_name, tasks.c.task_instance]
        query = self.select_these([one._asdict() for one in keys], key, *key)
        ordered = query.order_by(*self.key_order).with_for_update(skip_locked=not wait)
        locked = {Key(*row) for row in connection.execute(ordered)}
        if wait:
            return set()
        return {Key(*row) for row in connection.execute(query)} - locked

    def beat(
        self, connection: sa.Connection, holder: str, claims: Sequence[Claim]
    ) -> set[Fence]:
        tasks = self.tables.tasks
        fence = [tasks.c.task_name, tasks.c.task_instance, tasks.c.version]
        mine = tasks.c.picked_by == holder
        found = self._lock_held(
            connection, claims, fence, mine, wait=False, beside_guards=True
        )
        locked = fences_in(found)
        renewed = [claim for claim in claims if claim.fence in locked]
        if renewed:
            changes = [(held_fence(claim), Values()) for claim in renewed]
            now = self.now(connection)
            written = self.change_each(connection, tasks, changes, last_heartbeat=now)
            expect(written, len(renewed), renewed[0].row)
        return locked

    def finish(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> tuple[str | None, int]:
        tasks = self.tables.tasks
        unasked = [
            tasks.c[name].is_(None)
            for name in ("state", "wanted_due", "cancel_requested")
        ]
        key = [tasks.c.task_name, tasks.c.task_instance]
        found = self._lock_held(connection, claims, key, *unasked, wait=True)
        if found:
            gone = tasks.delete().where(among_keys(key, found))
            expect(connection.execute(gone).rowcount, len(found), claims[0].row)
        return self.transaction_id(connection), len(found)

    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, Transition]]
    ) -> tuple[str | None, set[Fence]]:
        return None, set()

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        tasks = self.tables.tasks
        count = 0
        version = least(tasks.c.version, LAST_VERSION + 1) + 1
        for change in changes:
            row = change.held.row
            write: sa.Delete | sa.Update = tasks.delete()
            if (columns := change.transition.row) is not None:
                values = {**stored(row, columns), **RELEASED, "version": version}
                write = tasks.update().values(**values)
            mine = self.conditions.under(row, row.picked_by)
            count += connection.execute(write.where(*mine)).rowcount
        expect(count, len(changes), changes[0].held.row)
        self.record(connection, changes)

    def mark_tasks(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> set[Fence]:
        """Race: in the order of keys, so that two that wait for rows cannot deadlock."""
        self.durably(connection)
        tasks = self.tables.tasks
        mark = tasks.update().values(marked=self.now(connection))
        mark = mark.where(tasks.c.marked.is_(None))
        return {
            one.fence
            for one in sorted(claims, key=lambda claim: claim.key)
            if connection.execute(mark.where(*self.conditions.held(one))).rowcount
        }

    # -- the ledger -------------------------------------------------------------------------------

    def mark_running(self, connection: sa.Connection, claim: Claim) -> bool:
        self.durably(connection)
        slots = self.tables.slots
        mine = self.conditions.entry_of(claim)
        marked = slots.update().where(*mine, slots.c.outcome == Outcome.CLAIMED)
        marked = marked.values(outcome=Outcome.RUNNING, started=self.now(connection))
        return connection.execute(marked).rowcount == 1

    def record(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """Write what the ledger has of these rows, as ``release`` does."""
        slots = self.tables.slots
        for change in changes:
            record = change.transition.record
            row = change.held.row
            if record is None or row.ledger_key is None:
                continue
            if record.forget:
                undo_entry(self, connection, row)
                continue
            values = change.recorded
            values |= {name: slots.c[name] + values[name] for name in ADDED_COLUMNS}
            if change.never_began:
                values["started"] = slots.c.started_before
                if not record.final:
                    values["token"] = slots.c.token + 1  # see undo_entry
            open_entry = slots.update().where(*self.conditions.open_entry(row))
            connection.execute(open_entry.values(values))

    def entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], *, wait: bool
    ) -> dict[LedgerKey, LedgerEntry | None]:
        """Race: a row that is not returned may be locked by a user's guard. Look without a lock."""
        if not keys:
            return {}
        found = self._read_entries(connection, sorted(keys), skip_locked=not wait)
        absent = [key for key in keys if key not in found]
        if absent and not wait:
            there = self._read_entries(connection, absent, skip_locked=None)
            absent = [key for key in absent if key not in there]
        return {**found, **dict.fromkeys(absent)}

    def _read_entries(
        self,
        connection: sa.Connection,
        keys: Sequence[LedgerKey],
        *,
        skip_locked: bool | None,
    ) -> dict[LedgerKey, LedgerEntry]:
        """Read these rows of the ledger, which are locked; None: without a lock."""
        slots = self.tables.slots
        key = list(slots.primary_key.columns)
        names = ("outcome", "token", "aborted", "started")
        columns: dict[str, Expression] = {name: slots.c[name] for name in names}
        columns["final"] = slots.c.finished.is_not(None)
        asked = [one._asdict() for one in keys]
        query = self.select_these(asked, key, *key, *columns.values()).order_by(*key)
        if skip_locked is not None:
            query = query.with_for_update(skip_locked=skip_locked)
        return {
            LedgerKey(name, id, slot): LedgerEntry(
                **dict(zip(columns, values, strict=True))
            )
            for name, id, slot, *values in connection.execute(query)
        }

    def gaps(
        self, connection: sa.Connection, gaps: Sequence[tuple[Row, Gap]], now: datetime
    ) -> None:
        enter_gaps(Transaction(connection, self, now), gaps)
