"""Locks in ShedLock's table, on PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Generator
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import URL

from slotwise.contrib.locks.lock_database import (
    Busy,
    LockDatabase,
    Rows,
    Values,
)
from slotwise.spi import connect_arguments, elapsed

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

#: What a statement of the driver returns.
R = TypeVar("R")


_NOW = "pg_catalog.timezone('utc', CURRENT_TIMESTAMP)"
_UNTIL = f"{_NOW} + pg_catalog.make_interval(secs => %(seconds)s)"
_AT_LEAST = "locked_at + pg_catalog.make_interval(secs => %(seconds)s)"


# A role may have other defaults: SERIALIZABLE would fail under contention, and without
# synchronous_commit a crash of the server could forget a lock that is held.
_SESSION = """\
SELECT pg_catalog.set_config('default_transaction_isolation', 'read committed', false),
    pg_catalog.set_config('statement_timeout', %(limit)s, false),
    pg_catalog.set_config('lock_timeout', %(limit)s, false),
    pg_catalog.set_config('synchronous_commit',
        CASE pg_catalog.current_setting('synchronous_commit') WHEN 'off' THEN 'on'
        ELSE pg_catalog.current_setting('synchronous_commit') END, false)"""


#: What a server writes when it refuses a connection for good; the driver has no code for it.
_REFUSALS: Final = (
    ('database ".*" does not exist', "create the database, or correct its name"),
    (
        'role ".*" does not exist|authentication failed|no password supplied',
        "correct the user or the password",
    ),
    ("no pg_hba.conf entry", "allow this host and user in pg_hba.conf"),
    ("permission denied for database", "GRANT CONNECT ON DATABASE to the user"),
)


def refusal(error: Exception) -> str | None:
    """Return the cure of an address with which no attempt can connect; None for an outage."""
    import psycopg

    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        return "correct the options of the address"
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return next(
            (cure for words, cure in _REFUSALS if re.search(words, str(error))), None
        )
    return None


class PostgreSQLLocks(LockDatabase["Connection[TupleRow]"]):
    def __init__(self, url: URL, table: str, timeout: timedelta) -> None:
        super().__init__(url, table, timeout)
        mine = "WHERE name = %(name)s AND locked_by = %(holder)s"
        self.acquire = (
            f"INSERT INTO {self.table} AS held (name, lock_until, locked_at, locked_by) "
            f"VALUES(%(name)s, {_UNTIL}, {_NOW}, %(holder)s) ON CONFLICT (name) DO UPDATE "
            f"SET lock_until = {_UNTIL}, locked_at = {_NOW}, locked_by = %(holder)s "
            f"WHERE held.name = %(name)s AND (held.lock_until <= {_NOW} OR "
            "held.locked_by = %(holder)s) "
            "AND held.locked_at < excluded.locked_at "
            "RETURNING (extract(epoch FROM locked_at) * 1000000.0)::bigint"
        )
        self.extend = (
            f"UPDATE {self.table} SET lock_until = {_UNTIL} {mine} AND lock_until > "
            f"{_NOW} RETURNING 1"
        )
        self.held = f"SELECT 1 FROM {self.table} {mine} AND lock_until > {_NOW}"
        self.release = (
            f"UPDATE {self.table} SET lock_until = CASE WHEN {_AT_LEAST} > {_NOW} "
            f"THEN {_AT_LEAST} ELSE {_NOW} END "
            f"{mine} RETURNING 1"
        )

    def connect(self) -> Connection[TupleRow]:
        milliseconds = max(round(self.timeout.total_seconds() * 1000), 1)
        arguments: dict[str, object] = {
            "connect_timeout": max(round(milliseconds / 1000), 2),
            "tcp_user_timeout": milliseconds,
            "application_name": "slotwise locks",
            **connect_arguments(self.url),
        }
        # No prepared statements: they would not survive a transaction pooler.
        connection: Connection[TupleRow] = impatient(
            self.timeout.total_seconds()
        ).connect(**arguments, autocommit=True, prepare_threshold=None)
        try:
            connection.execute(_SESSION, {"limit": str(milliseconds)})
        except BaseException:
            connection.close()
            raise
        return connection

    def execute(
        self, connection: Connection[TupleRow], statement: str, values: Values
    ) -> Rows:
        from psycopg import errors

        try:
            cursor = connection.execute(statement, values)
        except (
            errors.SerializationFailure,
            errors.DeadlockDetected,
            errors.LockNotAvailable,
        ) as error:
            raise Busy from error
        except TimeoutError:
            connection.close()  # its answer may still come
            raise
        rows: Rows = cursor.fetchall() if cursor.description else []
        return rows

    def columns(self, connection: Connection[TupleRow]) -> dict[str, str]:
        rows = connection.execute(
            "SELECT attname, pg_catalog.format_type(atttypid, atttypmod) "
            "FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass(%s) "
            "AND attnum > 0 AND NOT attisdropped",
            (self.table,),
        )
        return dict(rows.fetchall())

    def cure(self, error: Exception) -> str | None:
        from psycopg import errors

        if isinstance(error, errors.InvalidSchemaName):
            return f"create it first: CREATE SCHEMA {self.table.partition('.')[0]}"
        if isinstance(error, errors.InsufficientPrivilege):
            if "permission denied for schema" in str(error):
                return (
                    "GRANT USAGE, CREATE ON SCHEMA to the user of the address, or "
                    "create the table as its owner"
                )
            return (
                "grant the user of the address what it lacks, e.g. SELECT, INSERT, "
                f"UPDATE ON {self.table}"
            )
        if isinstance(error, errors.InvalidColumnReference):
            return f"run ALTER TABLE {self.table} ADD PRIMARY KEY (name)"
        if isinstance(error, errors.StringDataRightTruncation):
            narrow = [
                name
                for name in ("name", "locked_by")
                if self.types.get(name, "?") in str(error)
            ]
            columns = " and ".join(narrow) or "name or locked_by"
            return f"widen {columns} of table {self.name}: name varchar(64), locked_by varchar(255)"
        return refusal(error)

    def is_broken(self, connection: Connection[TupleRow]) -> bool:
        return bool(connection.closed or connection.broken)

    def values(
        self, *, name: str, holder: str, span: timedelta, locked_at: int = 0
    ) -> Values:
        del locked_at
        return {"name": name, "holder": holder, "seconds": span.total_seconds()}

    def micros(self, locked_at: object) -> int:
        return int(str(locked_at))


@cache
def impatient(seconds: float) -> Any:
    """Return psycopg's connection with a limit for each statement: a server that is frozen
    enforces none of its own.
    """

    import psycopg  # late: SQLite needs none
    from psycopg.rows import TupleRow

    class Impatient(psycopg.Connection[TupleRow]):
        def wait(
            self, gen: Generator[int, int, R], *args: object, **kwargs: object
        ) -> R:
            limited = _limited(gen, elapsed() + seconds, seconds)
            return super().wait(limited, *args, **kwargs)  # type: ignore[arg-type]

    return Impatient


def _limited(
    gen: Generator[int, int, R], end: float, seconds: float
) -> Generator[int, int, R]:
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and elapsed() > end:
                raise TimeoutError(f"no answer within {seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as finished:
        answer: R = finished.value
        return answer
