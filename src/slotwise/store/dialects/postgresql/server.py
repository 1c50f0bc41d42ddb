"""What PostgreSQL's server does in its own way, whatever the statements of a dialect are."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY

from slotwise.model.clock import Clock
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.by_key import ByKey
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import Expression, Tables

_NOW = sa.text("SELECT pg_catalog.statement_timestamp()")


Sent = TypeVar("Sent")


def _sent(value: Sent, kind: sa.types.TypeEngine[Sent]) -> sa.ColumnElement[Sent]:
    """Return a parameter that PostgreSQL takes for this type."""
    return sa.cast(sa.literal(value, kind), kind)


class PostgreSQLServer(ByKey):
    """A helper of dialects on PostgreSQL."""

    name = "postgresql"

    def __init__(self, tables: Tables, clock: Clock) -> None:
        super().__init__(tables, clock)
        # A database's own language may sort in another way.
        self.key_order = (
            sa.collate(tables.tasks.c.task_name, "C"),
            sa.collate(tables.tasks.c.task_instance, "C"),
        )

    def now(self, connection: Joinable) -> datetime:
        if (override := self.clock.override()) is not None:
            return override
        found = connection.execute(_NOW).fetchone()
        assert found is not None
        return cast("datetime", utc(found[0]))

    def hurry(self, connection: sa.Connection, wait: timedelta) -> None:
        limit = wait // timedelta(milliseconds=1)
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {limit}")

    def durably(self, connection: sa.Connection) -> None:
        """Other levels than ``off`` are the admin's choice and stay."""
        level = connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
        if level == "off":
            connection.exec_driver_sql("SET LOCAL synchronous_commit = on")

    def hour(self, instant: sa.ColumnElement[datetime]) -> sa.ColumnElement[datetime]:
        begun = sa.func.pg_catalog.date_trunc("hour", instant, "UTC", type_=Instant())
        return sa.cast(begun, Instant)

    def merged(
        self, document: sa.ColumnElement[object], changes: Mapping[str, object]
    ) -> sa.ColumnElement[object]:
        both = sa.cast(document, postgresql.JSONB).concat(
            sa.cast(changes, postgresql.JSONB)
        )
        return sa.cast(both, document.type)

    def among(
        self, column: sa.ColumnElement[str], names: Collection[str]
    ) -> sa.ColumnElement[bool]:
        return column == sa.any_(sa.cast(list(names), ARRAY(sa.Text)))

    def arrays_of(
        self, table: sa.Table, rows: Sequence[Mapping[str, object]]
    ) -> sa.Select[tuple[object, ...]]:
        """Return a query of rows of a table, all of the same columns, in their order. A column
        that differs from row to row is sent as an array, any other as one value.
        """
        arrays = dict[str, Expression]()
        values = list[Expression]()
        for name in rows[0]:
            kind = table.c[name].type
            given = [row[name] for row in rows]
            if given.count(given[0]) == len(given):
                values.append(_sent(given[0], kind))
            else:
                arrays[name] = _sent(given, ARRAY(kind))
                values.append(sa.literal_column(f"given_rows.{name}", kind))
        each = sa.func.unnest(*arrays.values()).table_valued(*arrays)
        return sa.select(*values).select_from(each.render_derived(name="given_rows"))

    def values_of(
        self, rows: Sequence[Mapping[str, object]], types: Mapping[str, Any]
    ) -> sa.FromClause:
        """By a JSON document; instants travel as text."""
        sent = sa.literal(json.dumps(list(rows), default=str), sa.Text)
        titles = [sa.column(name, kind) for name, kind in types.items()]
        given = sa.func.pg_catalog.jsonb_to_recordset(sa.cast(sent, postgresql.JSONB))
        rows_of = given.table_valued(*titles)
        return rows_of.render_derived(name="given_rows", with_types=True)
