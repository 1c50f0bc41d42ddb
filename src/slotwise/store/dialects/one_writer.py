"""The base for databases with one writer at a time.

Each transaction takes the write lock when it begins, so that reading a row locks it, and there is
nothing else to lock.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.clock import host_now
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.task_statements import TaskStatements
from slotwise.store.dialects.upserts import Upserting


class OneWriter(Upserting):
    """A base of dialects: right only where each transaction excludes all other writers.

    A connection for one statement must begin a transaction, too. Its clock is the host's.
    """

    is_one_statement = True

    def now(self, connection: Joinable) -> datetime:
        return self.clock.override() or host_now()

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
