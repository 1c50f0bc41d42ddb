"""Locks in ShedLock's table, on PostgreSQL or SQLite.

The statements for PostgreSQL are those of ShedLock 7.9 under ``usingDbTime()``, so that Java and
Python exclude each other. Two conditions are added to the acquisition: a repetition after a lost
reply finds its own lock, and ``locked_at``, which is the token, rises strictly, also where the
column keeps milliseconds only.

Race: ``CURRENT_TIMESTAMP`` is the start of the transaction, so each statement is a transaction of
its own. A statement that waited for a row compares it with its own, earlier time, and is refused
rather than admitted.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from sqlalchemy import URL

from slotwise import ConfigurationError, InvalidSetting, SlotwiseError
from slotwise.contrib.locks.errors import LockUnavailable
from slotwise.contrib.locks.provider import Grant, named_duration, record_of
from slotwise.spi import connect_arguments, database_url, elapsed, hide_password

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

Rows: TypeAlias = Sequence[Sequence[object]]
Values: TypeAlias = Mapping[str, object]

TABLE: Final = """\
CREATE TABLE IF NOT EXISTS {table}(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL,
    locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))"""

_TABLE_NAME: Final = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]{0,62}(?:\.[A-Za-z_][A-Za-z0-9_]{0,62})?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
#: For acquisitions, and apart from them for those who hold a lock: a crowd that waits delays no
#: renewal.
_CONNECTIONS: Final = 4


class _Closable(Protocol):
    def close(self) -> None: ...


#: A connection of the driver.
C = TypeVar("C", bound=_Closable)
#: What a statement of the driver returns.
R = TypeVar("R")


class SQLLocks:
    """Locks in the table ``shedlock`` of a PostgreSQL or SQLite database; a lock provider.

    ``url`` has the forms of slotwise's database address. ``table`` may have a schema:
    ``my_schema.shedlock``. A call that takes longer than ``timeout`` fails. The connections are
    its own and in autocommit; it opens them at the first use, at most eight. Raises
    InvalidSetting.
    """

    def __init__(
        self, url: str, *, table: str = "shedlock", timeout: timedelta | str = "5s"
    ) -> None:
        address = given_url("SQLLocks", url)
        if not isinstance(table, str) or not _TABLE_NAME.fullmatch(table):
            raise InvalidSetting(
                f"table={table!r:.80} is not a plain name; use letters, digits, _ and one dot"
            )
        span = named_duration("SQLLocks: timeout", timeout)
        if span < timedelta(milliseconds=10):
            raise InvalidSetting(f"timeout={timeout!r} is too short; write at least 10ms")
        self._address = shown(address)
        kind = _SQLite if address.get_backend_name() == "sqlite" else _PostgreSQL
        self._database: _Database[Any] = kind(address, table, span)
        self._for_attempts = _Connections[Any](self._database, _CONNECTIONS)
        self._for_holders = _Connections[Any](self._database, _CONNECTIONS)

    def __repr__(self) -> str:
        return f"SQLLocks({self._address!r})"

    def create_table(self) -> None:
        """Create ShedLock's table with ShedLock's statement, unless it exists.

        Raise ConfigurationError if that is not possible, and LockUnavailable if the server does
        not answer.
        """
        with record_of(self).answering():
            self._for_attempts.run(
                TABLE.format(table=self._database.table), {}, check=False
            )

    def acquire(self, name: str, holder: str, at_most_for: timedelta) -> Grant | None:
        """Take the lock if it is free, has expired, or has this holder already. Return None if
        another one has it.
        """
        values = self._database.values(name=name, holder=holder, span=at_most_for)
        try:
            rows, _ = self._for_attempts.run(self._database.acquire, values)
        except Busy:
            return None
        if not rows:
            return None
        locked_at = self._database.micros(rows[0][0])
        return Grant(name=name, holder=holder, token=locked_at, locked_at=locked_at)

    def extend(self, grant: Grant, at_most_for: timedelta) -> bool:
        """Set the end to now plus this duration, if the grant's holder has the lock and it has not
        expired.
        """
        rows, _ = self._for_holders.run(
            self._database.extend, self._values(grant, at_most_for)
        )
        return bool(rows)

    def is_held(self, grant: Grant) -> bool:
        """Return whether the grant's holder has the lock and it has not expired."""
        rows, _ = self._for_holders.run(
            self._database.held, self._values(grant, timedelta(0))
        )
        return bool(rows)

    def release(self, grant: Grant, at_least_for: timedelta) -> bool:
        """End the lock now, or this long after its acquisition if that is later. Return False if
        it has another holder.

        After a lost reply, a lock that has another holder by now was released by the first
        attempt.
        """
        rows, was_repeated = self._for_holders.run(
            self._database.release, self._values(grant, at_least_for)
        )
        return bool(rows) or was_repeated

    def close(self) -> None:
        """Close its connections; the next call opens new ones."""
        self._for_attempts.close()
        self._for_holders.close()

    def _values(self, grant: Grant, span: timedelta) -> Values:
        return self._database.values(
            name=grant.name, holder=grant.holder, span=span, locked_at=grant.locked_at
        )


