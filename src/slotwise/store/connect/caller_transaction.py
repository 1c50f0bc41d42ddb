"""Join the caller's own transaction, of SQLAlchemy or psycopg, synchronous or asynchronous."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql.compiler import SQLCompiler

from slotwise.errors import ConfigurationError
from slotwise.store.connect.dsn import MYSQL
from slotwise.store.connect.exact_names import qualified
from slotwise.store.connect.mysql_callers import is_mysql, is_of_mysql, mysql_callers

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection, Cursor
    from psycopg.rows import TupleRow


logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_COMPILER = PGDialect_psycopg()  # type: ignore[no-untyped-call]
_COMPILER.statement_compiler = qualified(  # type: ignore[assignment]
    _COMPILER.statement_compiler
)


class Joined:
    """A psycopg connection that executes SQLAlchemy statements; ``wait`` wraps its calls if it is
    asynchronous.
    """

    dialect = _COMPILER

    def __init__(
        self,
        connection: Connection[object] | AsyncConnection[object],
        wait: Callable[[Any], Any] = lambda result: result,
        *,
        own_types: bool = False,
    ) -> None:
        """``own_types``: load times and JSON as psycopg does, whatever the connection has
        registered for them.
        """
        self.driver = connection
        self.wait = wait
        self._own_types = own_types

    def execute(
        self, statement: sa.Executable, parameters: Mapping[str, object] | None = None
    ) -> Rows:
        """Execute a statement and return all its rows. A statement with ``parameters`` is
        compiled once.
        """
        compiled = _compiled(statement) if parameters else _compile(statement)
        cursor = self.cursor(own_types=self._own_types)
        text, values = compiled.string, compiled.construct_params(parameters)
        if compiled.post_compile_params:  # an IN, whose list is written out
            expanded = compiled.construct_expanded_state(parameters)
            text, values = expanded.statement, dict(expanded.parameters)
        self.wait(cursor.execute(text.encode(), values))
        return Rows(
            self.wait(cursor.fetchall()) if cursor.description else [], cursor.rowcount
        )

    def cursor(self, *, own_types: bool = True) -> Cursor[TupleRow]:
        """Return a cursor of the driver, whose calls ``wait`` wraps."""
        from psycopg.rows import tuple_row  # late: such a connection has loaded it

        cursor = cast("Cursor[TupleRow]", self.driver.cursor(row_factory=tuple_row))
        if own_types:
            _load_as_psycopg(cursor)
        return cursor


def _load_as_psycopg(cursor: Cursor[TupleRow]) -> None:
    """Let a cursor load times and JSON as psycopg does by itself."""
    from psycopg import adapters
    from psycopg.pq import Format

    for name in ("timestamptz", "jsonb"):
        oid = adapters.types[name].oid
        loader = adapters.get_loader(oid, Format.TEXT)
        assert loader is not None
        cursor.adapters.register_loader(oid, loader)


def _compile(statement: sa.Executable) -> SQLCompiler:
    assert isinstance(statement, sa.ClauseElement)
    compiled = statement.compile(dialect=_COMPILER)
    assert isinstance(compiled, SQLCompiler)
    return compiled


_compiled = lru_cache(maxsize=64)(_compile)


class Rows:
    """The rows of a statement."""

    def __init__(self, rows: Sequence[TupleRow], rowcount: int) -> None:
        self._rows = rows
        self.rowcount = rowcount

    def fetchone(self) -> TupleRow | None:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> Sequence[TupleRow]:
        return self._rows


#: An executor of SQLAlchemy statements in the caller's transaction.
Joinable: TypeAlias = sa.Connection | Joined


def _is_psycopg(connection: object) -> TypeGuard[Connection[object]]:
    """Whether this is psycopg's Connection; psycopg is not imported for it."""
    module = sys.modules.get("psycopg")
    return module is not None and isinstance(connection, module.Connection)


def _is_async_psycopg(connection: object) -> TypeGuard[AsyncConnection[object]]:
    module = sys.modules.get("psycopg")
    return module is not None and isinstance(connection, module.AsyncConnection)


def joined(connection: object, database: str, where: str) -> Joinable:
    """Return an executor for the transaction of ``connection`` to this kind of database. Raise
    ConfigurationError.
    """
    if _is_async_psycopg(connection):
        raise ConfigurationError(
            f"{where}: an async connection is awaited: await client.aio.…(…, connection=…)"
        )
    found = _executor(connection)
    kind = MYSQL if is_mysql(found.dialect) else found.dialect.name
    if kind != database:
        raise ConfigurationError(
            f"{where}: the connection leads to {found.dialect.name}, the tables "
            f"are in {database}; pass a connection "
            "to that database, or none"
        )
    if kind == MYSQL:
        return found
    driver = _driver_of(found)
    info = getattr(_driver_of(found), "info", None)
    is_idle = (
        int(getattr(info, "transaction_status", 0)) == 0
    )  # an open transaction of psycopg's autocommit will do
    if getattr(driver, "autocommit", False) is True and is_idle:
        raise ConfigurationError(
            f"{where}: the connection commits every statement by itself "
            "(AUTOCOMMIT); pass one with a transaction, or "
            "none"
        )
    refuse_pipeline(found, where)
    return found


