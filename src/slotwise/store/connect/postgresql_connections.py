"""How connections to PostgreSQL are made: each one carries deadlines, none carries session state.

Deadlines travel in the startup packet. Behind a transaction pooler, which rejects them there or would leave them on
another client's connection, they are set with each transaction instead.

Prepared statements exist on busy connections only. The hot statements are long: to parse and plan one costs the server
as much as two hundred rows. But a cached plan is as old as the table was when the plan was made: on an empty table any
index will do, and a million rows later it is the wrong one. So an idle connection prepares nothing, and no plan
is kept for longer than ``PLAN_LIFE``. The connections of claims never scan a whole table, so the plans for an empty
table and a full one are the same. They prepare everything at once: the first task after an idle hour starts as soon as
one of thousands.
"""

from __future__ import annotations

import difflib
import functools
import logging
import math
import os
import re
import select
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool

from slotwise.errors import DatabaseProblem, InvalidSetting
from slotwise.model.clock import elapsed
from slotwise.settings.settings import Settings
from slotwise.store.connect.database_errors import name_role
from slotwise.store.connect.dsn import connect_arguments, psycopg
from slotwise.store.connect.notifications import Along, Hearing
from slotwise.store.schema.column_types import Beyond

if TYPE_CHECKING:
    from psycopg import Connection as Driver
    from psycopg.abc import AdaptContext, Buffer

logger = logging.getLogger(__name__)

#: What an operation of the driver returns.
R = TypeVar("R")


class InstantLoader:
    """Load instants, also those outside Python's range: for these the driver raises, and the whole result is lost."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        import psycopg as driver  # late: the connection has loaded it

        self.format = driver.pq.Format.TEXT
        self._failure = driver.DataError
        loader = driver.adapters.get_loader(oid, self.format)
        assert loader is not None
        self._load = loader(oid, context).load
        #: Of this result: rows of a batch have most of their instants in common.
        self._loaded: dict[bytes, Any] = {}

    format: Any = 0

    def load(self, data: Buffer) -> Any:
        written = bytes(data)
        if (found := self._loaded.get(written)) is None:
            found = self._loaded[written] = self._read(written)
        return found

    def _read(self, written: bytes) -> Any:
        try:
            return self._load(written)
        except self._failure:
            text = written.decode()
            return Beyond.near(text, before=text.endswith("BC") or text.startswith("-"))


def read_options(text: str) -> dict[str, str]:
    """Parse `-c name=value --other-name=value`, as in libpq's `options`. Raise `InvalidSetting` for other forms."""
    # libpq splits at spaces; a backslash escapes the next character.
    joined = re.sub(r"(?<!\S)-c\s+", "-c", text)
    options: dict[str, str] = {}
    for word in re.findall(r"(?:\\.|[^\s\\])+", joined):
        match = re.fullmatch(r"(?:-c|--)(?P<name>[\w.-]+)=(?P<value>.*)", re.sub(r"\\(.)", r"\1", word), re.DOTALL)
        if match is None:
            raise InvalidSetting(f"options in the database address: {word!r} is not understood; write -c name=value")
        options[match["name"].replace("-", "_").lower()] = match["value"]
    return options


def write_options(parameters: dict[str, str]) -> str:
    """The inverse of `read_options`."""
    escaped = ((name, re.sub(r"([\s\\])", r"\\\1", value)) for name, value in parameters.items())
    return " ".join(f"-c {name}={value}" for name, value in escaped)


def refuse_unknown(arguments: dict[str, str]) -> None:
    driver = psycopg()
    known = {option.keyword.decode() for option in driver.pq.Conninfo.get_defaults()}
    for name in arguments.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        cure = f"did you mean {near[0]}?" if near else "take it out"
        raise InvalidSetting(f"the database address has an option {name!r} that libpq does not know; {cure}")


#: A connection that was idle for longer is pinged; for a busy one, a ping per checkout would cost too much.
REST_BEFORE_PING = timedelta(seconds=1)


