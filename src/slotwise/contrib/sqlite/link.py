"""How connections to SQLite are made: one machine, one writer at a time, every transaction takes
the write lock.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, Connection, Engine, create_engine, event

from slotwise import DatabaseProblem, SchemaMissing, Settings
from slotwise.spi import hide_password

OLDEST_LIBRARY = (3, 35)
BUSY_TIMEOUT = timedelta(seconds=10)
#: How often a new connection tries to change the journal of a file that others open as well.
CHANGES = 20


class SQLiteLink:
    """The engines of one SQLite file, or of a database in memory, whose one connection all roles
    share.
    """

    name = "sqlite"
    passes_words = takes_along = False

    def __init__(self, url: URL, settings: Settings) -> None:
        """Raise `DatabaseProblem` if the SQLite library is too old."""
        if sqlite3.sqlite_version_info < OLDEST_LIBRARY:
            needed = ".".join(map(str, OLDEST_LIBRARY))
            raise DatabaseProblem(
                f"SQLite {sqlite3.sqlite_version} is too old, slotwise needs {needed}; "
                "use a newer Python, or PostgreSQL"
            )
        self._url = url
        self._wait = settings.heartbeat_interval
        self.single = (
            url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"
        )
        self.counts_locks = not self.single

    def engine(self, role: str, options: Mapping[str, object]) -> Engine:
        """Return an engine without connections. Only that of migrations creates a missing file."""
        waits = (
            {}
            if role == "migrations"
            else {"pool_timeout": max(self._wait, BUSY_TIMEOUT).total_seconds()}
        )
        arguments = {
            "timeout": BUSY_TIMEOUT.total_seconds(),
            "check_same_thread": False,
            "isolation_level": None,
        }
        engine = create_engine(
            self._url,
            hide_parameters=True,
            connect_args=arguments,
            **options,
            **waits,
        )
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        if not self.single:
            event.listen(
                engine,
                "do_connect",
                _create_private if role == "migrations" else _require_file,
            )
        return engine

    def autocommit(
        self, engine: Engine, along: object = None
    ) -> AbstractContextManager[Connection]:
        """Begin a transaction; readers take the write lock as well."""
        return engine.begin()

    def check(self, connection: Connection) -> None:
        """The library was checked at construction."""

    def limit_replies(self, within: timedelta | None) -> None:
        """There is no server whose reply could fail to come."""

    def listen(self, channel: str) -> NoReturn:
        raise DatabaseProblem(
            "SQLite has no notifications; set wake_up_url to a PostgreSQL database, or remove it"
        )


def _path(name: str) -> Path:
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") else name)


def _create_private(
    _dialect: object, _record: object, arguments: Sequence[object], _options: object
) -> None:
    """Create a missing file for this account alone: it has payloads. SQLite gives the files beside
    it the same mode.
    """
    with suppress(OSError):  # it is there, or SQLite says what is wrong
        os.close(os.open(_path(str(arguments[0])), os.O_CREAT | os.O_EXCL, 0o600))


def _require_file(
    _dialect: object, _record: object, arguments: Sequence[object], _options: object
) -> None:
    path = _path(str(arguments[0]))
    if not path.exists() and path.parent.is_dir():  # else SQLite says what is wrong
        shown = hide_password(str(path))
        raise SchemaMissing(
            f"there is no SQLite file '{shown}'; correct the path, or create it: "
            "slotwise db upgrade"
        )


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    """Allow readers beside the writer, and flush every commit to disk, whatever the library's
    build defaults to.
    """
    connection.execute("PRAGMA synchronous = FULL")
    for _ in range(CHANGES):
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode in ("wal", "memory"):
            return
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
            return
        # Race: another connection changes it at this moment. This change does not wait for that
        # one, as any write does.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")


def _begin(connection: Connection) -> None:
    # A transaction that reads first and then writes fails at once if another one wrote in between,
    # without waiting: so each takes the write lock first.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
