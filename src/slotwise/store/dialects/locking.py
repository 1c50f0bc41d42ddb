"""The base for databases with many writers: lock rows by key, decide, write them by key.

Each verb locks with SELECT … FOR UPDATE, and writes in the same READ COMMITTED transaction. There
is no RETURNING, no write inside WITH and no ON CONFLICT: an insert catches the conflict of its key
under a savepoint. A row of ``keys`` is locked where PostgreSQL has an advisory lock, and a row of
``receipts`` says whether a transaction was committed. Nothing is notified: workers poll. It keeps
the laws, and owes half the speed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.decide.claim import Start, is_weighed
from slotwise.model.records import (
    FOREVER,
    Claim,
    Fence,
    IfExists,
    Key,
    LedgerEntry,
    LedgerKey,
    Row,
    Transition,
    Wanted,
    to_micros,
)
from slotwise.model.vocabulary import Kind, RowState
from slotwise.payload.payload import PAYLOAD_LIMIT
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.connect.database_errors import is_locked
from slotwise.store.dialects.by_key import (
    ByKey,
    Expression,
    Values,
    enters_at_once,
    least,
    new_entry,
)
from slotwise.store.dialects.port import ClaimRequest, NewRow, Reading
from slotwise.store.dialects.task_statements import Status, Taken, TaskStatements
from slotwise.store.schema.rows import (
    LAST_ATTEMPT,
    LAST_VERSION,
    ROW_COLUMNS,
    Held,
    decided,
    expect,
    row_of,
)
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK

#: How often an insert that met a row with its key, and then did not find it, is tried again.
TRIES = 3
#: How long a receipt is kept: no caller asks for it later.
RECEIPT_KEPT = timedelta(days=1)
#: The most bytes of a payload that is read, with room for a codec's header.
MOST_BYTES = PAYLOAD_LIMIT + 64
#: The kinds of rows in ``keys`` that are locked.
TURN = "turn"
LATCH = "latch"
#: What a claim overwrites: it is not read, for another program may have written it.
_OVERWRITTEN = ("picked_by", "last_heartbeat", "lease")

_SAVEPOINT = sa.text("SAVEPOINT slotwise_insert")
_ROLLBACK = sa.text("ROLLBACK TO SAVEPOINT slotwise_insert")
_RELEASE = sa.text("RELEASE SAVEPOINT slotwise_insert")


@contextmanager
def _savepoint(connection: Joinable) -> Iterator[None]:
    """By statements: a caller's connection may be of any driver."""
    connection.execute(_SAVEPOINT)
    try:
        yield
    except Exception:
        connection.execute(_ROLLBACK)
        raise
    connection.execute(_RELEASE)


class _Given:
    """The values of a row that is being inserted; those that are not given are null."""

    def __init__(self, table: sa.Table, values: Mapping[str, object]) -> None:
        self._table = table
        self._values = values

    def __getitem__(self, name: str) -> Expression:
        value = self._values.get(name)
        if isinstance(value, sa.ColumnElement):
            return value
        return sa.literal(value, self._table.c[name].type)


