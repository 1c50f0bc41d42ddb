"""How connections to PostgreSQL are made: each one carries deadlines, none carries session state.

Deadlines travel in the startup packet. Behind a transaction pooler, which rejects them there or
would leave them on another client's connection, they are set with each transaction instead.

Only busy connections prepare statements: planning a hot statement costs the server as much as two
hundred rows. A plan for an empty table may be wrong for a million rows, so it is kept for
``PLAN_LIFE`` only. The connections of claims never scan a whole table, so their plans suit any
table, and they prepare each statement at once.
"""

from __future__ import annotations

import difflib
import functools
import logging
import math
import os
import select
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext, ExecutionContext
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

from slotwise.errors import DatabaseProblem, InvalidSetting
from slotwise.model.clock import elapsed
from slotwise.settings.settings import Settings
from slotwise.store.connect.database_errors import is_transient, name_role
from slotwise.store.connect.dsn import OPTIONS_OF_OTHERS, connect_arguments, psycopg
from slotwise.store.connect.exact_names import qualified
from slotwise.store.connect.notifications import Along, Hearing
from slotwise.store.connect.session_parameters import (
    insist_on_formats,
    pinned_over,
    read_options,
    write_options,
)
from slotwise.store.schema.column_types import document

if TYPE_CHECKING:
    from psycopg import Connection as Driver
    from psycopg import Cursor

logger = logging.getLogger(__name__)

OLDEST_SERVER = 15
#: The longest application name of PostgreSQL.
LONGEST_NAME = 63

#: A connection that was idle for longer is pinged; for a busy one, a ping per checkout would cost
#: too much.
REST_BEFORE_PING = timedelta(seconds=1)
#: How long plans are kept, in seconds: usually, and where the server has no choice of plan.
PLAN_LIFE = 1.0
LONG_LIFE = 60.0
#: This many transactions within that time make a connection busy.
BUSY = 10
#: On a busy connection the driver prepares a statement at this execution.
THRESHOLD = 5
#: SQLSTATEs: no such prepared statement; it exists already.
LOST_PLAN = frozenset({"26000", "42P05"})

#: The execution option of a connection in autocommit: channel and payloads of a notification.
ALONG = "slotwise_along"
NOTIFY = (
    "SELECT pg_catalog.pg_notify(%s, word) FROM pg_catalog.unnest(%s::text[]) AS word"
)

#: "client" if the option came with the connection.
_SOURCE = "SELECT source FROM pg_catalog.pg_settings WHERE name = 'lock_timeout'"
#: The timeline of the write-ahead log: a new primary begins another one.
TIMELINE = (
    "CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.left("
    "pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END"
)

# Planning a claim takes as long as claiming a hundred rows. A plan may date from an empty table,
# and must be right for a full one. What is due first is at the front of an index, of which a
# bitmap would read all.
_PLANNED = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}

#: What an operation of the driver returns.
R = TypeVar("R")


def _refuse_unknown(arguments: Mapping[str, str]) -> None:
    """Raise `InvalidSetting` for an option unknown to libpq.

    A name may be a piece of a password with an & in it. So it is shown if other tools have it, or
    if nothing in the address can be a password.
    """
    known = {
        option.keyword.decode() for option in psycopg().pq.Conninfo.get_defaults()
    }
    has_secret = "password" in arguments or any(
        "@" in value for value in arguments.values()
    )
    for place, name in enumerate(arguments, start=1):
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        cure = OPTIONS_OF_OTHERS.get(name) or (
            f"did you mean {near[0]}?" if near else "remove it"
        )
        is_shown = name in OPTIONS_OF_OTHERS or not has_secret
        option = f"option {name!r}" if is_shown else f"option {place}"
        raise InvalidSetting(
            f"{option} of the database address is unknown to libpq; {cure}"
        )


def can_go_along() -> bool:
    return bool(psycopg().Pipeline.is_supported())


