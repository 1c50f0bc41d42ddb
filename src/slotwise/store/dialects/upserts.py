"""Inserts that meet a row with their key, and writes that return rows, where the database has
ON CONFLICT and RETURNING.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa

from slotwise.model.records import Row
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.by_key import ByKey, Expression, least, new_entry
from slotwise.store.dialects.conditions import Conditions
from slotwise.store.dialects.port import NewRow, Reading
from slotwise.store.schema.rows import LAST_ATTEMPT

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

#: An insert that knows ON CONFLICT.
Upsert: TypeAlias = "postgresql.Insert | sqlite.Insert"


class Upserting(ByKey):
    """A helper of the bases: these statements are right with any number of writers."""

    @abstractmethod
    def insert(self, table: sa.Table, /) -> Upsert:
        """SQLAlchemy's insert that knows ON CONFLICT."""

    def enter(
        self, connection: sa.Connection, row: Row, now: datetime, strict: Collection[str]
    ) -> bool:
        """Write the ledger row of the claim's slot; return False if it may not run (again)."""
        gives_up = row.task_name in strict
        values = new_entry(row, now, gives_up=gives_up)
        slots = self.tables.slots
        entry = _entry(self.insert, slots, self.conditions, strict=gives_up)
        return connection.execute(entry, values).first() is not None

    def insert_new(
        self, connection: sa.Connection, table: sa.Table, values: Mapping[str, object]
    ) -> bool:
        """Insert a row unless its key is taken; return whether it was inserted."""
        return _has_written(
            connection,
            table,
            self.insert(table).values(**values).on_conflict_do_nothing(),
        )

    def insert_missing(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> Sequence[Any]:
        """As ``insert_new``, many rows of the same columns; return the first column of the key of
        those inserted.
        """
        insert = (
            self.insert(table)
            .on_conflict_do_nothing()
            .returning(table.primary_key.columns[0])
        )
        return connection.scalars(insert, list(rows)).all()

    def upsert(
        self,
        connection: Joinable,
        table: sa.Table,
        values: Mapping[str, object],
        again: Callable[[NewRow], Mapping[str, object]],
        where: Callable[[NewRow], sa.ColumnElement[bool]] | None = None,
    ) -> bool:
        """Insert a row, or change the one that has its key; return whether a row was written.

        Both functions get the columns of the new row.
        """
        insert = self.insert(table).values(**values)
        statement = insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_=again(insert.excluded),
            where=where and where(insert.excluded),
        )
        return _has_written(connection, table, statement)

    def replace_all(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> None:
        """Insert these rows, all of the same columns; each replaces the row that has its key."""
        insert = self.insert(table)
        key = list(table.primary_key.columns)
        again = {
            name: insert.excluded[name] for name in rows[0] if table.c[name] not in set(key)
        }
        connection.execute(
            insert.on_conflict_do_update(index_elements=key, set_=again), list(rows)
        )

    def reading(self, statement: sa.Update | sa.Delete, *columns: Expression) -> Reading:
        returning = statement.returning(*columns)

        def read(
            connection: Joinable, parameters: Mapping[str, object] | None = None
        ) -> Sequence[Sequence[Any]]:
            return connection.execute(returning, parameters).fetchall()

        return read

    def locked(self, connection: Joinable, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
        return sa.tuple_(*found.selected_columns).in_(found)


def _has_written(connection: Joinable, table: sa.Table, insert: Upsert) -> bool:
    """Not by the count of rows: not every driver of a caller's connection has one."""
    return (
        connection.execute(insert.returning(table.primary_key.columns[0])).fetchone()
        is not None
    )


@lru_cache(maxsize=16)
def _entry(
    insert: Callable[[sa.Table], Upsert],
    slots: sa.Table,
    conditions: Conditions,
    *,
    strict: bool,
) -> sa.Executable:
    """Built once: each late slot needs one, and building it costs more than sending it."""
    statement = insert(slots)
    again = {
        name: statement.excluded[name]
        for name in ("outcome", "reason", "collapsed", "token", "worker", "started")
    }
    return statement.on_conflict_do_update(
        index_elements=[slots.c.task_name, slots.c.task_instance, slots.c.slot],
        set_={
            **again,
            "attempts": least(slots.c.attempts, LAST_ATTEMPT) + 1,
            "started_before": slots.c.started,
        },
        where=conditions.may_start(gives_up=strict),
    ).returning(slots.c.token)