class Locking(ByKey):
    """A base of dialects. A database adds the abstract methods."""

    # -- what a database calls in its own way -----------------------------------------------------

    @abstractmethod
    def values_of(
        self, rows: Sequence[Mapping[str, object]], types: Mapping[str, Any]
    ) -> sa.FromClause:
        """Return a table of these rows, with a column of each of these names and types, as a part
        of a statement. A batch is sent as one or few parameters.
        """

    @abstractmethod
    def is_taken(self, error: Exception) -> bool:
        """Return whether an insert has failed because its key, or another unique one, has a
        row.
        """

    @abstractmethod
    def durably(self, connection: sa.Connection) -> None:
        """Let the commit of this transaction wait for the disk, where sessions can choose."""

    @abstractmethod
    def limit_idle(self, connection: Joinable, limit: timedelta) -> None:
        """End this transaction if it is idle for so long, where the database can do that."""

    # -- transactions -----------------------------------------------------------------------------

    def transaction_id(self, connection: sa.Connection) -> str | None:
        receipt = uuid4().hex
        now = self.now(connection)
        values = {"receipt": receipt, "created": now, "expires": now + RECEIPT_KEPT}
        connection.execute(self.tables.receipts.insert().inline().values(**values))
        return receipt

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Race: the transaction may still run. An insert of its receipt waits for its end: then it
        is taken, or it was rolled back. Beyond the lock timeout it is undecided.
        """
        now = self.now(connection)
        values = {"receipt": transaction_id, "created": now, "expires": now}
        try:
            connection.execute(self.tables.receipts.insert().inline().values(**values))
        except DBAPIError as error:
            connection.rollback()
            if self.is_taken(error):
                return True
            if is_locked(error):
                return None
            raise
        connection.rollback()
        return False

    def delete_receipts(self, connection: sa.Connection) -> int:
        receipts = self.tables.receipts
        old = receipts.delete().where(receipts.c.expires < self.now(connection))
        return connection.execute(old).rowcount

    # -- rows of any table ------------------------------------------------------------------------

    def insert_new(
        self, connection: Joinable, table: sa.Table, values: Mapping[str, object]
    ) -> bool:
        """Race: an insert of the same key that is not committed is waited for."""
        return self._inserts(connection, table.insert().inline().values(**values))

    def _inserts(self, connection: Joinable, insert: sa.Insert) -> bool:
        """Insert under a savepoint; return False, with nothing inserted, if a key is taken."""
        try:
            with _savepoint(connection):
                connection.execute(insert)
        except Exception as error:
            if not self.is_taken(error):
                raise
            return False
        return True

    def inserts_all(
        self, connection: Joinable, table: sa.Table, rows: Sequence[Mapping[str, object]]
    ) -> bool:
        """Insert these rows, all of the same columns, or none, if a key is taken.

        Race: in the order of keys, so that two inserts that meet in several cannot deadlock.
        """
        key = [column.name for column in table.primary_key.columns]
        ordered = sorted(rows, key=lambda row: tuple(str(row[name]) for name in key))
        values = [dict(row) for row in ordered]
        return self._inserts(connection, table.insert().inline().values(values))

    def insert_missing(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> Sequence[Any]:
        first = next(iter(table.primary_key.columns)).name
        added: list[Any] = []
        for begin in range(0, len(rows), CHUNK):
            chunk = rows[begin : begin + CHUNK]
            if not self.inserts_all(connection, table, chunk):
                chunk = [row for row in chunk if self.insert_new(connection, table, row)]
            added += [row[first] for row in chunk]
        return added

    def upsert(
        self,
        connection: Joinable,
        table: sa.Table,
        values: Mapping[str, object],
        again: Callable[[NewRow], Mapping[str, object]],
        where: Callable[[NewRow], sa.ColumnElement[bool]] | None = None,
    ) -> bool:
        """Race: of two inserts of one key, the second waits for the first, and then changes its
        row; a row that is deleted in between is inserted.
        """
        new = _Given(table, values)
        key = list(table.primary_key.columns)
        mine = [column == sa.literal(values[column.name], column.type) for column in key]
        change = table.update().where(*mine).values(**again(new))
        if where is not None:
            change = change.where(where(new))
        look = sa.select(*key).where(*mine).with_for_update()
        for _ in range(TRIES):
            if connection.execute(look).fetchone() is not None:
                return connection.execute(change).rowcount == 1
            if self.insert_new(connection, table, values):
                return True
        connection.execute(table.insert().inline().values(**values))  # raises what it meets
        return True

    def replace_all(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> None:
        key = [column.name for column in table.primary_key.columns]
        replaced = [name for name in rows[0] if name not in key]
        for row in sorted(rows, key=lambda row: tuple(str(row[name]) for name in key)):
            self.upsert(
                connection, table, row, lambda new: {name: new[name] for name in replaced}
            )

    def reading(self, statement: sa.Update | sa.Delete, *columns: Expression) -> Reading:
        """Lock the rows, write them by key, and read them: deleted ones before."""
        table = statement.table
        assert isinstance(table, sa.Table)
        key = list(table.primary_key.columns)
        is_deletion = isinstance(statement, sa.Delete)
        look = sa.select(*key, *(columns if is_deletion else ())).order_by(*key)
        if statement.whereclause is not None:
            look = look.where(statement.whereclause)
        locked = look.with_for_update()

        def read(
            connection: Joinable, parameters: Mapping[str, object] | None = None
        ) -> Sequence[Sequence[Any]]:
            found = connection.execute(locked, parameters).fetchall()
            if not found:
                return []
            mine = _among(key, [row[: len(key)] for row in found])
            connection.execute(statement.where(mine), parameters)
            if is_deletion:
                return [row[len(key) :] for row in found]
            again = sa.select(*columns).where(mine).order_by(*key)
            return connection.execute(again, parameters).fetchall()

        return read

    def locked(self, connection: Joinable, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
        keys = connection.execute(found.with_for_update(skip_locked=True)).fetchall()
        return _among(list(found.selected_columns), keys)

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
        statement = table.update().where(
            *(table.c[name] == values.c[f"its_{name}"] for name in mine), *conditions
        )
        statement = statement.values(
            **{name: values.c[f"new_{name}"] for name in given}, **same
        )
        return connection.execute(statement).rowcount

    # -- locks ------------------------------------------------------------------------------------

    def alone(self, connection: sa.Connection, name: str) -> bool:
        """By the lock of a row of ``keys``.

        Race: the row is made by the first claim of all. A second one that makes it at the same time
        waits for the first one's commit, up to the lock timeout and once in the life of a name, and
        then has no turn.
        """
        mine = self._key_row(name, TURN)
        look = sa.select(self.tables.keys.c.running).where(*self._of_key_row(mine))
        if connection.execute(look.with_for_update(skip_locked=True)).first() is not None:
            return True
        if connection.execute(look).first() is not None:
            return False
        try:
            return self.insert_new(connection, self.tables.keys, mine)
        except DBAPIError as error:
            if not is_locked(error):
                raise
            return False

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        """By the lock of a row of ``keys``.

        Race: of two that make the row, the second waits for the first one's commit, also if both
        would share it; then it locks that row.
        """
        mine = self._key_row(name, LATCH)
        look = sa.select(self.tables.keys.c.running).where(*self._of_key_row(mine))
        look = look.with_for_update(read=shared)
        while connection.execute(look).fetchone() is None:
            if self.insert_new(connection, self.tables.keys, mine):
                return

    def _key_row(self, name: str, kind: str) -> Values:
        return {"task_name": name, "kind": kind, "key": ""}

    def _of_key_row(self, row: Values) -> list[sa.ColumnElement[bool]]:
        return [self.tables.keys.c[name] == value for name, value in row.items()]

    def guard(self, connection: Joinable, claim: Claim) -> bool:
        """FOR SHARE; of a one-time task's row only the key, where the database has such locks, as
        PostgreSQL has. Elsewhere its heartbeats skip the row meanwhile.
        """
        self.limit_idle(connection, claim.lease)
        return self._shares(connection, claim, key_only=True)

    # -- claims -----------------------------------------------------------------------------------

    def claim(
        self, connection: sa.Connection, order: ClaimRequest
    ) -> list[tuple[Row, datetime, bool]]:
        now = self.now(connection)
        rows = self._take(connection, order, now, HAS_SLOT)
        entering = [row for row in rows if enters_at_once(row, order, now)]
        entered = self._enter_all(connection, entering, now, order.strict)
        return [
            (row, now, row.key in entered or _needs_no_entry(row, order, now))
            for row in rows
        ]

    def claim_tasks(
        self, connection: sa.Connection, order: ClaimRequest
    ) -> tuple[list[Row], bool]:
        return self._take(connection, order, self.now(connection), IS_TASK), True

    def _take(
        self, connection: sa.Connection, order: ClaimRequest, now: datetime, kind: str
    ) -> list[Row]:
        """Lock due rows that no other claim has locked, and hold them.

        Race: a row that another claim has just taken and committed is checked again by the
        database when it is locked.
        """
        lost, fresh = self._due(order, now, kind)
        found: list[Sequence[Any]] = []
        for look, most in ((lost, order.lost), (fresh, order.limit)):
            size = min(most, order.limit - len(found))
            if size > 0:
                some = look.with_only_columns(*self._claimed_columns()).limit(size)
                found += connection.execute(some.with_for_update(skip_locked=True)).all()
        if not found:
            return []
        rows = [_claimed(values, order, now) for values in found]
        changes: list[tuple[Values, Values]] = [
            (
                {**row.key._asdict(), "version": before},
                {
                    "version": row.version,
                    "attempt": row.attempt,
                    "watermark": row.watermark,
                },
            )
            for row, (*_, before, _) in zip(rows, found, strict=True)
        ]
        written = self.change_each(
            connection,
            self.tables.tasks,
            changes,
            ~self.tables.tasks.c.picked,
            picked=True,
            picked_by=order.holder,
            last_heartbeat=now,
            lease=order.lease,
        )
        expect(written, len(rows), rows[0])
        return rows

    def _claimed_columns(self) -> list[Expression]:
        """The columns of a Row, then the version before the claim, and the payload's size."""
        tasks = self.tables.tasks
        size = sa.func.octet_length(tasks.c.task_data)
        replaced: dict[str, Expression] = dict.fromkeys(_OVERWRITTEN, sa.null())
        replaced["task_data"] = sa.case((size <= MOST_BYTES, tasks.c.task_data))
        columns = [
            replaced.get(name, tasks.c[name]).label(f"c_{name}") for name in ROW_COLUMNS
        ]
        return [*columns, tasks.c.version.label("c_before"), size.label("c_size")]

    def begin(
        self,
        connection: sa.Connection,
        started: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        tasks = self.tables.tasks
        changes = [(_fence_of(row), decided(row)) for row in started]
        mine = tasks.c.picked_by == started[0].picked_by
        written = self.change_each(connection, tasks, changes, mine)
        expect(written, len(started), started[0])
        return self._enter_all(connection, started, now, strict)

    def start_alike(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        start: Start,
        now: datetime,
        strict: Collection[str],
    ) -> set[Key] | None:
        return set()

    def enter(
        self, connection: sa.Connection, row: Row, now: datetime, strict: Collection[str]
    ) -> bool:
        return bool(self._enter_all(connection, [row], now, strict))

    def _enter_all(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        """Enter the slots of these claimed rows; return the keys of those that may run.

        Race: between look and insert another transaction may enter the slot of the same key, as
        one with a row that was restored. Then the batch is inserted row by row.
        """
        if not rows:
            return set()
        asked = {row.ledger_key: row for row in reversed(rows) if row.ledger_key}
        known = self._lock_entries(connection, asked, [self.tables.slots.c.token])
        new = [row for key, row in asked.items() if key not in known]
        entered = {
            row.key
            for key, row in asked.items()
            if key in known and self._enter_again(connection, row, now, strict)
        }
        if new:
            values = [new_entry(row, now, gives_up=row.task_name in strict) for row in new]
            if self.inserts_all(connection, self.tables.slots, values):
                return entered | {row.key for row in new}
            entered.update(
                row.key for row in new if self._enter_alone(connection, row, now, strict)
            )
        return entered

    def _enter_alone(
        self, connection: sa.Connection, row: Row, now: datetime, strict: Collection[str]
    ) -> bool:
        values = new_entry(row, now, gives_up=row.task_name in strict)
        is_new = self.insert_new(connection, self.tables.slots, values)
        return is_new or self._enter_again(connection, row, now, strict)

    def _enter_again(
        self, connection: sa.Connection, row: Row, now: datetime, strict: Collection[str]
    ) -> bool:
        """Enter a slot that the ledger has already; return whether it may start."""
        slots = self.tables.slots
        gives_up = row.task_name in strict
        new = new_entry(row, now, gives_up=gives_up)
        names = ("outcome", "reason", "collapsed", "token", "worker", "started")
        mine = [
            *self.conditions.at(row.ledger_key),
            self.conditions.may_start(gives_up=gives_up),
        ]
        again = slots.update().where(*mine)
        again = again.ordered_values(  # MySQL assigns from left to right
            (slots.c.started_before, slots.c.started),
            (slots.c.attempts, least(slots.c.attempts, LAST_ATTEMPT) + 1),
            *((slots.c[name], new[name]) for name in names),
        )
        return connection.execute(again).rowcount == 1

    def _lock_entries(
        self,
        connection: sa.Connection,
        keys: Iterable[LedgerKey],
        columns: Sequence[Expression],
        *,
        lock: bool = True,
        wait: bool = True,
    ) -> dict[LedgerKey, Sequence[Any]]:
        slots = self.tables.slots
        key = list(slots.primary_key.columns)
        rows = [one._asdict() for one in keys]
        values = self.values_of(rows, {column.name: column.type for column in key})
        look = sa.select(*key, *columns)
        look = look.where(*(column == values.c[column.name] for column in key))
        if lock:
            look = look.order_by(*key).with_for_update(skip_locked=not wait)
        return {LedgerKey(*row[:3]): row[3:] for row in connection.execute(look)}

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
        fences = [{**_fence_of(one.row), "picked_by": one.holder} for one in claims]
        types = {name: tasks.c[name].type for name in fences[0]}
        values = self.values_of(fences, types)
        mine = [tasks.c[name] == values.c[name] for name in fences[0]]
        look = sa.select(*columns).where(*mine, tasks.c.picked, *conditions)
        locked = look.order_by(*self.key_order).with_for_update(
            skip_locked=not wait, key_share=beside_guards
        )
        return connection.execute(locked).all()

    def beat(
        self, connection: sa.Connection, holder: str, claims: Sequence[Claim]
    ) -> set[Fence]:
        tasks = self.tables.tasks
        fence = [tasks.c.task_name, tasks.c.task_instance, tasks.c.version]
        rows = [claim.row for claim in claims]
        mine = tasks.c.picked_by == holder
        found = self._lock_held(
            connection, claims, fence, mine, wait=False, beside_guards=True
        )
        locked = {Fence(Key(name, instance), version) for name, instance, version in found}
        if locked:
            renewed = [row for row in rows if row.fence in locked]
            changes = [(_fence_of(row), Values()) for row in renewed]
            now = self.now(connection)
            written = self.change_each(connection, tasks, changes, last_heartbeat=now)
            expect(written, len(locked), renewed[0])
        return locked

    def finish(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> tuple[str | None, int]:
        tasks = self.tables.tasks
        unasked = (
            tasks.c.state.is_(None),
            tasks.c.wanted_due.is_(None),
            tasks.c.cancel_requested.is_(None),
        )
        key = [tasks.c.task_name, tasks.c.task_instance]
        found = self._lock_held(connection, claims, key, *unasked, wait=True)
        if found:
            gone = tasks.delete().where(_among(key, found))
            expect(connection.execute(gone).rowcount, len(found), claims[0].row)
        return self.transaction_id(connection), len(found)

    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, Transition]]
    ) -> tuple[str | None, set[Fence]]:
        return None, set()

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
        receipt = self.transaction_id(connection)
        return [
            Held(row=row_of(values), now=now, transaction_id=receipt) for values in found
        ]

    def lock(
        self, connection: sa.Connection, keys: Iterable[Key], *, wait: bool
    ) -> set[Key]:
        tasks = self.tables.tasks
        key = [tasks.c.task_name, tasks.c.task_instance]
        values = self.values_of(
            [one._asdict() for one in keys], {column.name: column.type for column in key}
        )
        look = sa.select(*key).where(*(one == values.c[one.name] for one in key))
        ordered = look.order_by(*self.key_order).with_for_update(skip_locked=not wait)
        locked = {Key(*row) for row in connection.execute(ordered)}
        if wait:
            return set()
        return {Key(*row) for row in connection.execute(look)} - locked

    # -- the ledger -------------------------------------------------------------------------------

    def mark_running(self, connection: sa.Connection, claim: Claim) -> bool:
        self.durably(connection)
        return super().mark_running(connection, claim)

    def mark_tasks(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        """Race: in the order of keys, so that two that wait for rows cannot deadlock."""
        self.durably(connection)
        ordered = sorted(claims, key=lambda claim: claim.key)
        return super().mark_tasks(connection, ordered)

    def entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], *, wait: bool
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        """Race: a row that is not returned may be locked by a user's guard. Look without a lock."""
        if not keys:
            return {}
        slots = self.tables.slots
        final = slots.c.finished.is_not(None)
        columns = [slots.c.outcome, slots.c.token, final, slots.c.aborted, slots.c.started]
        found = self._lock_entries(connection, keys, columns, wait=wait)
        absent = [key for key in keys if key not in found]
        exists: Collection[LedgerKey] = ()
        if absent and not wait:
            exists = self._lock_entries(connection, absent, [], lock=False)
        names = ("outcome", "token", "final", "aborted", "started")
        answers: dict[LedgerKey, tuple[LedgerEntry | None, str | None]] = {
            key: (LedgerEntry(**dict(zip(names, values, strict=True))), None)
            for key, values in found.items()
        }
        return answers | {key: (None, None) for key in absent if key not in exists}