def look_at_the_rested(engine: Engine) -> None:
    """Replace idle connections whose server has gone, instead of failing their next use.

    A server that shuts down leaves a message in the socket. A broken link leaves none, so finding out costs a trip.
    """

    def checkin(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info["rests_since"] = time.monotonic()

    def checkout(connection: Driver, record: ConnectionPoolEntry, _proxy: object) -> None:
        since = record.info.pop("rests_since", None)
        if since is None:
            return
        if _was_spoken_to(connection):
            raise InvalidatePoolError
        if time.monotonic() - since < REST_BEFORE_PING.total_seconds():
            return
        try:
            engine.dialect.do_ping(connection)  # type: ignore[arg-type]
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error

    event.listen(engine, "checkin", checkin)
    event.listen(engine, "checkout", checkout)


def _was_spoken_to(connection: Driver) -> bool:
    """Whether the server has sent something unasked: usually, it is shutting down."""
    try:
        return bool(select.select([connection.fileno()], [], [], 0)[0])
    except (OSError, ValueError):  # closed already, or too large a descriptor for select
        return False


#: How long plans are kept, in seconds: usually, and where the server has no choice of plan.
PLAN_LIFE, LONG_LIFE = 1.0, 60.0
#: This many transactions within that time make a connection busy.
BUSY = 10
#: On a busy connection the driver prepares a statement at this execution.
THRESHOLD = 5


def keep_plans(engine: Engine, may_prepare: Callable[[], bool], *, at_once: bool = False) -> None:
    """Let busy connections of this engine prepare their statements, as long as ``may_prepare``; or all, ``at_once``."""

    def checkout(connection: Driver, record: ConnectionPoolEntry, _proxy: object) -> None:
        now = time.monotonic()
        since, uses = record.info.setdefault("plans", (now, 0))
        life, busy, threshold = (LONG_LIFE, 0, 0) if at_once else (PLAN_LIFE, BUSY, THRESHOLD)
        may_go_on = uses != busy if connection.prepare_threshold is None else may_prepare()
        if now - since < life and may_go_on:
            record.info["plans"] = since, uses + 1
            return
        record.info["plans"] = now, 1
        is_busy = uses >= busy and may_prepare()
        connection.prepare_threshold = threshold if is_busy else None
        if is_busy:
            _discard(engine, connection)

    event.listen(engine, "checkout", checkout)


def _discard(engine: Engine, connection: Driver) -> None:
    try:
        connection.execute("DISCARD PLANS", prepare=False)
        connection.commit()
    except engine.dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error


#: The execution option of a connection in autocommit: channel and payloads.
ALONG = "slotwise_along"
NOTIFY = "SELECT pg_notify(%s, word) FROM unnest(%s::text[]) AS word"


def can_go_along() -> bool:
    """Whether this libpq supports pipelining."""
    return bool(psycopg().Pipeline.is_supported())


def let_words_go_along(engine: Engine) -> None:
    """Let this engine's connections send the notification in ``ALONG`` with a statement: one trip instead of two.

    The server commits the statement before it reads the notification, so a worker that receives it sees the row. In one
    transaction with the statement, the notification would hold a lock of the whole server during the flush.
    """

    def execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        said = context.execution_options.get(ALONG)
        if said is None:
            return False
        driver, committed = cursor.connection, None
        try:
            with driver.pipeline():
                driver.execute("BEGIN")  # else the whole pipeline would be one transaction
                cursor.execute(statement, parameters)
                committed = driver.execute("COMMIT")
                driver.execute(NOTIFY, said)
        except psycopg().Error as error:
            if committed is None or committed.statusmessage is None:
                with suppress(psycopg().Error):  # the connection is lost: the first error says why
                    driver.rollback()
                raise
            logger.debug("nobody was woken, polls will find what is due: %s", error)
        return True

    event.listen(engine, "do_execute", execute)


OLDEST_SERVER = 14
#: SQLSTATEs: no such prepared statement; it exists already.
LOST_PLAN = frozenset({"26000", "42P05"})
#: The longest application name of PostgreSQL.
LONGEST_NAME = 63

# The connections left of the server, and of the role and the database where they have limits. These do not apply to
# superusers.
_FREE = """
SELECT least(
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int - count(*),
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user AND NOT rolsuper)
        - count(*) FILTER (WHERE usename = current_user),
    (SELECT nullif(datconnlimit, -1) FROM pg_database, pg_roles
        WHERE datname = current_database() AND rolname = current_user AND NOT rolsuper)
        - count(*) FILTER (WHERE datname = current_database())
)
FROM pg_stat_activity WHERE backend_type = 'client backend'
"""

# Formats of values, whatever the defaults of role and database: the driver reads only these.
_FORMS = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres"}

# Claims use generic plans: planning takes as long as claiming a hundred rows. A plan may date from an empty table, and
# must be right for a full one.
CLAIMS = "claims"
_PLANNED = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off"}

# Sent with each BEGIN as well; a single-statement transaction has no BEGIN.
_ISOLATION = {"default_transaction_isolation": "read committed"}

# In a table adopted from Java's db-scheduler a trigger keeps others from deleting our rows.
_OURS = {"slotwise.delete": "on"}

# "client" if it came with the connection.
_SOURCE = "SELECT source FROM pg_settings WHERE name = 'lock_timeout'"


class PostgreSQLLink:
    """The engines of one PostgreSQL address."""

    name = "postgresql"
    single = False

    def __init__(self, url: URL, settings: Settings) -> None:
        """Raise `DriverMissing` without libpq, `InvalidSetting` for an option unknown to libpq."""
        self._settings = settings
        self._arguments = connect_arguments(url)
        refuse_unknown(self._arguments)
        self._options = read_options(self._arguments.pop("options", "") or os.environ.get("PGOPTIONS", ""))
        self._url = url
        self._pooled = settings.pooler
        #: The server has confirmed that there is no pooler in between.
        self._is_direct = False
        self._was_asked = False
        #: A user who has set a timeout for statements may wait for as long.
        within = None if "statement_timeout" in self._options else settings.statement_timeout + settings.connect_timeout
        self.replies = ReplyLimit(within)

    def engine(self, role: str, size: int, overflow: int = 0) -> Engine:
        """Return an engine without connections; its pool never waits longer than a heartbeat interval."""
        wait = self._settings.heartbeat_interval.total_seconds()
        pool = {"poolclass": QueuePool, "pool_size": size, "max_overflow": overflow, "pool_use_lifo": True}
        planned = _PLANNED if role == CLAIMS else {}
        return self._listening(role, self._deadlines() | planned, **pool, pool_timeout=wait)

    def migrations(self) -> Engine:
        """Return an engine without a pool and a statement deadline: building an index may take long."""
        return self._listening("migrations", {}, poolclass=NullPool)

    @contextmanager
    def alone(self, engine: Engine, along: Along | None = None) -> Iterator[Connection]:
        """A connection for a single-statement transaction: one trip to the server instead of three.

        Where a pooler may be in between, it is an ordinary transaction, which carries the deadlines.
        ``along``, if ``takes_along``: channel and payloads of a notification after the commit.
        """
        if not self._is_direct:
            with engine.begin() as connection:
                yield connection
            return
        told: dict[str, object] = {} if along is None else {ALONG: along}
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT", **told) as connection:
            yield connection

    @property
    def takes_along(self) -> bool:
        """Whether notifications can be pipelined with a statement."""
        return self._is_direct and can_go_along()

    def check(self, connection: Connection) -> None:
        """Raise `DatabaseProblem` if the server is too old."""
        version = connection.dialect.server_version_info or ()
        if version and int(version[0]) < OLDEST_SERVER:
            spelled = ".".join(map(str, version))
            raise DatabaseProblem(
                f"PostgreSQL {spelled} is too old, slotwise needs {OLDEST_SERVER}; upgrade the server"
            )

    def free_connections(self, connection: Connection) -> int | None:
        """Return how many more connections server, role and database allow now."""
        return int(connection.exec_driver_sql(_FREE).scalar_one())

    def durability_warning(self, connection: Connection) -> str | None:
        """Return what a crash of the server may lose, if role or database do not wait for the disk."""
        level = connection.exec_driver_sql("SELECT current_setting('synchronous_commit')").scalar_one()
        if level != "off":
            return None
        return (
            "synchronous_commit is off: a crash of the server loses its latest commits, so tasks and orders may vanish "
            "and slots that had ended run again (complete_in and slots of give_up jobs are safe); set it to on for "
            "role or database"
        )

    @property
    def passes_words(self) -> bool:
        """Whether LISTEN works: a transaction pooler accepts it, and delivers to another client or to none."""
        return not self._pooled

    def notify(self, engine: Engine, channel: str, words: Sequence[str]) -> None:
        """Send these payloads on a channel, in a single-statement transaction."""
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(NOTIFY, (channel, list(words)))

    def listen(self, channel: str) -> Hearing:
        """Open a connection outside of every pool; a broken link is detected as on any other."""
        return Hearing(self._reach("wake-up", self._deadlines() | self._options), channel)

    def _deadlines(self) -> dict[str, str]:
        settings = self._settings
        return {
            "statement_timeout": _milliseconds(settings.statement_timeout),
            "lock_timeout": _milliseconds(settings.lock_timeout),
            "idle_in_transaction_session_timeout": _milliseconds(settings.idle_in_transaction_timeout),
        }

    def _listening(self, role: str, deadlines: dict[str, str], **pool: Any) -> Engine:
        forms = {name.lower(): form for name, form in _FORMS.items()}
        parameters = deadlines | self._options | forms | _OURS | _ISOLATION
        engine = create_engine(self._url, hide_parameters=True, use_native_hstore=False, **pool)

        def connect(*_: object) -> Driver:
            return self._connect(role, parameters)

        def begin(connection: Connection) -> None:
            if self._pooled:
                _set_local(connection, parameters)

        event.listen(engine, "do_connect", connect)
        event.listen(engine, "begin", begin)
        event.listen(engine, "handle_error", _leave_read_only_server)
        event.listen(engine, "handle_error", name_role)
        event.listen(engine, "handle_error", self._notice_lost_plans)
        look_at_the_rested(engine)
        keep_plans(engine, lambda: self._is_direct, at_once=role == CLAIMS)
        let_words_go_along(engine)
        return engine

    def _connect(self, role: str, parameters: dict[str, str]) -> Driver:
        connection = self._reach(role, parameters)
        # Sent with each BEGIN, so that it works behind a pooler as well. Whatever the defaults of role and database,
        # statements that read rows again after concurrent changes must see the new values.
        connection.isolation_level = psycopg().IsolationLevel.READ_COMMITTED
        connection.adapters.register_loader("timestamptz", InstantLoader)
        if role == "main" and not self._was_asked:
            self._ask(connection)
        return connection

    def _ask(self, connection: Driver) -> None:
        """Check, on the first connection, that the options reached the server; a pooler may have dropped them."""
        if not self._pooled:
            if connection.execute(_SOURCE).fetchone() != ("client",):
                self._notice_pooler()
            connection.rollback()
            self._is_direct = not self._pooled
        self._was_asked = True

    def _reach(self, role: str, parameters: dict[str, str]) -> Driver:
        driver = psycopg()
        if not self._pooled:
            try:
                connection = self._open(role, options=write_options(parameters))
                _insist_on_forms(connection)
                return connection
            except driver.OperationalError as error:
                if "unsupported startup parameter" not in str(error):
                    raise
                self._notice_pooler()
        return self._open(role)

    def _open(self, role: str, **options: str) -> Driver:
        keywords: Any = self._keywords(role) | options
        connection = _impatient().connect(**keywords)
        if role != "migrations":  # building an index takes as long as it takes
            connection.limit = self.replies  # type: ignore[attr-defined]
        return connection

    def _notice_pooler(self) -> None:
        if not self._pooled:
            logger.warning(
                "a pooler stands in between and takes no deadlines at the start of a connection: "
                "they are given with each transaction from now on; set pooler = true to say so"
            )
        self._pooled = True

    def _notice_lost_plans(self, context: ExceptionContext) -> None:
        """Stop preparing when a prepared statement is missing or foreign: a pooler has switched the session."""
        if getattr(context.original_exception, "sqlstate", None) not in LOST_PLAN:
            return
        if self._is_direct:
            logger.warning(
                "a prepared statement has gone, so a pooler may stand in between: nothing is prepared from now on; "
                "set pooler = true to say so"
            )
        self._is_direct = False
        context.is_disconnect = True

    def _keywords(self, role: str) -> dict[str, object]:
        """Return the keywords for libpq; the user's own win."""
        settings = self._settings
        silence = settings.tcp_user_timeout.total_seconds()
        suffix = "" if role == "main" else f" {role}"
        ours = {
            "application_name": f"slotwise {settings.worker}"[: LONGEST_NAME - len(suffix)] + suffix,
            "connect_timeout": str(int(settings.connect_timeout.total_seconds())),
            "tcp_user_timeout": _milliseconds(settings.tcp_user_timeout),
            # Detects a link that breaks while we wait for a reply: after idle + count × interval.
            "keepalives": "1",
            "keepalives_idle": str(math.ceil(silence / 2)),
            "keepalives_interval": str(math.ceil(silence / 6)),
            "keepalives_count": "3",
            # For any database encoding, SQL_ASCII included: the server converts, or stores the bytes.
            "client_encoding": "UTF8",
        }
        # A prepared statement is session state: a pooler gives the next transaction another session. See keep_plans.
        return {**ours, **self._arguments, "prepare_threshold": None}


def _set_local(connection: Connection, parameters: dict[str, str]) -> None:
    calls = ", ".join("set_config(%s, %s, true)" for _ in parameters)
    words = tuple(word for pair in parameters.items() for word in pair)
    connection.exec_driver_sql(f"SELECT {calls}", words)


def _insist_on_forms(connection: Driver) -> None:
    """Set the formats again: libpq sends PGTZ and PGDATESTYLE of the environment after our options."""
    for name, form in _FORMS.items():
        if not (connection.info.parameter_status(name) or "").startswith(form):
            connection.execute("SELECT set_config(%s, %s, false)", (name, form))
            connection.commit()


def _leave_read_only_server(context: ExceptionContext) -> None:
    """Drop connections to a read-only server: after a failover, the next connection finds the new primary."""
    if getattr(context.original_exception, "sqlstate", None) == "25006":
        context.is_disconnect = True


def _milliseconds(span: timedelta) -> str:
    return str(max(1, round(span.total_seconds() * 1000)))


class ReplyLimit:
    """A client's deadline for replies, on the process's own clock: how long its connections wait for one.

    The server's ``statement_timeout`` ends a slow statement. This ends the wait for a server that is frozen, or that is
    behind something that holds everything: TCP notices neither as long as the data sent is acknowledged. A connection
    that waits for longer is closed, and its statement fails as in an outage. Safe between threads.
    """

    def __init__(self, usual: timedelta | None) -> None:
        """``usual`` None: no limit, unless ``set``."""
        self._usual = self._seconds = math.inf if usual is None else usual.total_seconds()

    def set(self, within: timedelta | None) -> None:
        """Wait no longer than this from now on, in current waits as well; None: the usual limit again."""
        self._seconds = self._usual if within is None else min(self._usual, within.total_seconds())

    def watched(self, replies: Generator[int, int, R], connection: Driver) -> Generator[int, int, R]:
        """Return ``replies`` with the limit. psycopg sends 0 when nothing has come for a while."""
        began = elapsed()
        try:
            awaited = next(replies)
            while True:
                if not (ready := (yield awaited)) and elapsed() - began > self._seconds:
                    connection.pgconn.finish()
                    raise psycopg().OperationalError(f"the server has not answered for {elapsed() - began:.0f} s")
                awaited = replies.send(ready)
        except StopIteration as end:
            result: R = end.value
            return result


@functools.cache
def _impatient() -> type[Driver]:
    """Return the class of connections that obey a limit, made when the driver is there."""

    class Impatient(psycopg().Connection):  # type: ignore[misc]
        limit: ReplyLimit | None = None

        def wait(self, replies: Generator[int, int, R], *arguments: Any, **options: Any) -> R:
            if self.limit is not None:
                replies = self.limit.watched(replies, self)
            result: R = super().wait(replies, *arguments, **options)
            return result

    return Impatient