def given_url(taker: str, url: object) -> URL:
    """Return the address. Raise InvalidSetting; ``taker`` is what was called with it."""
    if not isinstance(url, str) or not url.strip():
        raise InvalidSetting(
            f"{taker}({url!r:.40}): pass a database URL, e.g. postgresql://user@host/database"
        )
    return database_url(url)


def _quoted(table: str) -> str:
    """Return the name as a server reads it without quotes, in lower case; with them, it may be a
    keyword.
    """
    return ".".join(f'"{part}"' for part in table.lower().split("."))


def shown(url: URL) -> str:
    """Return the address without its password."""
    return hide_password(url.render_as_string(hide_password=True))


class Busy(Exception):
    """Another transaction has the row locked, or won a race for it."""


class _Database(ABC, Generic[C]):
    """What differs between the databases. Every statement returns a row if it found or changed
    one.
    """

    acquire: str
    extend: str
    held: str
    release: str

    def __init__(self, url: URL, table: str, timeout: timedelta) -> None:
        self.url = url
        self.name = table
        self.table = _quoted(table)
        self.timeout = timeout
        #: Of the columns, once they are known.
        self.types: dict[str, str] = {}
        self._is_checked = False

    @abstractmethod
    def connect(self) -> C:
        """Open a connection in autocommit."""

    @abstractmethod
    def execute(self, connection: C, statement: str, values: Values) -> Rows:
        """Run a statement. Raise Busy where another transaction is in the way."""

    @abstractmethod
    def columns(self, connection: C) -> dict[str, str]:
        """Return the table's columns with their types; none if there is no table."""

    @abstractmethod
    def is_broken(self, connection: C) -> bool:
        """Return whether the connection cannot be used any more."""

    @abstractmethod
    def values(
        self, *, name: str, holder: str, span: timedelta, locked_at: int = 0
    ) -> Values:
        """Return the arguments of a statement."""

    @abstractmethod
    def micros(self, locked_at: object) -> int:
        """Return a ``locked_at`` that a statement returned, in microseconds since 1970."""

    @abstractmethod
    def cure(self, error: Exception) -> str | None:
        """Return the cure of a failure that no repetition cures; None for an outage."""

    def check(self, connection: C) -> None:
        """Reject a table that ShedLock's statements cannot use. Looks once. Raise
        ConfigurationError.
        """
        if self._is_checked:
            return
        found = self.columns(connection)
        if missing := {"name", "lock_until", "locked_at", "locked_by"} - found.keys():
            lack = f"has no column {min(missing)}" if found else "does not exist"
            raise ConfigurationError(
                f"table {self.name} {lack} in {shown(self.url)}; create it with "
                "create_table() or ShedLock's statement"
            )
        for column in ("lock_until", "locked_at"):
            if "with time zone" in found[column]:
                raise ConfigurationError(
                    f"column {column} of table {self.name} is {found[column]}: "
                    "ShedLock writes UTC without a zone; "
                    f"run ALTER TABLE {self.table} ALTER COLUMN {column} TYPE timestamp "
                    f"USING {column} AT TIME ZONE 'UTC'"
                )
        self.types = found
        self._is_checked = True


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