#: The most rows of one insert.
CHUNK = 500


def _among(
    columns: Sequence[sa.ColumnElement[Any]], keys: Sequence[Sequence[Any]]
) -> sa.ColumnElement[bool]:
    """Whether a row has one of these keys."""
    if not keys:
        return sa.false()
    if len(columns) == 1:
        return columns[0].in_([key[0] for key in keys])
    return sa.tuple_(*columns).in_([tuple(key) for key in keys])


def _fence_of(row: Row) -> Values:
    return {**row.key._asdict(), "version": row.version}


def _needs_no_entry(row: Row, order: ClaimRequest, now: datetime) -> bool:
    return row.ledger_key is None and not is_weighed(row, now, order.weighed, order.late)


def _claimed(values: Sequence[Any], order: ClaimRequest, now: datetime) -> Row:
    """Return the row as this claim writes it, with its flaw, if any."""
    *columns, before, size = values
    row = row_of(columns)
    row.version = max(min(before, LAST_VERSION) + 1, to_micros(now))
    row.attempt = min(row.attempt, LAST_ATTEMPT) + 1
    row.picked = True
    row.picked_by = order.holder
    row.last_heartbeat = now
    row.lease = order.lease
    if row.is_plan and row.slot is not None:
        row.watermark = max(row.watermark or row.slot, row.slot)
    row.flaw = _flaw(row, size) or row.flaw
    return row