def refuse_pipeline(connection: Joinable, where: str) -> None:
    """Raise ConfigurationError within a pipeline of psycopg: results come after it."""
    pgconn = getattr(_driver_of(connection), "pgconn", None)
    if getattr(pgconn, "pipeline_status", 0):
        raise ConfigurationError(
            f"{where}: the connection is in a pipeline, whose results come later; "
            "make the call outside of it"
        )


def _driver_of(connection: Joinable) -> object:
    return (
        connection.driver
        if isinstance(connection, Joined)
        else connection.connection.driver_connection
    )


class Address(NamedTuple):
    """Where a connection leads. Not a URL: to make and hash one takes 15 µs in each call with
    ``connection=``.
    """

    user: str | None
    host: str | None
    port: int | None
    database: str | None


def address_of(connection: Joinable) -> Address:
    """Return the driver's address: an engine's connection may be made by a function, whatever its
    URL says.
    """
    driver: Any = _driver_of(connection)
    if _is_psycopg(driver) or _is_async_psycopg(driver):
        info = driver.info
        return Address(info.user, info.host, info.port, info.dbname)
    assert isinstance(connection, sa.Connection)
    url = connection.engine.url
    return Address(url.username, url.host, url.port, url.database)


def is_without_transaction(connection: Joinable) -> bool:
    """Whether the driver is in no transaction after a statement: nothing else knows what it was
    told before.
    """
    driver: Any = _driver_of(connection)
    if is_mysql(connection.dialect):
        return mysql_callers().is_without_transaction(driver)
    if hasattr(driver, "in_transaction"):  # sqlite3, aiosqlite
        return not driver.in_transaction
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return not driver.is_in_transaction()
    status = getattr(
        getattr(driver, "info", None), "transaction_status", None
    )  # psycopg, psycopg2
    return (
        status == 0
        if status is not None
        else getattr(driver, "autocommit", False) is True
    )


def _sqlalchemy_connection(connection: object) -> sa.Connection:
    """Return the Connection, or that of a Session. Raise ConfigurationError."""
    if isinstance(connection, sa.Connection):
        return connection
    from sqlalchemy.orm import (
        Session,
        scoped_session,
    )  # late: slow to import, and rarely needed

    if isinstance(connection, Session | scoped_session):
        return connection.connection()
    raise _refusal(connection)


def _refusal(connection: object, *, is_awaited: bool = False) -> ConfigurationError:
    """Return the error, with the cure, for an object whose transaction cannot be joined."""
    kind = type(connection).__name__
    library = type(connection).__module__.partition(".")[0]
    if kind in ("Engine", "AsyncEngine"):
        begin = f"{'async ' if kind == 'AsyncEngine' else ''}with engine.begin() as connection"
        why = (
            f"connection= is an {kind}, which has no transaction; write: {begin}, and "
            "pass connection=connection"
        )
    elif library in ("asyncpg", "psycopg2"):
        one = "an AsyncConnection or AsyncSession of SQLAlchemy"
        cure = (
            one
            if is_awaited
            else "one of psycopg 3, or a SQLAlchemy Connection or Session"
        )
        why = f"a connection of {library} cannot be joined; pass {cure}"
    elif is_awaited:
        cure = "an AsyncConnection or AsyncSession of SQLAlchemy, or psycopg's AsyncConnection"
        why = f"{kind} is not an async connection; pass {cure}; or call client.… without aio"
    elif kind in ("AsyncConnection", "AsyncSession", "async_scoped_session"):
        cure = "or within it: await connection.run_sync(lambda inner: ….(inner))"
        why = f"{kind} cannot be used from here; await client.aio.…(…, connection=…), {cure}"
    else:
        why = (
            f"{kind} cannot be joined; pass a Connection or Session of SQLAlchemy, "
            "a connection of psycopg, or django.db.connection"
        )
    return ConfigurationError(why)


def _executor(connection: object) -> Joinable:
    if isinstance(connection, Joined):
        return connection
    if hasattr(connection, "ensure_connection"):
        return _wrapped_by_django(connection)
    if _is_psycopg(connection):
        return Joined(connection)
    if is_of_mysql(connection):
        return mysql_callers().executor(connection)
    return _sqlalchemy_connection(connection)