class _PostgreSQL(_Database["Connection[TupleRow]"]):
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
        connection: Connection[TupleRow] = impatient(self.timeout.total_seconds()).connect(
            **arguments, autocommit=True, prepare_threshold=None
        )
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
        def wait(self, gen: Generator[int, int, R], *args: object, **kwargs: object) -> R:
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


class _SQLite(_Database[sqlite3.Connection]):
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
            f"UPDATE {self.table} SET lock_until = max(:at_least, :now) {mine} RETURNING 1"
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
            return f"SQLite has no schemas; write table={self.name.rpartition('.')[2]!r}"
        return "name the file of a SQLite database" if "not a database" in reason else None

    def is_broken(self, connection: sqlite3.Connection) -> bool:
        return False

    def values(
        self, *, name: str, holder: str, span: timedelta, locked_at: int = 0
    ) -> Values:
        now = datetime.now(UTC)
        acquired = _EPOCH + timedelta(microseconds=locked_at)
        return {
            "name": name,
            "holder": holder,
            "now": _text(now),
            "until": _text(now + span),
            "at_least": _text(acquired + span),
        }

    def micros(self, locked_at: object) -> int:
        return (
            datetime.fromisoformat(str(locked_at)).replace(tzinfo=UTC) - _EPOCH
        ) // _MICROSECOND


def _text(instant: datetime) -> str:
    return instant.replace(tzinfo=None).isoformat(" ", "microseconds")


class _Connections(Generic[C]):
    """Up to ``size`` connections, opened when needed and kept."""

    def __init__(self, database: _Database[C], size: int) -> None:
        self._database = database
        self._places = threading.BoundedSemaphore(size)
        self._mutex = threading.Lock()
        self._idle: list[C] = []
        self._inherited: list[C] = []
        self._pid = os.getpid()

    def run(
        self, statement: str, values: Values, *, check: bool = True
    ) -> tuple[Rows, bool]:
        """Run a statement; once more on a new connection if a kept one turns out to be dead.

        Return its rows, and whether it was repeated: the first attempt may have been carried out.
        Raise ConfigurationError for a failure that no repetition cures.
        """
        try:
            return self._run_or_repeat(statement, values, check)
        except (SlotwiseError, Busy):
            raise
        except Exception as error:
            cure = self._database.cure(error)
            if cure is None:
                raise
            reason = str(error).splitlines()[0].rstrip(": ")
            raise ConfigurationError(
                f"{shown(self._database.url)}: {reason}; {cure}"
            ) from error

    def _run_or_repeat(
        self, statement: str, values: Values, check: bool
    ) -> tuple[Rows, bool]:
        with self._place():
            connection = self._take()
            if connection is not None:
                try:
                    return self._run(connection, statement, values, check), False
                except TimeoutError:
                    raise
                except Exception:
                    if not self._database.is_broken(connection):
                        raise
                self.close()  # the server has gone away: so have the others
            return self._run(
                self._database.connect(), statement, values, check
            ), connection is not None

    def close(self) -> None:
        """Close the idle ones."""
        with self._mutex:
            idle = self._idle
            self._idle = []
        for connection in idle:
            with suppress(Exception):
                connection.close()

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(timeout=self._database.timeout.total_seconds()):
            raise LockUnavailable(
                f"all connections to {shown(self._database.url)} are busy"
            )
        try:
            yield
        finally:
            self._places.release()

    def _take(self) -> C | None:
        with self._mutex:
            if self._pid != os.getpid():
                # A forked child shares the parent's sockets: it must neither use nor close them.
                self._pid = os.getpid()
                self._inherited = self._idle
                self._idle = []
            return self._idle.pop() if self._idle else None

    def _run(self, connection: C, statement: str, values: Values, check: bool) -> Rows:
        try:
            if check:
                self._database.check(connection)
            rows = self._database.execute(connection, statement, values)
        finally:
            if self._database.is_broken(connection):
                connection.close()
            else:
                with self._mutex:
                    self._idle.append(connection)
        return rows