def _flaw(row: Row, size: int | None) -> str | None:
    """Why a row that was just claimed must not run; see ``FLAW`` of the other bases."""
    if size is not None and size > MOST_BYTES:
        return f"payload too large: {size} bytes, at most {PAYLOAD_LIMIT} are allowed"
    if row.version > LAST_VERSION:
        return "its version cannot rise further; give it a lower one"
    if row.attempt > LAST_ATTEMPT:
        return "its attempts cannot be counted; set attempt to 0"
    return None


class LockingTasks(TaskStatements):
    """Inserts of one-time tasks: a look for the id first, then an insert that may be refused."""

    def __init__(self, dialect: Locking) -> None:
        super().__init__(dialect)
        self._locking = dialect

    def put(
        self, connection: Joinable, name: str, wanted: Wanted, if_exists: IfExists
    ) -> Status:
        new = self._new_row(name, wanted, self.dialect.now(connection))
        key = Key(name, wanted.instance)
        for _ in range(TRIES):
            found = self.look(connection, key)
            if found is not None and if_exists in ("keep", "raise"):
                return "running" if found[0] else "exists"
            if found is not None:
                return self._change(connection, key, new, if_exists)
            if self._locking.insert_new(connection, self.tasks, new):
                return "scheduled"
        return "exists"

    def _change(
        self, connection: Joinable, key: Key, new: Values, if_exists: IfExists
    ) -> Status:
        """Change the row that has the id; a row that has just gone "exists" no more."""
        given = _Given(self.tasks, new)
        if if_exists == "replace":
            mine = [~self.tasks.c.picked, self.tasks.c.kind == Kind.TASK]
            columns: Mapping[str, Any] = self.replaced(given)
        else:
            mine = self.alive()
            columns = {**self.moved(given["execution_time"]), "priority": given["priority"]}
        change = self.tasks.update().where(*_has_key(self.tasks, key), *mine)
        read = self._locking.reading(change.values(**columns), self.tasks.c.picked)
        written = next(iter(read(connection)), None)
        return self.answer(connection, written, key, absent="exists")

    def _new_row(self, name: str, wanted: Wanted, now: datetime) -> Values:
        due = now + wanted.when.delay if wanted.when.at is None else wanted.when.at
        row: Values = {
            "task_name": name,
            "task_instance": wanted.instance,
            "task_data": wanted.data,
            "execution_time": due,
            "slot": due,
            "picked": False,
            "kind": Kind.TASK,
            "version": to_micros(now),
            "created_version": to_micros(now),
            "priority": wanted.priority,
        }
        if wanted.waits_for > 0:
            row |= {
                "state": RowState.BLOCKED,
                "parked_due": due,
                "execution_time": FOREVER,
                "waits_for": wanted.waits_for,
            }
        return row

    def put_many(
        self, connection: Joinable, name: str, wanted: Sequence[Wanted], if_exists: IfExists
    ) -> int:
        """All at once if no id is known, else row by row; in the order of ids."""
        ordered = sorted(wanted, key=lambda one: one.instance)
        if self._inserts(connection, name, ordered):
            return len(ordered)
        return [self.put(connection, name, one, if_exists) for one in ordered].count(
            "scheduled"
        )

    def put_new(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        *,
        copy: bool = False,
    ) -> None:
        if not self._inserts(connection, name, wanted):
            raise Taken

    def _inserts(self, connection: Joinable, name: str, wanted: Sequence[Wanted]) -> bool:
        now = self.dialect.now(connection)
        rows = [self._new_row(name, one, now) for one in wanted]
        chunks = [rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK)]
        try:
            with _savepoint(connection):
                for chunk in chunks:
                    insert = self.tasks.insert().inline().values(chunk)
                    connection.execute(insert)
        except Exception as error:
            if not self._locking.is_taken(error):
                raise
            return False
        return True


def _has_key(tasks: sa.Table, key: Key) -> list[sa.ColumnElement[bool]]:
    return [
        tasks.c.task_name == key.task_name,
        tasks.c.task_instance == key.task_instance,
    ]
