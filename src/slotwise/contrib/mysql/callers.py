"""Connections of callers to MariaDB and MySQL: which ones are joined, and which are refused.

Nothing here commits a caller's transaction, rolls it back, or repeats a statement of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Protocol
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.pool import StaticPool

from slotwise import ConfigurationError, Settings
from slotwise.contrib.mysql.errors import code_of, left_by
from slotwise.contrib.mysql.server import server_of
from slotwise.spi import tables

__all__ = [
    "code_of",
    "commits_by_itself",
    "executor",
    "is_in_transaction",
    "is_without_transaction",
    "left_by",
    "refuse",
]

#: In the status that a server sends with each reply: a transaction is open.
IN_TRANSACTION = 1
#: In the flags of a connection: an UPDATE counts the rows that it found, not those that it
#: changed.
FOUND_ROWS = 2
#: The drivers whose own connections can be joined, with SQLAlchemy's name of each.
_DRIVERS = {"pymysql": "pymysql", "MySQLdb": "mysqldb"}


#: Where a connection leads, and what speaks there.
_PLACE = "SELECT @@hostname, @@port, database(), version()"


class Cursor(Protocol):
    """A cursor of a driver."""

    def execute(self, statement: str) -> object: ...
    def fetchone(self) -> tuple[str, int, str | None, str]: ...
    def close(self) -> object: ...


class Lent(Protocol):
    """A driver's connection. Its default cursor may be of a class that returns no tuples."""

    def cursor(self, kind: object) -> Cursor: ...


#: SQLAlchemy's connections over those of drivers, as long as these live.
_over: weakref.WeakKeyDictionary[Lent, sa.Connection] = weakref.WeakKeyDictionary()


def executor(driver: Lent) -> sa.Connection | None:
    """Return SQLAlchemy's connection over one of PyMySQL or mysqlclient; None for others."""
    module = type(driver).__module__.partition(".")[0]
    if module not in _DRIVERS:
        return None
    if driver not in _over:
        _over[driver] = _connection_over(driver, module)
    return _over[driver]


def _connection_over(driver: Lent, module: str) -> sa.Connection:
    """Its transaction stays the caller's: nothing commits it, rolls it back, or closes it."""
    borrowed = _Borrowed(driver, import_module(f"{module}.cursors").Cursor)
    cursor = borrowed.cursor()
    cursor.execute(_PLACE)
    host, port, database, version = cursor.fetchone()
    cursor.close()
    url = sa.URL.create(
        f"mysql+{_DRIVERS[module]}", host=host, port=port, database=database
    )
    dialect = _dialect_of(url)(dbapi=import_module(module))
    # The dialect would ask the server, in a transaction that it would roll back.
    server = server_of(version)
    dialect.is_mariadb = server.is_mariadb
    dialect.server_version_info = server.version
    pool = StaticPool(
        lambda: borrowed,  # type: ignore[arg-type]
        reset_on_return=None,
        dialect=dialect,
    )
    return sa.Engine(pool, dialect, url).connect()


def _dialect_of(url: sa.URL) -> Callable[..., MySQLDialect]:
    found = url.get_dialect()
    assert issubclass(found, MySQLDialect)
    return found


class _Borrowed:
    """A driver's connection whose end is the caller's. It lives no longer than the caller's."""

    def __init__(self, driver: Lent, kind: object) -> None:
        self._driver = weakref.ref(driver)
        self._kind = kind

    def __getattr__(self, name: str) -> object:
        return getattr(self._driver(), name)

    def cursor(self) -> Cursor:
        driver = self._driver()
        assert driver is not None
        return driver.cursor(self._kind)

    def commit(self) -> None:
        """The caller commits."""

    def rollback(self) -> None:
        """The caller rolls back."""

    def close(self) -> None:
        """The caller closes."""


def is_in_transaction(driver: object) -> bool:
    """Whether a transaction is open. PyMySQL and asyncmy learn that only from replies without
    rows.
    """
    status = getattr(driver, "server_status", None)
    if isinstance(status, int):
        return bool(status & IN_TRANSACTION)
    return not commits_by_itself(driver)


def is_without_transaction(driver: object) -> bool:
    """Whether the driver is in no transaction after a statement: else that has begun one."""
    return commits_by_itself(driver) and not is_in_transaction(driver)


def commits_by_itself(driver: object) -> bool:
    """Whether the connection commits each statement, unless it was told BEGIN."""
    get_autocommit = getattr(driver, "get_autocommit", None)
    return callable(get_autocommit) and bool(get_autocommit())


def refuse(connection: sa.Connection, settings: Settings, where: str) -> None:
    """Raise ConfigurationError for a connection that commits by itself, or whose UPDATE counts
    changed rows: a row that has its new value already would look like one that another worker
    took.
    """
    driver = connection.connection.driver_connection
    if is_without_transaction(driver):
        raise ConfigurationError(
            f"{where}: the connection commits every statement by itself (AUTOCOMMIT); pass one "
            "with a transaction, or none"
        )
    flags = getattr(driver, "client_flag", None)
    if isinstance(flags, int):
        counts_found = bool(flags & FOUND_ROWS)
    else:
        receipts = tables(settings.table_prefix, settings.schema, "mysql").receipts
        counts_found = _counts_found(connection, receipts)
    if counts_found:
        return
    raise ConfigurationError(
        f"{where}: an UPDATE of this connection counts only the rows that it changes; open it "
        "with client_flag=CLIENT.FOUND_ROWS of the driver's constants, as SQLAlchemy and Django "
        "do"
    )


def _counts_found(connection: sa.Connection, receipts: sa.Table) -> bool:
    """Ask by an UPDATE that changes nothing, of a row that nobody else knows."""
    name = uuid4().hex
    now = sa.func.utc_timestamp(6)
    mine = receipts.c.receipt == name
    connection.execute(
        receipts.insert().inline().values(receipt=name, created=now, expires=now)
    )
    same = receipts.update().where(mine).values(expires=receipts.c.expires)
    found = connection.execute(same).rowcount
    connection.execute(receipts.delete().where(mine))
    return found == 1
