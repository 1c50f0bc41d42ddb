"""How connections to MariaDB and MySQL are made: each has one isolation level, time zone and SQL
mode, whatever the server's defaults are, and deadlines for statements, locks and idle
transactions.

They are set when a connection opens, and read back: a proxy may have dropped them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import NoReturn, Protocol

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, InvalidatePoolError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from slotwise import DatabaseProblem, DriverMissing, Settings
from slotwise.contrib.mysql.galera import NODE, NOT_READY, SYNC_WAIT, node_in
from slotwise.contrib.mysql.server import (
    Server,
    refuse_splitting,
    refuse_unsuitable,
    server_of,
)

#: A connection that was idle for longer is pinged before its next use.
REST_BEFORE_PING = timedelta(seconds=1)
#: How long a statement of an upgrade waits for the lock of a table, in seconds.
PATIENCE = 60
#: A session has exactly this mode: a value that does not fit is an error, and strings are
#: escaped as the driver does it.
SQL_MODE = (
    "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)
#: All expressions of an UPDATE see the old values, and GRANT makes no account without a password.
_OF_MARIADB = ",SIMULTANEOUS_ASSIGNMENT,NO_AUTO_CREATE_USER"
#: How long a statement waits for a row, and for a table.
_WAITS = ("innodb_lock_wait_timeout", "lock_wait_timeout")
_CHECKED = (
    "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation', "
    "'time_zone', 'sql_mode', 'autocommit', 'innodb_lock_wait_timeout', 'lock_wait_timeout', "
    "'wsrep_on', 'wsrep_node_name')"
)


class Cursor(Protocol):
    """A cursor of the driver."""

    def execute(self, statement: str) -> object: ...
    def fetchall(self) -> list[tuple[object, ...]]: ...
    def close(self) -> None: ...


class Driver(Protocol):
    """A connection of PyMySQL."""

    def cursor(self) -> Cursor: ...
    def get_server_info(self) -> str: ...
    def ping(self, reconnect: bool) -> None: ...


class MySQLLink:
    """The engines of one address."""

    name = "mysql"
    single = False
    passes_words = takes_along = counts_locks = False

    def __init__(self, url: URL, settings: Settings) -> None:
        self._url = url
        self._settings = settings

    def engine(self, role: str, options: Mapping[str, object]) -> Engine:
        """Return an engine without connections. That of migrations has no deadlines for
        statements. Raise `DriverMissing`.
        """
        waits = {"pool_timeout": self._settings.heartbeat_interval.total_seconds()}
        if role == "migrations":
            waits = {}
        try:
            engine = create_engine(
                self._url,
                hide_parameters=True,
                connect_args=self._arguments(role),
                **options,
                **waits,
            )
        except (ImportError, NoSuchModuleError):
            raise DriverMissing(
                "no driver for MariaDB and MySQL was found; run: pip install 'slotwise[mysql]'"
            ) from None

        def connect(driver: Driver, record: ConnectionPoolEntry) -> None:
            record.info[NODE] = self._prepare(driver, role)

        def checkout(
            driver: Driver, record: ConnectionPoolEntry, _proxy: object
        ) -> None:
            _replace_if_dead(engine, driver, record)

        event.listen(engine, "connect", connect)
        event.listen(engine, "checkin", _note_rest)
        event.listen(engine, "checkout", checkout)
        event.listen(engine, "handle_error", _leave_node)
        return engine

    def autocommit(
        self, engine: Engine, along: object = None
    ) -> AbstractContextManager[Connection]:
        """Begin a transaction: it costs one round trip, as a change of the mode would."""
        return engine.begin()

    def listen(self, channel: str) -> NoReturn:
        raise DatabaseProblem(
            "MariaDB and MySQL have no notifications; set wake_up_url to a PostgreSQL database, "
            "or remove it"
        )

    def check(self, connection: Connection) -> None:
        """Raise `DatabaseProblem` for a server that cannot be used."""
        refuse_unsuitable(connection, self._settings)
        refuse_splitting(connection, self._settings)

    def limit_replies(self, within: timedelta | None) -> None:
        """The driver's own deadline stays: it was given when a connection opened."""

    def _arguments(self, role: str) -> dict[str, object]:
        settings = self._settings
        within = math.ceil(settings.connect_timeout.total_seconds())
        arguments: dict[str, object] = {
            "connect_timeout": max(within, 1),
            "charset": "utf8mb4",
        }
        if role != "migrations":
            reply = settings.statement_timeout + settings.connect_timeout
            arguments["read_timeout"] = reply.total_seconds()
            arguments["write_timeout"] = reply.total_seconds()
        return arguments

    def _prepare(self, driver: Driver, role: str) -> str | None:
        """Set up a session; return the node of a cluster that it is on."""
        server = server_of(driver.get_server_info())
        wanted = self._session(server, role)
        cursor = driver.cursor()
        try:
            cursor.execute(f"SET NAMES utf8mb4 COLLATE {server.collation}")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            pairs = (f"SESSION {name} = {value}" for name, value in wanted.items())
            cursor.execute(f"SET {', '.join(pairs)}")
            if server.is_mariadb:
                cursor.execute(
                    f"SET SESSION sql_mode = concat(@@sql_mode, '{_OF_MARIADB}')"
                )
            return _check(cursor, wanted)
        finally:
            cursor.close()

    def _session(self, server: Server, role: str) -> dict[str, str]:
        """Return the variables of a session, as they are written in SET."""
        settings = self._settings
        fixed = {"time_zone": "'+00:00'", "sql_mode": f"'{SQL_MODE}'"}
        if role == "migrations":
            return fixed | dict.fromkeys(_WAITS, str(PATIENCE))
        lock = _seconds(settings.lock_timeout)
        lease = _seconds(settings.lease)
        deadlines = dict.fromkeys(_WAITS, lock)
        statement = settings.statement_timeout.total_seconds()
        # The locks of a frozen worker end when its claims do.
        if server.is_mariadb:
            deadlines["max_statement_time"] = f"{statement:.3f}"
            deadlines["idle_transaction_timeout"] = lease
        else:
            deadlines["max_execution_time"] = str(round(statement * 1000))
            deadlines["wait_timeout"] = lease
        return fixed | deadlines


