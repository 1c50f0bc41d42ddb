"""The engines of one database: a small pool, a connection for heartbeats alone, deadlines on all; and sure commits."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Protocol, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from slotwise.errors import DatabaseProblem, InvalidSetting
from slotwise.jobs.policies import growing_pauses
from slotwise.settings.settings import Settings
from slotwise.store.connect.database_errors import is_transient, problem, unreachable
from slotwise.store.connect.dsn import SQLITE, database_url
from slotwise.store.connect.notifications import Along, Hearing, WakeUps, channel_of
from slotwise.store.connect.postgresql_connections import CLAIMS, PostgreSQLLink

logger = logging.getLogger(__name__)


#: Poller, settler, reaper, and the control of jobs: each has a connection, none waits for another.
POOL_SIZE = 4


class Link(Protocol):
    """What differs between kinds of databases when connecting."""

    name: str
    single: bool

    @property
    def passes_words(self) -> bool: ...
    @property
    def takes_along(self) -> bool: ...
    def engine(self, role: str, size: int, overflow: int = 0) -> Engine: ...
    def migrations(self) -> Engine: ...
    def alone(self, engine: Engine, along: Along | None = None) -> AbstractContextManager[Connection]: ...
    def check(self, connection: Connection) -> None: ...
    def free_connections(self, connection: Connection) -> int | None: ...
    def durability_warning(self, connection: Connection) -> str | None: ...
    def notify(self, engine: Engine, channel: str, words: Sequence[str]) -> None: ...
    def listen(self, channel: str) -> Hearing: ...


class Database:
    """Owns the connections of one process to one database.

    Making it touches nothing: engines come at first use, and again after a fork, where the parent's are left
    alone. Of SQLite, idle connections are closed before a fork, and a child of a process that used one at that
    moment is refused: SQLite would believe in the parent's locks. Safe to share between threads.

    Raises `InvalidSetting` for a wrong address, `DriverMissing` without libpq.
    """

    def __init__(self, settings: Settings, *, pool_size: int = POOL_SIZE, overflow: int = POOL_SIZE) -> None:
        """`overflow` connections are opened for a peak and closed after it."""
        self.settings = settings
        self.url: URL = database_url(settings.database_url)
        self._link: Link = _link(self.url, settings)
        self._ear = self._link if settings.wake_up_url is None else _ear(settings.wake_up_url, settings)
        self._pool_size = pool_size
        self._overflow = overflow
        self._used_at_fork = False
        self._start_afresh()
        _databases.add(self)

    @property
    def dialect_name(self) -> str:
        """`postgresql` or `sqlite`."""
        return self._link.name

    @property
    def main(self) -> Engine:
        """The small pool for everything but heartbeats."""
        return self._engine("main", lambda: self._link.engine("main", self._pool_size, self._overflow))

    @property
    def heart(self) -> Engine:
        """One connection, for heartbeats alone: an exhausted pool costs no claim. In memory, it is `main`."""
        if self._link.single:
            return self.main
        return self._engine("heart", lambda: self._link.engine("heart", 1))

    @property
    def claims(self) -> Engine:
        """For claims, and looks for what is due, by single statements: their plans are dear to make, and so for any
        values. Behind a pooler, and in SQLite, it is `main`.
        """
        if not self._link.passes_words:
            return self.main
        return self._engine(CLAIMS, lambda: self._link.engine(CLAIMS, 1, 1))

    def alone(self, engine: Engine | None = None) -> AbstractContextManager[Connection]:
        """For a single statement, which is a transaction by itself; on the small pool, unless told otherwise."""
        return self._link.alone(engine or self.main)

    @contextmanager
    def telling(self, word: str) -> Iterator[Connection]:
        """As ``alone``, and workers are woken by this word once it is committed: in the same trip, if it is its turn.

        Where the statement fails, nobody need hear it, and somebody may.
        """
        goes_along = self._link.takes_along and self.wake_ups.takes_turn()
        with self._link.alone(self.main, (self._channel, [word]) if goes_along else None) as connection:
            yield connection
        if not goes_along:
            self.wake_ups.tell(word)

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """For calls of users: raise `DatabaseProblem`, in one line with the cure, where the driver raises its own."""
        try:
            yield
        except SQLAlchemyError as error:
            raise problem(self.url, error) from error

    def migrations(self) -> Engine:
        """An engine without a pool and without deadlines for statements. In memory, it is `main`."""
        return self.main if self._link.single else self._engine("migrations", self._link.migrations)

    @property
    def in_memory(self) -> bool:
        """One connection for everybody, who take turns; nobody else can reach this database."""
        return self._link.single

    @property
    def connections_needed(self) -> int:
        """How many connections this process may hold at its peak."""
        if self._link.single:
            return 1
        return self._pool_size + self._overflow + 1 + self.hears + 2 * self._link.passes_words

    @property
    def hears(self) -> bool:
        """Whether wake-ups can be listened for: not in SQLite, nor through a pooler."""
        return self.settings.wake_up and (self._ear is not self._link or self._link.passes_words)

    def listen(self) -> Hearing:
        """A connection of its own that hears wake-ups."""
        return self._ear.listen(self._channel)

    @property
    def _channel(self) -> str:
        return channel_of(self.settings.table_prefix)

    def notify(self, words: Sequence[str]) -> None:
        """Say these words at once, through the ordinary pool. ``wake_ups`` is for everybody else."""
        self._link.notify(self.main, self._channel, words)

    def verify(self, *, new: bool = False) -> None:
        """Connect once. ``new``: where there is no SQLite file yet, make it.

        Raises `DatabaseUnreachable` with place, reason and cure; `DatabaseProblem` if the server is too old;
        `SchemaMissing` if there is no file.
        """
        try:
            with (self.migrations() if new else self.main).connect() as connection:
                self._link.check(connection)
        except DBAPIError as error:
            raise unreachable(self.url, error) from error

    def check_capacity(self, *, processes: int = 1) -> str | None:
        """The warning, also logged, if the server has fewer free connections than so many processes need."""
        with self.main.connect() as connection:
            free = self._link.free_connections(connection)
            ours = self._open()
        needed = self.connections_needed * processes
        if free is None or free + ours >= needed:
            return None
        warning = (
            f"the database server has {free + ours} connections left, {processes} worker process(es) may take "
            f"{needed}; raise max_connections or the role's limit, start fewer processes, or use a pooler"
        )
        logger.warning(warning)
        return warning

    def durability_warning(self, connection: Connection) -> str | None:
        """One line on what a crash of the server may take back; None where every commit waits for the disk."""
        return self._link.durability_warning(connection)

    def close(self) -> None:
        """Close every connection that is not in use; a later use opens new ones."""
        if self._pid == os.getpid():
            self.wake_ups.flush()
            for engine in list(self._engines.values()):
                engine.dispose()

    def _engine(self, role: str, make: Callable[[], Engine]) -> Engine:
        if self._pid != os.getpid():
            self._forget_parent()
        with self._lock:
            if role not in self._engines:
                self._engines[role] = make()
            return self._engines[role]

    def before_fork(self) -> None:
        """SQLite counts its locks per process: a child would inherit the count, and not the locks."""
        if self._counts_locks() and self._pid == os.getpid():
            self._used_at_fork = self._in_use()
            self.close()

    def _forget_parent(self) -> None:
        """After a fork: the sockets are the parent's, and a thread of its may have held the lock then.

        Raises `DatabaseProblem` where that cannot be done without danger for the file.
        """
        if self._counts_locks() and (self._used_at_fork or self._in_use()):
            raise DatabaseProblem(
                "this process was forked while its parent used the SQLite database: fork before the worker starts, "
                "start fresh processes instead of forking, or use PostgreSQL"
            )
        inherited = list(self._engines.values())
        self._start_afresh()
        for engine in inherited:
            engine.dispose(close=False)

    def _start_afresh(self) -> None:
        #: What this process tells workers elsewhere.
        self.wake_ups = WakeUps(self.notify if self.settings.wake_up else lambda words: None)
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def _counts_locks(self) -> bool:
        return self._link.name == "sqlite" and not self._link.single

    def _in_use(self) -> bool:
        pools = [engine.pool for engine in list(self._engines.values())]
        return any(pool.checkedout() for pool in pools if isinstance(pool, QueuePool))

    def _open(self) -> int:
        pools = [engine.pool for engine in self._engines.values()]
        return sum(pool.checkedin() + pool.checkedout() for pool in pools if isinstance(pool, QueuePool))


#: All that this process has; a hook that the interpreter calls cannot be taken back, so there is one for all.
_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _before_fork() -> None:
    for database in list(_databases):
        database.before_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


def _ear(address: str, settings: Settings) -> Link:
    try:
        return _link(database_url(address), settings)
    except InvalidSetting as error:
        raise InvalidSetting(f"wake_up_url: {error}") from None


def _link(url: URL, settings: Settings) -> Link:
    if url.drivername != SQLITE:
        return PostgreSQLLink(url, settings)
    from slotwise.store.connect.sqlite_connections import (
        SQLiteLink,  # late: a megabyte that a worker on PostgreSQL can do without
    )

    return SQLiteLink(url, settings)


T = TypeVar("T")

#: Work in a transaction; returns the transaction's id (None: nothing was written) and its result.
Work: TypeAlias = Callable[[sa.Connection], "tuple[str | None, T]"]


class KnowsCommits(Protocol):
    """A dialect, as far as it knows what became of a transaction."""

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Return whether it was committed, or None while it runs."""