def _wrapped_by_django(wrapper: Any) -> Joinable:
    """Return an executor on the connection in ``django.db.connection``. Raise ConfigurationError
    with the cure.
    """
    wrapper.ensure_connection()
    is_lodgers = is_of_mysql(wrapper.connection)
    if not is_lodgers and not _is_psycopg(wrapper.connection):
        raise ConfigurationError(
            f"Django's connection {wrapper.alias!r} is not one of psycopg 3; "
            "schedule in transaction.on_commit, "
            "without connection"
        )
    if not wrapper.in_atomic_block and wrapper.get_autocommit():
        raise ConfigurationError(
            f"Django's connection {wrapper.alias!r} is in no transaction; write: "
            "with transaction.atomic(), or pass no "
            "connection"
        )
    if is_lodgers:
        return mysql_callers().executor(wrapper.connection)
    return Joined(wrapper.connection, own_types=True)


def within(
    connection: object, work: Callable[[Joinable], None]
) -> Awaitable[None] | None:
    """Do ``work`` in the transaction of ``connection``; return an awaitable if that is async."""
    connection = _of_this_scope(connection)
    if hasattr(connection, "run_sync") or _is_async_psycopg(connection):
        return call_within(connection, lambda inner: work(_executor(inner)))
    work(_executor(connection))
    return None


def is_in_transaction(connection: object) -> bool:
    """Whether a connection that can be joined is in a transaction. One that its pool has lent to
    somebody else may be in theirs.
    """
    if isinstance(connection, Joined):
        connection = connection.driver
    if hasattr(connection, "ensure_connection"):
        return bool(getattr(connection, "in_atomic_block", False))
    if is_of_mysql(connection):
        return mysql_callers().is_in_transaction(connection)
    if _is_psycopg(connection) or _is_async_psycopg(connection):
        status = connection.info.transaction_status.name
        return status in ("ACTIVE", "INTRANS", "INERROR")
    if type(connection).__name__ in ("scoped_session", "async_scoped_session"):
        assert callable(connection)
        connection = connection()
    in_transaction = getattr(connection, "in_transaction", None)
    return callable(in_transaction) and bool(in_transaction())


def _of_this_scope(connection: object) -> object:
    """Return the session of an ``async_scoped_session``, which lacks its ``run_sync``."""
    if type(connection).__name__ == "async_scoped_session" and callable(connection):
        return connection()
    return connection


async def call_within(connection: object, work: Callable[[object], Result]) -> Result:
    """Do ``work`` with the synchronous side of an async connection."""
    connection = _of_this_scope(connection)
    if (
        run_sync := getattr(connection, "run_sync", None)
    ) is not None:  # AsyncConnection, AsyncSession
        return cast("Result", await run_sync(work))
    if not _is_async_psycopg(connection):
        raise _refusal(connection, is_awaited=True)
    try:
        import_module(
            "greenlet"
        )  # SQLAlchemy's async connections need it to open, psycopg's do not
    except ImportError as error:
        raise ConfigurationError(
            f"psycopg's AsyncConnection needs greenlet ({error}); run: pip install "
            "'slotwise[async]'"
        ) from None
    from sqlalchemy.util import await_only, greenlet_spawn  # late: needs greenlet

    return await greenlet_spawn(work, Joined(connection, await_only))


@contextmanager
def whole(connection: Joinable) -> Iterator[None]:
    """Restore the caller's transaction after an error in here, by a savepoint of PostgreSQL."""
    if connection.dialect.name != "postgresql":
        yield
        return
    connection.execute(sa.text("SAVEPOINT slotwise"))
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the connection is lost: the first error says why
            connection.execute(sa.text("ROLLBACK TO SAVEPOINT slotwise"))
            connection.execute(sa.text("RELEASE SAVEPOINT slotwise"))
        raise
    connection.execute(sa.text("RELEASE SAVEPOINT slotwise"))


def copy_into(
    connection: Joinable, statement: str, blocks: Callable[[str], Iterable[bytes]]
) -> None:
    """COPY blocks, each sent while the next is made; ``blocks`` gets the client encoding."""
    driver = _driver_of(connection)
    if _is_psycopg(driver):
        with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for block in blocks(_encoding_of(driver)):
                copy.write(block)
    elif _is_async_psycopg(driver):
        if isinstance(connection, Joined):
            wait = connection.wait
        else:
            from sqlalchemy.util import await_only as wait  # late: needs greenlet
        wait(_copy_async(driver, statement, blocks(_encoding_of(driver))))
    else:
        raise ConfigurationError(
            f"COPY needs a connection of psycopg, this is {type(driver).__name__}; drop copy=True"
        )


def _encoding_of(driver: Connection[object] | AsyncConnection[object]) -> str:
    encoding = driver.info.encoding
    return "utf-8" if encoding == "ascii" else encoding  # SQL_ASCII: any bytes will do


async def _copy_async(
    driver: AsyncConnection[object], statement: str, blocks: Iterable[bytes]
) -> None:
    async with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for block in blocks:
            await copy.write(block)
