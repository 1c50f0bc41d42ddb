"""Locks in ShedLock's table, on SQLite."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import URL

from slotwise import InvalidSetting
from slotwise.contrib.locks.lock_database import (
    EPOCH,
    MICROSECOND,
    LockDatabase,
    Rows,
    Values,
)


class SQLiteLocks(LockDatabase[sqlite3.Connection]):
    """SQLite's clock is the host's. Times are strings that sort like times, with microseconds."""

    def __init__(self, url: URL, table: str, timeout: timedelta) -> None:
        super().__init__(url, table, timeout)
        if not url.database or url.database == ":memory:":
            raise InvalidSetting(
                "locks need a database file that processes share; write sqlite:///file.db"
            )
        mine = "WHERE name = :name AND locked_by = :holder"
        self.acquire = (
            f"INSERT INTO {self.table} AS held (name, lock_until, locked_at, locked_by) "
            "VALUES(:name, :until, :now, :holder) ON CONFLICT (name) DO UPDATE "
            "SET lock_until = :until, locked_at = :now, locked_by = :holder "
            "WHERE (held.lock_until <= :now OR held.locked_by = :holder) AND "
            "held.locked_at < excluded.locked_at "
            "RETURNING locked_at"
        )
        self.extend = (
            f"UPDATE {self.table} SET lock_until = :until {mine} AND lock_until > :now "
            "RETURNING 1"
        )
        self.held = f"SELECT 1 FROM {self.table} {mine} AND lock_until > :now"
        self.release = (
            f"UPDATE {self.table} SET lock_until = max(:at_least, :now) {mine} "
            "RETURNING 1"
        )

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            str(self.url.database),
            timeout=self.timeout.total_seconds(),
            isolation_level=None,
            check_same_thread=False,
        )

    def execute(
        self, connection: sqlite3.Connection, statement: str, values: Values
    ) -> Rows:
        rows: Rows = connection.execute(statement, values).fetchall()
        return rows

    def columns(self, connection: sqlite3.Connection) -> dict[str, str]:
        schema, _, table = self.table.rpartition(".")
        rows = connection.execute(
            f"PRAGMA {schema + '.' if schema else ''}table_info({table})"
        ).fetchall()
        return {row[1]: row[2].lower() for row in rows}

    def cure(self, error: Exception) -> str | None:
        reason = str(error)
        if "ON CONFLICT clause does not match" in reason:
            return f"create table {self.name} with PRIMARY KEY (name)"
        if "unable to open database file" in reason:
            folder = Path(str(self.url.database)).resolve().parent
            return (
                f"check its permissions in {folder}"
                if folder.is_dir()
                else f"create the directory {folder}"
            )
        if "readonly database" in reason:
            return "make the file and its directory writable"
        if "unknown database" in reason:
            return (
                f"SQLite has no schemas; write table={self.name.rpartition('.')[2]!r}"
            )
        return (
            "name the file of a SQLite database"
            if "not a database" in reason
            else None
        )

    def is_broken(self, connection: sqlite3.Connection) -> bool:
        return False

    def values(
        self, *, name: str, holder: str, span: timedelta, locked_at: int = 0
    ) -> Values:
        now = datetime.now(UTC)
        acquired = EPOCH + timedelta(microseconds=locked_at)
        return {
            "name": name,
            "holder": holder,
            "now": _text(now),
            "until": _text(now + span),
            "at_least": _text(acquired + span),
        }

    def micros(self, locked_at: object) -> int:
        return (
            datetime.fromisoformat(str(locked_at)).replace(tzinfo=UTC) - EPOCH
        ) // MICROSECOND


def _text(instant: datetime) -> str:
    return instant.replace(tzinfo=None).isoformat(" ", "microseconds")
