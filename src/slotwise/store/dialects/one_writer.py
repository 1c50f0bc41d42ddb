"""The base for databases with one writer at a time, and SQLite.

Each transaction takes the write lock when it begins, so that reading a row locks it, and there is
nothing else to lock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from slotwise.model.clock import host_now
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.task_statements import TaskStatements
from slotwise.store.dialects.upserts import Upserting
from slotwise.store.schema.column_types import Instant

_SQLITE = sqlite.dialect()


class OneWriter(Upserting):
    """A base of dialects: right only where each transaction excludes all other writers.

    A connection for one statement must begin a transaction, too.
    """

    is_one_statement = True

    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        return TaskStatements(self)

    def transaction_id(self, connection: sa.Connection) -> str | None:
        return None

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        raise AssertionError("a commit is never in doubt")

    def delete_receipts(self, connection: sa.Connection) -> int:
        return 0

    def hurry(self, connection: sa.Connection, wait: timedelta) -> None:
        return

    def durably(self, connection: sa.Connection) -> None:
        return

    def begin_guard(self, connection: Joinable, lease: timedelta) -> None:
        """A write that finds nothing keeps other writers out as well as a lock does."""
        meta = self.tables.meta
        connection.execute(meta.update().where(sa.false()).values(value=meta.c.value))


class SQLite(OneWriter):
    """By the host's clock. Each transaction takes the write lock when it begins."""

    name = "sqlite"
    insert = staticmethod(sqlite.insert)

    def now(self, connection: Joinable) -> datetime:
        return self.clock.override() or host_now()

    def hour(self, instant: sa.ColumnElement[datetime]) -> sa.ColumnElement[datetime]:
        micros = sa.type_coerce(instant, sa.BigInteger)
        return sa.type_coerce(micros - micros % 3_600_000_000, Instant)

    def merged(
        self, document: sa.ColumnElement[object], changes: Mapping[str, object]
    ) -> sa.ColumnElement[object]:
        given = sa.literal(changes, document.type)
        return sa.func.json_patch(document, given, type_=document.type)

    def among(
        self, column: sa.ColumnElement[str], names: Collection[str]
    ) -> sa.ColumnElement[bool]:
        each = sa.func.json_each(json.dumps(list(names))).table_valued("value")
        return column.in_(sa.select(each.c.value))

    def values_of(
        self, rows: Sequence[Mapping[str, object]], types: Mapping[str, Any]
    ) -> sa.FromClause:
        """By a JSON array, with an array for each row."""
        sent = [
            [_stored(row[name], kind) for name, kind in types.items()] for row in rows
        ]
        each = sa.func.json_each(json.dumps(sent)).table_valued("value")
        columns = [
            sa.type_coerce(
                sa.func.json_extract(each.c.value, f"$[{place}]"), kind
            ).label(name)
            for place, (name, kind) in enumerate(types.items())
        ]
        return sa.select(*columns).subquery("given_rows")


def _stored(value: object, kind: Any) -> Any:
    """Return the value as the driver gets it in a column of this type."""
    store = kind.dialect_impl(_SQLITE).bind_processor(_SQLITE)
    return value if store is None else store(value)
