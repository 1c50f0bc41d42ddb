"""The base for databases with many writers.

There is no RETURNING, no write inside WITH and no ON CONFLICT: an insert catches the conflict of
its key under a savepoint. A row of ``receipts`` says whether a transaction was
committed. Nothing is notified: workers poll. It
keeps the laws, and owes half the speed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.model.records import IfExists, Key, Row, Wanted
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.connect.database_errors import is_locked
from slotwise.store.dialects.by_key import ByKey
from slotwise.store.dialects.port import NewRow, Reading
from slotwise.store.dialects.row_values import (
    TRIES,
    GivenValues,
    Values,
    among_keys,
    new_entry,
)
from slotwise.store.dialects.task_statements import Taken, TaskStatements
from slotwise.store.schema.tables import Expression

#: The most rows of one insert.
CHUNK = 500
#: How long a receipt is kept: no caller asks for it later.
RECEIPT_KEPT = timedelta(days=1)

#: By statements: a caller's connection may be of any driver.
_SAVEPOINT = sa.text("SAVEPOINT slotwise_insert")
_ROLLBACK = sa.text("ROLLBACK TO SAVEPOINT slotwise_insert")
_RELEASE = sa.text("RELEASE SAVEPOINT slotwise_insert")


class Locking(ByKey):
    """A base of dialects. A database adds the abstract methods."""

    # -- what a database calls in its own way -----------------------------------------------------

    @abstractmethod
    def is_taken(self, error: Exception) -> bool:
        """Return whether an insert has failed because its key, or another unique one, has a
        row.
        """

    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        """Nothing is notified."""
        return LockingTasks(self)

    # -- transactions -----------------------------------------------------------------------------

    def transaction_id(self, connection: sa.Connection) -> str | None:
        receipt = uuid4().hex
        connection.execute(self._new_receipt(connection, receipt, RECEIPT_KEPT))
        return receipt

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Race: the transaction may still run. An insert of its receipt waits for its end: then it
        is taken, or it was rolled back. Beyond the lock timeout it is undecided.
        """
        try:
            connection.execute(
                self._new_receipt(connection, transaction_id, timedelta(0))
            )
        except DBAPIError as error:
            if self.is_taken(error):
                return True
            if is_locked(error):
                return None
            raise
        finally:
            connection.rollback()
        return False

    def _new_receipt(
        self, connection: sa.Connection, receipt: str, kept: timedelta
    ) -> sa.Insert:
        now = self.now(connection)
        new = self.tables.receipts.insert().inline()
        return new.values(receipt=receipt, created=now, expires=now + kept)

    def delete_receipts(self, connection: sa.Connection) -> int:
        receipts = self.tables.receipts
        old = receipts.delete().where(receipts.c.expires < self.now(connection))
        return connection.execute(old).rowcount

    # -- rows of any table ------------------------------------------------------------------------

    def insert_all(
        self,
        connection: Joinable,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> bool:
        """Insert these rows, all of the same columns, or none, if a key is taken.

        Races: an insert of the same key that is not committed is waited for. Keys are in order, so
        that two inserts that meet in several cannot deadlock.
        """
        ordered = [dict(row) for row in _by_key(table, rows)]
        chunks = [ordered[at : at + CHUNK] for at in range(0, len(ordered), CHUNK)]
        connection.execute(_SAVEPOINT)
        try:
            for chunk in chunks:
                connection.execute(table.insert().inline().values(chunk))
        except Exception as error:
            is_taken = self.is_taken(error)
            # After another error there may be no savepoint any more, or no connection.
            if is_taken or is_locked(error):
                connection.execute(_ROLLBACK)
            if not is_taken:
                raise
            return False
        connection.execute(_RELEASE)
        return True

    def insert_new(
        self, connection: Joinable, table: sa.Table, values: Mapping[str, object]
    ) -> bool:
        return self.insert_all(connection, table, [values])

    def insert_missing(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> Sequence[Any]:
        added = rows
        if not self.insert_all(connection, table, rows):
            added = [row for row in rows if self.insert_new(connection, table, row)]
        first = next(iter(table.primary_key.columns)).name
        return [row[first] for row in added]

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
        new = GivenValues(table, values)
        mine = _has_key_of(table, values)
        # MySQL assigns from left to right.
        changes = [(table.c[name], value) for name, value in again(new).items()]
        change = table.update().where(*mine).ordered_values(*changes)
        if where is not None:
            change = change.where(where(new))
        key = sa.select(*table.primary_key.columns)
        query = key.where(*mine).with_for_update()
        for _ in range(TRIES):
            if connection.execute(query).fetchone() is not None:
                return connection.execute(change).rowcount == 1
            if self.insert_new(connection, table, values):
                return True
        # Raises what it meets.
        connection.execute(table.insert().inline().values(**values))
        return True

    def replace_all(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> None:
        key = [column.name for column in table.primary_key.columns]
        replaced = [name for name in rows[0] if name not in key]
        for row in _by_key(table, rows):
            self.upsert(
                connection,
                table,
                row,
                lambda new: {name: new[name] for name in replaced},
            )

    def reading(
        self, statement: sa.Update | sa.Delete, *columns: Expression
    ) -> Reading:
        """Lock the rows, write them by key, and read them: deleted ones before."""
        table = statement.table
        assert isinstance(table, sa.Table)
        key = list(table.primary_key.columns)
        is_deletion = isinstance(statement, sa.Delete)
        before = columns if is_deletion else ()
        query = sa.select(*key, *before).order_by(*key).with_for_update()
        if statement.whereclause is not None:
            query = query.where(statement.whereclause)

        def read(
            connection: Joinable, parameters: Mapping[str, object] | None = None
        ) -> Sequence[Sequence[Any]]:
            found = connection.execute(query, parameters).fetchall()
            if not found:
                return []
            mine = among_keys(key, [row[: len(key)] for row in found])
            connection.execute(statement.where(mine), parameters)
            if is_deletion:
                return [row[len(key) :] for row in found]
            again = sa.select(*columns).where(mine).order_by(*key)
            return connection.execute(again, parameters).fetchall()

        return read

    def locked(
        self, connection: Joinable, found: sa.Select[Any]
    ) -> sa.ColumnElement[bool]:
        keys = connection.execute(found.with_for_update(skip_locked=True)).fetchall()
        return among_keys(list(found.selected_columns), keys)

    def insert_turn(
        self, connection: sa.Connection, row: Mapping[str, object]
    ) -> bool:
        """Beyond the lock timeout, the second has no turn."""
        try:
            return super().insert_turn(connection, row)
        except DBAPIError as error:
            if not is_locked(error):
                raise
            return False

    # -- claims -----------------------------------------------------------------------------------

    def enter_slots(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        """Race: between look and insert another transaction may enter the slot of the same key, as
        one with a row that was restored. Then the batch is entered row by row.
        """
        asked = {row.ledger_key: row for row in reversed(rows) if row.ledger_key}
        found = self.entries(connection, list(asked), wait=True)
        new = [row for key, row in asked.items() if found[key] is None]
        values = [new_entry(row, now, gives_up=row.task_name in strict) for row in new]
        entered: set[Key] = set()
        if new and self.insert_all(connection, self.tables.slots, values):
            entered = {row.key for row in new}
        others = [row for row in asked.values() if row.key not in entered]
        return entered | super().enter_slots(connection, others, now, strict)


class LockingTasks(TaskStatements):
    """Chunks in batches, if no id is known."""

    def __init__(self, dialect: Locking) -> None:
        super().__init__(dialect)
        self._insert_all = dialect.insert_all

    def put_many(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        if_exists: IfExists,
    ) -> int:
        if self._insert_all(
            connection, self.tasks, self._new_rows(connection, name, wanted)
        ):
            return len(wanted)
        return super().put_many(connection, name, wanted, if_exists)

    def put_new(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        *,
        copy: bool = False,
    ) -> None:
        new = self._new_rows(connection, name, wanted)
        if not self._insert_all(connection, self.tasks, new):
            raise Taken

    def _new_rows(
        self, connection: Joinable, name: str, wanted: Sequence[Wanted]
    ) -> list[Values]:
        """Return rows of the same columns: of a chunk all wait for other tasks, or none."""
        now = self.dialect.now(connection)
        return [self.new_row(name, one, now) for one in wanted]


def _has_key_of(
    table: sa.Table, values: Mapping[str, object]
) -> list[sa.ColumnElement[bool]]:
    """Whether a row has the key of these values."""
    key = table.primary_key.columns
    return [column == sa.literal(values[column.name], column.type) for column in key]


def _by_key(
    table: sa.Table, rows: Sequence[Mapping[str, object]]
) -> list[Mapping[str, object]]:
    """In the order of keys, in which other transactions lock them as well."""
    key = [column.name for column in table.primary_key.columns]
    return sorted(rows, key=lambda row: tuple(str(row[name]) for name in key))
