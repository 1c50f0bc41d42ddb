"""The base ``Locking`` on PostgreSQL: it proves the races of that base. Processes that tests start
import it from this directory.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.connect.database_errors import sqlstate
from slotwise.store.dialects.locking import Locking, LockingTasks
from slotwise.store.dialects.postgresql.server import PostgreSQLServer
from slotwise.store.dialects.task_statements import TaskStatements

_UNIQUE_VIOLATION = "23505"


class LockingPostgreSQL(Locking, PostgreSQLServer):
    """PostgreSQL by the portable verbs."""

    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        return LockingPostgreSQLTasks(self)

    def begin_guard(self, connection: Joinable, lease: timedelta) -> None:
        text = f"{max(int(lease.total_seconds() * 1000), 1)}ms"
        setting = "idle_in_transaction_session_timeout"
        connection.execute(
            sa.select(sa.func.pg_catalog.set_config(setting, text, True))
        )

    def is_taken(self, error: Exception) -> bool:
        return sqlstate(error) == _UNIQUE_VIOLATION


class LockingPostgreSQLTasks(LockingTasks):
    """Inserts of one-time tasks; the trigger of an adopted table allows their deletion."""

    def may_delete(self) -> sa.ColumnElement[bool]:
        return sa.func.pg_catalog.set_config("slotwise.delete", "on", True) == "on"