class PostgreSQLLink:
    """The engines of one PostgreSQL address."""

    name = "postgresql"
    single = counts_locks = False

    def __init__(self, url: URL, settings: Settings) -> None:
        """Raise `DriverMissing` without libpq, `InvalidSetting` for an option unknown to libpq."""
        self._settings = settings
        self._arguments = connect_arguments(url)
        _refuse_unknown(self._arguments)
        self._options = read_options(
            self._arguments.pop("options", "") or os.environ.get("PGOPTIONS", "")
        )
        self._url = url
        self._pooled = settings.pooler
        #: The server has confirmed that there is no pooler in between.
        self._is_direct = False
        self._was_asked = False
        #: Whether the server tells the timeline of its write-ahead log.
        self._has_timeline = True
        #: A pooler was met, which no setting had announced.
        self.pooler_was_met = False
        #: A user who has set a timeout for statements may wait for as long.
        within = (
            None
            if "statement_timeout" in self._options
            else settings.statement_timeout + settings.connect_timeout
        )
        self.replies = ReplyLimit(within)

    @property
    def passes_words(self) -> bool:
        """Whether LISTEN works: a transaction pooler accepts it, and delivers to another client or
        to none.
        """
        return not self._pooled

    @property
    def takes_along(self) -> bool:
        """Whether a notification can be pipelined with a statement."""
        return self._is_direct and can_go_along()

    def engine(self, role: str, options: Mapping[str, object]) -> Engine:
        """Return an engine without connections. That of migrations has no deadlines."""
        parameters = self._parameters(role)
        waits = {"pool_timeout": self._settings.heartbeat_interval.total_seconds()}
        if role == "migrations":
            waits = {}
        engine = create_engine(
            self._url,
            hide_parameters=True,
            use_native_hstore=False,
            **options,
            **waits,
        )
        engine.dialect.statement_compiler = qualified(
            engine.dialect.statement_compiler
        )

        def connect(*_: object) -> Driver:
            return self._connect(role, parameters)

        def begin(connection: Connection) -> None:
            if self._pooled:
                timeline = TIMELINE if self._has_timeline else "NULL"
                _set_for_transaction(connection, parameters, timeline)

        def checkin(_: object, record: ConnectionPoolEntry) -> None:
            record.info["rests_since"] = time.monotonic()

        def checkout(
            connection: Driver, record: ConnectionPoolEntry, _proxy: object
        ) -> None:
            _replace_if_dead(engine, connection, record)
            self._choose_preparing(
                engine, connection, record, at_once=role == "claims"
            )

        event.listen(engine, "do_connect", connect)
        event.listen(engine, "begin", begin)
        event.listen(engine, "checkin", checkin)
        event.listen(engine, "checkout", checkout)
        event.listen(engine, "do_execute", _execute_with_notification)
        event.listen(engine, "handle_error", self._on_error)
        return engine

    def _parameters(self, role: str) -> dict[str, str]:
        """Return the parameters of a session. Building an index takes as long as it takes."""
        deadlines = {} if role == "migrations" else self._deadlines()
        planned = _PLANNED if role == "claims" else {}
        return pinned_over(deadlines | planned | self._options)

    @contextmanager
    def autocommit(
        self, engine: Engine, along: Along | None = None
    ) -> Iterator[Connection]:
        """A connection for a single-statement transaction: one round trip instead of three, except
        through a pooler.

        ``along``, if ``takes_along``: channel and payloads of a notification after the commit.
        """
        if not self._is_direct:
            with engine.begin() as connection:
                yield connection
            return
        told: dict[str, Along] = {} if along is None else {ALONG: along}
        with engine.connect().execution_options(
            isolation_level="AUTOCOMMIT", **told
        ) as connection:
            yield connection

    def check(self, connection: Connection) -> None:
        version = connection.dialect.server_version_info or ()
        if version and int(version[0]) < OLDEST_SERVER:
            spelled = ".".join(map(str, version))
            raise DatabaseProblem(
                f"PostgreSQL {spelled} is too old, slotwise needs {OLDEST_SERVER}; "
                "upgrade the server"
            )

    def limit_replies(self, within: timedelta | None) -> None:
        self.replies.set(within)

    def notify(self, engine: Engine, channel: str, words: Sequence[str]) -> None:
        """Send these payloads on a channel, in a single-statement transaction."""
        with engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as connection:
            connection.exec_driver_sql(NOTIFY, (channel, list(words)))

    def listen(self, channel: str) -> Hearing:
        """Open a connection outside of every pool; a broken link is detected as on any other."""
        return Hearing(
            self._reach("wake-up", self._deadlines() | self._options), channel
        )

    def _deadlines(self) -> dict[str, str]:
        settings = self._settings
        return {
            "statement_timeout": _milliseconds(settings.statement_timeout),
            "lock_timeout": _milliseconds(settings.lock_timeout),
            # The locks of a frozen worker end when its claims do.
            "idle_in_transaction_session_timeout": _milliseconds(settings.lease),
        }

    def _connect(self, role: str, parameters: Mapping[str, str]) -> Driver:
        connection = self._reach(role, parameters)
        # Sent with each BEGIN, so that it works behind a pooler as well. Whatever the defaults of
        # role and database, statements that read rows again after concurrent changes must see the
        # new values.
        connection.isolation_level = psycopg().IsolationLevel.READ_COMMITTED
        if role == "main":
            with _closed_on_error(connection):
                if not self._was_asked and not self._pooled:
                    self._look_for_pooler(connection)
                if self._has_timeline:
                    self._read_timeline(connection)
        return connection

    def _look_for_pooler(self, connection: Driver) -> None:
        """A pooler may have dropped the options."""
        if connection.execute(_SOURCE).fetchone() != ("client",):
            self._notice_pooler()
        connection.rollback()
        self._is_direct = not self._pooled
        self._was_asked = True

    def _read_timeline(self, connection: Driver) -> None:
        """Read it, unless the role may not, or the server has none."""
        try:
            found = connection.execute(f"SELECT {TIMELINE}".encode()).fetchone()
        except psycopg().Error as error:
            if is_transient(error):
                raise
            self._has_timeline = False
        else:
            connection.timeline = found and found[0]  # type: ignore[attr-defined]
        connection.rollback()

    def _reach(self, role: str, parameters: Mapping[str, str]) -> Driver:
        driver = psycopg()
        if not self._pooled:
            try:
                connection = self._open(role, options=write_options(parameters))
            except driver.OperationalError as error:
                if "unsupported startup parameter" not in str(error):
                    raise
                self._notice_pooler()
            else:
                with _closed_on_error(connection):
                    insist_on_formats(connection)
                return connection
        return self._open(role)

    def _open(self, role: str, **options: str) -> Driver:
        keywords: Any = self._keywords(role) | options
        connection = _impatient().connect(**keywords)
        psycopg().types.json.set_json_loads(document, connection)
        if role != "migrations":  # building an index takes as long as it takes
            connection.limit = self.replies  # type: ignore[attr-defined]
        return connection

    def _keywords(self, role: str) -> dict[str, object]:
        """Return the keywords for libpq; the user's own win."""
        settings = self._settings
        silence = settings.tcp_user_timeout.total_seconds()
        suffix = "" if role == "main" else f" {role}"
        ours = {
            "application_name": f"slotwise {settings.worker}"[
                : LONGEST_NAME - len(suffix)
            ]
            + suffix,
            "connect_timeout": str(int(settings.connect_timeout.total_seconds())),
            "tcp_user_timeout": _milliseconds(settings.tcp_user_timeout),
            # Detects a link that breaks while we wait for a reply: after idle + count × interval.
            "keepalives": "1",
            "keepalives_idle": str(math.ceil(silence / 2)),
            "keepalives_interval": str(math.ceil(silence / 6)),
            "keepalives_count": "3",
            # For any database encoding, SQL_ASCII included: the server converts, or stores the
            # bytes.
            "client_encoding": "UTF8",
        }
        # A pooler gives the next transaction another session, without prepared statements: see
        # _choose_preparing.
        return {**ours, **self._arguments, "prepare_threshold": None}

    def _notice_pooler(self) -> None:
        self.pooler_was_met = True
        self._pooled = True
        self._is_direct = False

    def _choose_preparing(
        self,
        engine: Engine,
        connection: Driver,
        record: ConnectionPoolEntry,
        *,
        at_once: bool,
    ) -> None:
        """Let a busy connection prepare statements, or each connection, ``at_once``; discard plans
        that are old.
        """
        now = time.monotonic()
        since, uses = record.info.setdefault("plans", (now, 0))
        life, busy, threshold = (
            (LONG_LIFE, 0, 0) if at_once else (PLAN_LIFE, BUSY, THRESHOLD)
        )
        may_go_on = (
            uses != busy if connection.prepare_threshold is None else self._is_direct
        )
        if now - since < life and may_go_on:
            record.info["plans"] = since, uses + 1
            return
        record.info["plans"] = now, 1
        is_busy = uses >= busy and self._is_direct
        connection.prepare_threshold = threshold if is_busy else None
        if is_busy:
            try:
                connection.execute("DISCARD PLANS", prepare=False)
                connection.commit()
            except engine.dialect.loaded_dbapi.Error as error:
                raise InvalidatePoolError from error

    def _on_error(self, context: ExceptionContext) -> None:
        name_role(context)
        state = getattr(context.original_exception, "sqlstate", None)
        if (
            state == "25006"
        ):  # read-only: after a failover, the next connection finds the new primary
            context.is_disconnect = True
        elif state in LOST_PLAN:
            if self._is_direct:
                logger.warning(
                    "a prepared statement is gone, so a pooler may be in between: "
                    "nothing is prepared from now on; set pooler = true"
                )
            self._is_direct = False
            context.is_disconnect = True
        elif state == "40P01":
            detail = getattr(
                getattr(context.original_exception, "diag", None),
                "message_detail",
                None,
            )
            waits, statement = (
                " ".join(str(text).split()) for text in (detail, context.statement)
            )
            logger.warning(
                "a deadlock rolled a transaction back, which is retried: %s Statement: %s",
                waits,
                statement,
            )


