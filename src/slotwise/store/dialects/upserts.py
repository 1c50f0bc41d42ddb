"""Inserts that meet a row with their key, and writes that return rows, where the database has
ON CONFLICT and RETURNING.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa

from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.by_key import ByKey
from slotwise.store.dialects.port import NewRow, Reading
from slotwise.store.schema.tables import Expression

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

#: An insert that knows ON CONFLICT.
Upsert: TypeAlias = "postgresql.Insert | sqlite.Insert"


class Upserting(ByKey):
    """A helper of the bases: these statements are right with any number of writers."""

    @abstractmethod
    def insert(self, table: sa.Table, /) -> Upsert:
        """SQLAlchemy's insert that knows ON CONFLICT."""

    def insert_new(
        self, connection: Joinable, table: sa.Table, values: Mapping[str, object]
    ) -> bool:
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
        insert = self.insert(table).on_conflict_do_nothing()
        first = insert.returning(table.primary_key.columns[0])
        return connection.scalars(first, list(rows)).all()

    def upsert(
        self,
        connection: Joinable,
        table: sa.Table,
        values: Mapping[str, object],
        again: Callable[[NewRow], Mapping[str, object]],
        where: Callable[[NewRow], sa.ColumnElement[bool]] | None = None,
    ) -> bool:
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
        insert = self.insert(table)
        key = list(table.primary_key.columns)
        again = {
            name: insert.excluded[name]
            for name in rows[0]
            if table.c[name] not in set(key)
        }
        connection.execute(
            insert.on_conflict_do_update(index_elements=key, set_=again), list(rows)
        )

    def reading(
        self, statement: sa.Update | sa.Delete, *columns: Expression
    ) -> Reading:
        returning = statement.returning(*columns)

        def read(
            connection: Joinable, parameters: Mapping[str, object] | None = None
        ) -> Sequence[Sequence[Any]]:
            return connection.execute(returning, parameters).fetchall()

        return read

    def locked(
        self, connection: Joinable, found: sa.Select[Any]
    ) -> sa.ColumnElement[bool]:
        return sa.tuple_(*found.selected_columns).in_(found)


def _has_written(connection: Joinable, table: sa.Table, insert: Upsert) -> bool:
    """Not by the count of rows: not every driver of a caller's connection has one."""
    return (
        connection.execute(insert.returning(table.primary_key.columns[0])).fetchone()
        is not None
    )