def _check(cursor: Cursor, wanted: Mapping[str, str]) -> str | None:
    """Read back what was set; return the node of a cluster, on which reads are to wait."""
    cursor.execute(_CHECKED)
    found = {str(name): str(value) for name, value in cursor.fetchall()}
    _refuse_other_values(found, wanted)
    node = node_in(found)
    if node is not None:
        cursor.execute(SYNC_WAIT)
    return node


def _refuse_other_values(values: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise `DatabaseProblem` if a proxy has dropped what was set."""
    isolation = values.get("transaction_isolation") or values.get("tx_isolation", "")
    checked = {
        "isolation level": (isolation, "READ-COMMITTED"),
        "time_zone": (values.get("time_zone"), "+00:00"),
        "autocommit": (values.get("autocommit"), "OFF"),
    }
    checked |= {name: (values.get(name), wanted[name]) for name in _WAITS}
    for name, (value, needed) in checked.items():
        if value != needed:
            raise DatabaseProblem(
                f"the {name} of this session is {value}, although it was set to {needed}: "
                "something in between drops it; connect to the server itself"
            )
    if "STRICT_TRANS_TABLES" not in values.get("sql_mode", ""):
        raise DatabaseProblem(
            "the sql_mode of this session is not strict, although it was set: something in "
            "between drops it; connect to the server itself"
        )


def _leave_node(context: ExceptionContext) -> None:
    """Close the connections to a node without a quorum: it answers pings, so that they would be
    used again.
    """
    error = context.original_exception
    if error.args and error.args[0] == NOT_READY:
        context.is_disconnect = True


def _note_rest(_driver: object, record: ConnectionPoolEntry) -> None:
    record.info["rests_since"] = time.monotonic()


def _replace_if_dead(
    engine: Engine, driver: Driver, record: ConnectionPoolEntry
) -> None:
    """Replace a connection that was idle for a while, and whose server has gone."""
    since = record.info.pop("rests_since", None)
    if since is None or time.monotonic() - since < REST_BEFORE_PING.total_seconds():
        return
    try:
        driver.ping(reconnect=False)
    except (engine.dialect.loaded_dbapi.Error, DBAPIError, OSError) as error:
        raise InvalidatePoolError from error


def _seconds(span: timedelta) -> str:
    return str(max(1, math.ceil(span.total_seconds())))