def _set_for_transaction(
    connection: Connection, parameters: Mapping[str, str], timeline: str
) -> None:
    """Set the parameters until the transaction ends, behind a pooler; read the timeline, too."""
    calls = ", ".join("pg_catalog.set_config(%s, %s, true)" for _ in parameters)
    values = tuple(sum(parameters.items(), ()))
    found = connection.exec_driver_sql(f"SELECT {timeline}, {calls}", values)
    driver: Any = connection.connection.driver_connection
    driver.timeline = found.scalar()


def _replace_if_dead(
    engine: Engine, connection: Driver, record: ConnectionPoolEntry
) -> None:
    """Replace an idle connection whose server has gone: a message is in the socket, or, after a
    while, a ping fails.
    """
    since = record.info.pop("rests_since", None)
    if since is None:
        return
    with suppress(
        OSError, ValueError
    ):  # closed already, or too large a descriptor for select
        if select.select([connection.fileno()], [], [], 0)[0]:
            raise InvalidatePoolError
    if time.monotonic() - since < REST_BEFORE_PING.total_seconds():
        return
    try:
        engine.dialect.do_ping(connection)  # type: ignore[arg-type]
    except engine.dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error


def _execute_with_notification(
    cursor: Cursor, statement: str, parameters: Any, context: ExecutionContext
) -> bool:
    """Send the notification in ``ALONG`` with a statement, in one trip. The server commits before
    it reads it.

    In one transaction with the statement, the notification would hold a lock of the whole server
    during the flush.
    """
    said: Along | None = context.execution_options.get(ALONG)
    if said is None:
        return False
    driver = cursor.connection
    committed = None
    failed = None
    try:
        with driver.pipeline():
            try:
                driver.execute(
                    "BEGIN"
                )  # else the whole pipeline would be one transaction
                cursor.execute(statement, parameters)
                committed = driver.execute("COMMIT")
                driver.execute(NOTIFY, said)
            except psycopg().Error as error:
                # Race: the reply to the statement may come before the block ends. If its error
                # left the block, psycopg would log a warning about the pipeline that it ended.
                failed = error
    except psycopg().Error as error:
        failed = failed or error
    if failed is not None:
        if committed is None or committed.statusmessage is None:
            with suppress(
                psycopg().Error
            ):  # the connection is lost: the first error says why
                driver.rollback()
            raise failed
        logger.debug("no worker was notified, polls will find the row: %s", failed)
    return True