def commit_surely(database: Database, dialect: KnowsCommits, work: Work[T]) -> T:
    """Do ``work`` in a transaction of its own. Raise only if it certainly did not commit.

    Race: the connection breaks between COMMIT and its reply. Doing the work again under the fence would find nothing
    and take a settled claim for lost. So a new connection asks for the state of the transaction.
    """
    connection = database.main.connect()
    try:
        transaction = connection.begin()
        transaction_id, result = work(connection)
        try:
            transaction.commit()
        except DBAPIError:
            connection.invalidate()
            if transaction_id is None or not _was_committed(database, dialect, transaction_id):
                raise
    finally:
        connection.close()
    return result


def _was_committed(database: Database, dialect: KnowsCommits, transaction_id: str) -> bool:
    """Ask until the database answers."""
    for pause in growing_pauses(timedelta(milliseconds=50), timedelta(seconds=2)):
        try:
            with database.main.connect() as connection:
                verdict = dialect.committed(connection, transaction_id)
        except (DBAPIError, PoolTimeout) as error:
            if not is_transient(error):
                return False  # a failover forgot the transaction: the fence decides, and the ledger tells
            verdict = None
        if verdict is not None:
            told = "committed" if verdict else "rolled back"
            logger.warning("the reply to a commit was lost; the database says: %s", told)
            return verdict
        time.sleep(pause.total_seconds())
    raise AssertionError("growing_pauses never ends")
