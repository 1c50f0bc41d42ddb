"""The connections of a process: a small pool, a connection for heartbeats alone, deadlines on all;
and sure commits.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool

from slotwise.errors import CommitUnknown, DatabaseProblem, InvalidSetting, located
from slotwise.jobs.policies import growing_pauses
from slotwise.model.clock import elapsed
from slotwise.model.plugged_in import plugged_in
from slotwise.settings.settings import Settings
from slotwise.store.connect.database_errors import is_transient, problem, unreachable
from slotwise.store.connect.dsn import database_url
from slotwise.store.connect.notifications import Along, Hearing, WakeUps, channel_of
from slotwise.store.connect.postgresql_connections import PostgreSQLLink
from slotwise.store.schema.column_types import document

logger = logging.getLogger(__name__)

#: Poller, settler, reaper and operations: each has a connection, so none waits for another.
POOL_SIZE = 4


class Link(Protocol):
    """What differs between kinds of databases when connecting: the engines of one address."""

    @property
    def name(self) -> str: ...

    @property
    def single(self) -> bool:
        """Whether all roles share one connection."""

    @property
    def counts_locks(self) -> bool:
        """Whether locks belong to the process: no child may inherit its connections."""

    @property
    def passes_words(self) -> bool:
        """Whether notifications can be received."""

    @property
    def takes_along(self) -> bool:
        """Whether a notification can travel with a statement."""

    def engine(self, role: str, options: Mapping[str, object]) -> Engine:
        """Return an engine of these options of SQLAlchemy, without connections. That of
        migrations has no deadlines.
        """

    def autocommit(
        self, engine: Engine, along: Along | None = None
    ) -> AbstractContextManager[Connection]:
        """A connection for a transaction of a single statement."""

    def listen(self, channel: str) -> Hearing: ...

    def check(self, connection: Connection) -> None:
        """Raise DatabaseProblem for a server that cannot be used."""

    def limit_replies(self, within: timedelta | None) -> None:
        """Wait no longer than this for a reply from now on; None: as usual."""


class ClosingPool(QueuePool):
    """A pool that closes the connections that are returned to it after ``dispose``: nothing else
    would.
    """

    #: The name under which SQLAlchemy logs its pools; else they would log under ours, which is
    #: shown.
    _sqla_logger_namespace = "sqlalchemy.pool.impl.QueuePool"
    _is_disposed = False
    #: How often a thread had to wait for a connection, and for how many seconds in total.
    waits = 0
    waited = 0.0

    def _do_get(self) -> ConnectionPoolEntry:
        if self.checkedin() or self.overflow() < self._max_overflow:
            return super()._do_get()
        began = elapsed()
        try:
            return super()._do_get()
        finally:  # Race: concurrent additions may get lost; this is for monitoring
            self.waits, self.waited = self.waits + 1, self.waited + elapsed() - began

    def dispose(self) -> None:
        """Close the idle connections now, those in use when they are returned."""
        self._is_disposed = True
        super().dispose()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        if was_disposed := self._is_disposed:
            # a thread that waits for a connection gets the empty record, and connects anew
            record.close()
        super()._do_return_conn(record)
        if (
            self._is_disposed and not was_disposed
        ):  # Race: ``dispose`` emptied the pool just before
            super().dispose()


class Database:
    """The connections of one process to one database. Safe to share between threads.

    Construction connects to nothing; engines are made at first use, and again after a fork. A
    child forked while its parent used SQLite is rejected. Raise `InvalidSetting` for a wrong
    address, `DriverMissing` without libpq.
    """

    #: Called with the Database before each use of one of its engines; they raise to refuse it. For
    #: test runners that restrict which databases a test may reach.
    guards: ClassVar[list[Callable[[Database], None]]] = []

    def __init__(
        self,
        settings: Settings,
        *,
        pool_size: int | None = None,
        overflow: int = POOL_SIZE,
        lender: Database | None = None,
    ) -> None:
        """`pool_size`: by default as in the settings. `overflow`: extra connections for a peak,
        closed after it. `lender`: another one at the same address, for another schema, whose
        connections this one uses; closing this one closes none of them.
        """
        self.settings = settings
        self.url: URL = database_url(settings.database_url)
        self.lender = lender
        self._link: Link = lender.link if lender else _link(self.url, settings)
        self._ear = self._link
        if settings.wake_up_url is not None:
            with located("wake_up_url", InvalidSetting):
                self._ear = _link(database_url(settings.wake_up_url), settings)
        size = pool_size or settings.pool_size
        self._pool_size, self._overflow = (
            (1, 0) if self._link.single else (size, overflow)
        )
        #: Where notifications for these tables are sent.
        self.channel = channel_of(settings.table_prefix, settings.schema)
        self._used_at_fork = False
        self._start_afresh()
        _databases.add(self)

    @property
    def dialect_name(self) -> str:
        return self._link.name

    @property
    def link(self) -> Link:
        """How connections to this address are made, for another schema of it."""
        return self._link

    @property
    def main(self) -> Engine:
        """The small pool for everything but heartbeats."""
        self._is_closed = False
        return self._main()

    def _main(self) -> Engine:
        return self.engine("main", self._pool_size, self._overflow)

    @property
    def heart(self) -> Engine:
        """One connection, for heartbeats alone: an exhausted pool costs no claim. In memory, it is
        `main`.
        """
        if self._link.single:
            return self.main
        return self.engine("heart", 1, POOL_SIZE - 1 if self.lender else 0)

    @property
    def claims(self) -> Engine:
        """The engine for claims and queries of what is due, with generic plans; `main` through a
        pooler, in SQLite.
        """
        return self.engine("claims", 1, 1) if self._link.passes_words else self.main

    def migrations(self) -> Engine:
        """An engine without a pool and without deadlines for statements. In memory, it is
        `main`.
        """
        return self.main if self._link.single else self.engine("migrations")

    def transaction(self) -> AbstractContextManager[Connection]:
        return self.main.begin()

    def autocommit(
        self, engine: Engine | None = None
    ) -> AbstractContextManager[Connection]:
        """A connection for a single statement, which is its own transaction; by default from the
        small pool.
        """
        return self._link.autocommit(engine or self.main)

    @contextmanager
    def telling(self, word: str | None) -> Iterator[Connection]:
        """As ``autocommit``; notify workers of ``word``, if any, after the commit, and in the same
        round trip if possible.

        If the statement fails, the notification may be sent nevertheless. Race: the reply may be
        lost although the statement was committed. To be sure, a caller repeats it with an id.
        """
        goes_along = (
            word is not None and self._link.takes_along and self.wake_ups.takes_turn()
        )
        with self._link.autocommit(
            self.main, (self.channel, [word]) if word and goes_along else None
        ) as connection:
            yield connection
        if word is not None and not goes_along:
            self.wake_ups.tell(word)

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """Raise `DatabaseProblem`, in one line with the cure, for errors of the driver in a
        user's call.
        """
        try:
            yield
        except SQLAlchemyError as error:
            raise problem(self.url, error) from error

    @property
    def in_memory(self) -> bool:
        """Whether this is a database in memory: one connection that all share, out of reach for
        other processes.
        """
        return self._link.single

    @property
    def connections_needed(self) -> int:
        """The number of connections that this process may hold at its peak."""
        if self._link.single:
            return 1
        return (
            self._pool_size
            + self._overflow
            + 1
            + self.hears
            + 2 * self._link.passes_words
        )

    @property
    def hears(self) -> bool:
        """Whether notifications can be received: not in SQLite, nor through a pooler."""
        return self.settings.wake_up and (
            self._ear is not self._link or self._link.passes_words
        )

    def listen(self) -> Hearing:
        return self._ear.listen(self.channel)

    def notify(self, words: Sequence[str]) -> None:
        """Send these notifications at once. Other callers use ``wake_ups``.

        Race: if ``close`` came during the statement before, the connection that this opens is
        closed as well.
        """
        if isinstance(self._link, PostgreSQLLink):  # others have no notifications
            self._link.notify(self._main(), self.channel, words)
        if self._is_closed:
            self._dispose()

    def verify(self, *, new: bool = False) -> None:
        """Connect once; ``new`` creates a missing SQLite file. Raise DatabaseProblem or a
        subclass, with the cure.
        """
        try:
            with (self.migrations() if new else self.main).connect() as connection:
                self._link.check(connection)
        except DBAPIError as error:
            raise unreachable(self.url, error) from error

    @property
    def pool_waits(self) -> tuple[int, float]:
        """How often threads have waited for a connection of a pool so far, and for how many
        seconds in total.
        """
        pools = [pool for pool in self._pools() if isinstance(pool, ClosingPool)]
        return sum(pool.waits for pool in pools), sum(pool.waited for pool in pools)

    @property
    def pool_connections(self) -> tuple[int, int]:
        """How many connections of the pools are in use, and how many are idle."""
        pools = self._pools()
        return sum(pool.checkedout() for pool in pools), sum(
            pool.checkedin() for pool in pools
        )

    @property
    def pooler_warning(self) -> str | None:
        """What to set if a pooler was met that no setting had announced."""
        if not getattr(self._link, "pooler_was_met", False):
            return None
        return (
            "a pooler is in between and rejects deadlines at the start of a connection: they are "
            "sent with each transaction; set pooler = true"
        )

    def limit_replies(self, within: timedelta | None) -> None:
        """Wait no longer than this for a reply of the server, from now on: a stop must not hang.
        None: as usual. Connections of a lender are left alone: others use them, too.
        """
        if self.lender is not None:
            return
        for link in (self._link, self._ear):
            link.limit_replies(within)

    def close(self) -> None:
        """Close every connection, those in use as soon as they are returned; a later use opens
        new ones.
        """
        if self._pid == os.getpid():
            self.wake_ups.flush()
            self._is_closed = True
            self._dispose()

    def before_fork(self) -> None:
        """Close idle connections: SQLite counts locks per process, and a child inherits the count
        without the locks.
        """
        if self._link.counts_locks and self._pid == os.getpid():
            self._used_at_fork = self._in_use()
            self.close()

    def engine(self, role: str, size: int = 0, overflow: int = 0) -> Engine:
        """Return the engine of a role, made at its first use; without a size, it has no pool."""
        for guard in self.guards:
            guard(self)
        if self._pid != os.getpid():
            self._forget_parent()
        if self.lender is not None:
            return self.lender.engine(role, size, overflow)
        with self._lock:
            if role not in self._engines:
                sizes = (
                    {
                        "pool_size": size,
                        "max_overflow": overflow,
                        "pool_use_lifo": True,
                    }
                    if size
                    else {}
                )
                pool = {"poolclass": ClosingPool if size else NullPool, **sizes}
                options = {"json_deserializer": document, **pool}
                self._engines[role] = self._link.engine(role, options)
            return self._engines[role]

    def _dispose(self) -> None:
        for engine in list(self._engines.values()):
            engine.dispose()

    def _forget_parent(self) -> None:
        """Drop the parent's engines after a fork. Raise DatabaseProblem if the parent was using
        SQLite just then.
        """
        if self._link.counts_locks and (self._used_at_fork or self._in_use()):
            raise DatabaseProblem(
                "this process was forked while its parent used the SQLite "
                "database: fork before the worker starts, "
                "start fresh processes instead of forking, or use PostgreSQL"
            )
        inherited = list(self._engines.values())
        self._start_afresh()
        for engine in inherited:
            engine.dispose(close=False)

    def _start_afresh(self) -> None:
        #: Notifications of this process to other workers.
        self.wake_ups = WakeUps(
            self.notify if self.settings.wake_up else lambda words: None
        )
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False

    def _in_use(self) -> bool:
        return any(pool.checkedout() for pool in self._pools())

    def _pools(self) -> list[QueuePool]:
        pools = [engine.pool for engine in list(self._engines.values())]
        return [pool for pool in pools if isinstance(pool, QueuePool)]


#: All instances of this process; a fork hook cannot be removed, so there is one for all.
_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _before_fork() -> None:
    for database in list(_databases):
        database.before_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


def _link(url: URL, settings: Settings) -> Link:
    kind = url.get_backend_name()
    if kind == "postgresql":
        return PostgreSQLLink(url, settings)
    found: Link = plugged_in("slotwise.links", kind)(url, settings)
    return found


T = TypeVar("T")

#: Work in a transaction; returns the transaction's id (None: nothing was written) and its result.
Work: TypeAlias = Callable[[sa.Connection], "tuple[str | None, T]"]


#: Whether a transaction was committed, by its id; None while it runs.
Committed: TypeAlias = Callable[[sa.Connection, str], "bool | None"]


#: How long callers wait for the answer whether their transaction was committed.
ANSWER = timedelta(seconds=10)


class SentTransaction(NamedTuple):
    """A transaction whose commit was sent; ``timeline``: of the server that got it, if it is
    known.
    """

    id: str
    timeline: str | None = None


class _Forgotten(Exception):
    """The server cannot know this transaction."""


@contextmanager
def sure_transaction(
    database: Database,
    committed: Committed,
    transaction_id: Callable[[Connection], str | None],
    within: timedelta | None = ANSWER,
) -> Iterator[Connection]:
    """A transaction. Raise only if it certainly did not commit, or CommitUnknown if the database
    does not say in time.

    Race: the connection breaks between COMMIT and its reply. Doing the work again under the fence
    would find nothing and take a settled claim for lost. So a new connection asks for the state of
    the transaction.
    """
    connection = database.main.connect()
    try:
        transaction = connection.begin()
        yield connection
        known = transaction_id(connection)
        timeline = timeline_of(connection)
        try:
            transaction.commit()
        except DBAPIError:
            connection.invalidate()
            if known is None:
                raise
            sent = SentTransaction(known, timeline)
            if not was_committed(database, committed, sent, within):
                raise
    finally:
        connection.close()


def commit_surely(database: Database, committed: Committed, work: Work[T]) -> T:
    """Do ``work``, which returns the transaction's id, as in ``sure_transaction``, however long
    the answer takes.
    """
    with sure_transaction(
        database, committed, lambda _: transaction_id, None
    ) as connection:
        transaction_id, result = work(connection)
    return result


def was_committed(
    database: Database,
    committed: Committed,
    sent: SentTransaction,
    within: timedelta | None,
) -> bool:
    """Ask the database until it answers whether the transaction was committed; raise CommitUnknown
    after this time. Without a time, a transaction that a failover has forgotten was not: the fence
    decides.
    """
    until = math.inf if within is None else elapsed() + within.total_seconds()
    for pause in growing_pauses(timedelta(milliseconds=50), timedelta(seconds=2)):
        try:
            verdict = _ask(database, committed, sent)
        except _Forgotten:
            if within is None:
                return False
            break
        if verdict is not None:
            told = "committed" if verdict else "rolled back"
            logger.warning(
                "the reply to a commit was lost; the database says: %s", told
            )
            return verdict
        if elapsed() >= until:
            break
        time.sleep(pause.total_seconds())
    unknown = CommitUnknown(
        f"the reply to the commit of transaction {sent.id} was lost, and the database does not "
        "say whether it was committed; look before you repeat the call"
    )
    unknown.transaction, unknown.timeline = sent
    raise unknown


def _ask(
    database: Database, committed: Committed, sent: SentTransaction
) -> bool | None:
    """Return the database's answer; None while there is none. Raise _Forgotten.

    Race: after a failover, the new primary may have given the same id to another transaction.
    """
    try:
        with database.main.connect() as connection:
            if timeline_of(connection) != sent.timeline:
                raise _Forgotten
            return committed(connection, sent.id)
    except (DBAPIError, PoolTimeout) as error:
        if not is_transient(error):
            raise _Forgotten from error
        return None


def timeline_of(connection: Connection) -> str | None:
    """Return the timeline of the server's write-ahead log, as it was when the connection opened,
    or through a pooler when its transaction began. None where it is unknown.
    """
    found: str | None = getattr(
        connection.connection.driver_connection, "timeline", None
    )
    return found
