"""SQLite (3.35 or newer): one host, one writer at a time, the host's clock is the database's.

The portable form under BEGIN IMMEDIATE, which the Database sees to: reading is locking.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from slotwise.model.clock import Clock, host_now
from slotwise.model.records import Key
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.portable import Portable
from slotwise.store.dialects.task_statements import TaskStatements
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.tables import Tables


class SQLite(Portable):
    """What one writer at a time makes simple."""

    name: ClassVar[str] = "sqlite"
    has_fast_finish: ClassVar[bool] = False

    def __init__(self, tables: Tables, clock: Clock) -> None:
        super().__init__(tables, clock, insert, lambda connection: clock.override() or host_now())

    @property
    def by_row(self) -> Portable:
        return self

    def ago(self, connection: Joinable, span: timedelta = timedelta(0)) -> sa.ColumnElement[datetime]:
        return sa.literal(self.now(connection) - span, Instant)

    def transaction_id(self, connection: sa.Connection) -> str | None:
        return None

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        raise NotImplementedError

    def locked(self, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
        return sa.tuple_(*found.selected_columns).in_(found)

    def alone(self, connection: sa.Connection, name: str) -> bool:
        return True

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        """No-op."""

    def lock(self, connection: sa.Connection, keys: Iterable[Key], *, wait: bool) -> set[Key]:
        return set()

    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        return TaskStatements(self)