@contextmanager
def _closed_on_error(connection: Driver) -> Iterator[None]:
    """Close a connection whose first statements fail: no pool knows it yet."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _milliseconds(span: timedelta) -> str:
    return str(max(1, round(span.total_seconds() * 1000)))


class ReplyLimit:
    """A client's deadline for replies, on its own clock: TCP does not notice a frozen server that
    acknowledges data.

    A connection that waits for longer is closed, and its statement fails as in an outage. Safe
    between threads.
    """

    def __init__(self, usual: timedelta | None) -> None:
        """``usual`` None: no limit, unless ``set``."""
        self._usual = self._seconds = (
            math.inf if usual is None else usual.total_seconds()
        )

    def set(self, within: timedelta | None) -> None:
        """Wait no longer than this from now on, in current waits as well; None: the usual limit
        again.
        """
        self._seconds = (
            self._usual if within is None else min(self._usual, within.total_seconds())
        )

    def watched(
        self, replies: Generator[int, int, R], connection: Driver
    ) -> Generator[int, int, R]:
        """Return ``replies`` with the limit. psycopg sends 0 when nothing has come for a while."""
        try:
            awaited = next(replies)
            began = elapsed()
            while True:
                if (
                    not (ready := (yield awaited))
                    and elapsed() - began > self._seconds
                ):
                    connection.pgconn.finish()
                    raise psycopg().OperationalError(
                        f"the server has not answered for {elapsed() - began:.0f} s"
                    )
                awaited = replies.send(ready)
        except StopIteration as end:
            result: R = end.value
            return result


@functools.cache
def _impatient() -> type[Driver]:
    """Return the class of connections that obey a limit, made when the driver is there."""

    class Impatient(psycopg().Connection):  # type: ignore[misc]
        limit: ReplyLimit | None = None
        timeline: str | None = None

        def wait(
            self,
            replies: Generator[int, int, R],
            *arguments: object,
            **options: object,
        ) -> R:
            if self.limit is not None:
                replies = self.limit.watched(replies, self)
            result: R = super().wait(replies, *arguments, **options)
            return result

    return Impatient
