"""The statements of SQLite, by the base ``OneWriter``."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from slotwise.spi import OneWriter

_SQLITE = sqlite.dialect()


class SQLite(OneWriter):
    """By the host's clock. Each transaction takes the write lock when it begins."""

    name = "sqlite"
    insert = staticmethod(sqlite.insert)

    def hour(self, instant: sa.ColumnElement[datetime]) -> sa.ColumnElement[datetime]:
        micros = sa.type_coerce(instant, sa.BigInteger)
        return sa.type_coerce(micros - micros % 3_600_000_000, instant.type)

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
