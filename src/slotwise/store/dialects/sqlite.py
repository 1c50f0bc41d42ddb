"""SQLite: the portable form, its dialect of SQL, and the host's clock."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from slotwise.model.clock import host_now
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.port import Dialect


class SQLite(Dialect):
    """One writer at a time: each transaction takes the write lock when it begins."""

    name = "sqlite"
    insert = staticmethod(insert)

    def now(self, connection: Joinable) -> datetime:
        return self.clock.override() or host_now()

    def merged(self, document: sa.ColumnElement[object], changes: Mapping[str, object]) -> sa.ColumnElement[object]:
        return sa.func.json_patch(document, sa.literal(changes, document.type), type_=document.type)

    def among(self, column: sa.ColumnElement[str], names: Collection[str]) -> sa.ColumnElement[bool]:
        each = sa.func.json_each(json.dumps(list(names))).table_valued("value")
        return column.in_(sa.select(each.c.value))
