"""Every call of the client that joins a transaction, over every kind of connection and every
driver.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session
from tests.kit.programs import missing

from slotwise import (
    Client,
    ConfigurationError,
    Every,
    JobContext,
    JobRegistry,
    RecurringItem,
    TaskContext,
    task,
)
from slotwise.spi import Joinable


@task(name="mail", record="all")
def mail(ctx: TaskContext[int]) -> None: ...


@task(name="sync")
def sync(ctx: JobContext) -> None: ...


def write(own: Joinable) -> int:
    nothing = sa.text("UPDATE scheduled_tasks SET priority = 1 WHERE task_name = ''")
    return own.execute(nothing).rowcount


#: Each call of the client with ``connection``, in an order in which each finds what it needs.
CALLS: dict[str, tuple[object, ...]] = {
    "schedule": (mail, 1),
    "schedule_many": (mail, [2, 3, 4]),
    "get": (mail, "kept"),
    "list": (mail,),
    "reschedule": (mail, "kept"),
    "retry": (mail, "dead"),
    "history": (mail, "kept"),
    "result": (mail, "kept"),
    "schedule_recurring": (sync, "customer", Every("1h")),
    "unschedule_recurring": (sync, "customer"),
    "sync_schedules": (sync, [RecurringItem(id="one", schedule="EVERY|1h")]),
    "cancel": (mail, "kept"),
    "cancel_all": (mail,),
    "within": (write,),
}
#: Arguments by name, and calls that come again with others.
OPTIONS: dict[str, list[dict[str, object]]] = {
    "reschedule": [{"delay": "1h"}],
    "schedule": [
        {},
        {"id": "mine", "delay": "1h"},
        {"id": "mine", "if_exists": "replace"},
    ],
    "schedule_many": [{}, {"if_exists": "keep"}, {"copy": True}],
    "schedule_recurring": [{}, {"priority": 10}],
    "sync_schedules": [
        {"scope": "customers"},
        {"scope": "customers", "dry_run": True},
    ],
}
#: What is refused, in words: there is no way to do it over this kind of connection.
REFUSED = {
    (kind, call): words
    for kinds, calls, words in (
        (
            ("asyncpg", "asyncpg session", "psycopg2"),
            ("copy",),
            "COPY needs a connection of psycopg",
        ),
    )
    for kind in kinds
    for call in calls
}


def driver(url: str, name: str) -> sa.URL:
    if importlib.util.find_spec(name) is None:
        missing(f"needs {name}")
    backend = sa.make_url(url).get_backend_name()
    plain = name == "sqlite3"
    return sa.make_url(url).set(drivername=backend if plain else f"{backend}+{name}")


@contextmanager
def engine_of(url: str, name: str) -> Iterator[sa.Connection]:
    with sa.create_engine(
        driver(url, name), poolclass=sa.NullPool
    ).begin() as connection:
        yield connection


@contextmanager
def session_of(url: str, name: str) -> Iterator[Session]:
    engine = sa.create_engine(driver(url, name), poolclass=sa.NullPool)
    with Session(engine) as session, session.begin():
        yield session


def psycopg_of(url: str, _: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url)


@contextmanager
def pymysql_of(url: str, _: str) -> Iterator[object]:
    import pymysql

    address = sa.make_url(url)
    connection = pymysql.connect(
        host=address.host or "",
        port=address.port or 0,
        user=address.username,
        database=address.database,
        client_flag=pymysql.constants.CLIENT.FOUND_ROWS,
        cursorclass=pymysql.cursors.DictCursor,
    )
    yield connection
    connection.commit()
    connection.close()


@asynccontextmanager
async def async_engine_of(url: str, name: str) -> AsyncIterator[object]:
    engine = create_async_engine(driver(url, name), poolclass=sa.NullPool)
    async with engine.begin() as connection:
        yield connection


@asynccontextmanager
async def async_session_of(url: str, name: str) -> AsyncIterator[object]:
    engine = create_async_engine(driver(url, name), poolclass=sa.NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def async_scoped_session_of(url: str, name: str) -> AsyncIterator[object]:
    engine = create_async_engine(driver(url, name), poolclass=sa.NullPool)
    make = async_sessionmaker(engine)
    scoped = async_scoped_session(make, scopefunc=asyncio.current_task)
    async with scoped.begin():
        yield scoped
    await scoped.remove()


@asynccontextmanager
async def async_psycopg(url: str, _: str) -> AsyncIterator[object]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


#: How each kind of connection is opened for one transaction, by which driver.
KINDS: dict[str, tuple[Callable[[str, str], Any], str]] = {
    "engine": (engine_of, "psycopg"),
    "session": (session_of, "psycopg"),
    "psycopg": (psycopg_of, "psycopg"),
    "psycopg2": (session_of, "psycopg2"),
    "async engine": (async_engine_of, "psycopg"),
    "async session": (async_session_of, "psycopg"),
    "async scoped session": (async_scoped_session_of, "psycopg"),
    "psycopg async": (async_psycopg, "psycopg"),
    "asyncpg": (async_engine_of, "asyncpg"),
    "asyncpg session": (async_session_of, "asyncpg"),
    "sqlite": (engine_of, "sqlite3"),
    "sqlite session": (session_of, "sqlite3"),
    "aiosqlite": (async_engine_of, "aiosqlite"),
    "aiosqlite session": (async_session_of, "aiosqlite"),
    "mysql engine": (engine_of, "pymysql"),
    "mysql session": (session_of, "pymysql"),
    "mysql driver": (pymysql_of, "pymysql"),
    "mysql async engine": (async_engine_of, "asyncmy"),
    "mysql async session": (async_session_of, "asyncmy"),
}


def test_the_table_has_every_call() -> None:
    """A call that is new gets a row here."""
    joins = {
        name
        for name, call in inspect.getmembers(Client, callable)
        if not name.startswith("_")
        and "connection" in inspect.signature(call).parameters
    }
    assert joins - {"leads_here"} == set(
        CALLS
    )  # it looks where a connection leads, and joins nothing


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_joins(request: pytest.FixtureRequest, kind: str) -> None:
    """Each call does its work in the caller's transaction, or is refused in one sentence."""
    named = (name for name in ("sqlite", "mysql") if name in kind)
    fixture = f"{next(named, 'pg')}_url"
    check_every_call(request.getfixturevalue(fixture), kind)


#: What a database or a role may set for the sessions of an application, and changes how arrays,
#: instants, intervals, bytes or strings are read or written.
SETTINGS = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "intervalstyle": "sql_standard",
    "standard_conforming_strings": "off",
    "timezone": "Asia/Kathmandu",
    "transform_null_equals": "on",
}


@pytest.mark.parametrize("kind", ["psycopg", "engine", "asyncpg session"])
def test_every_call_joins_a_session_with_other_settings(
    pg_url: str, kind: str
) -> None:
    """A joined transaction is the caller's, whose settings nothing has pinned."""
    with psycopg.connect(pg_url, autocommit=True) as sql:
        for name, value in SETTINGS.items():
            database = sa.make_url(pg_url).database
            sql.execute(f"ALTER DATABASE {database} SET {name} = '{value}'".encode())
    check_every_call(pg_url, kind)


def check_every_call(url: str, kind: str) -> None:
    registry = JobRegistry(tasks=[mail, sync], database_url=url)
    registry.client.schedule(mail, 1, id="kept", delay="1h")
    registry.client.schedule(mail, 1, id="dead", delay="1h")
    with registry.database.main.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE scheduled_tasks SET state = 'dead' WHERE task_instance = 'dead'"
        )
    broken = {}
    for call, arguments in CALLS.items():
        for options in OPTIONS.get(call, [{}]):
            name = "copy" if "copy" in options else call
            try:
                joined(registry.client, url, kind, call, arguments, options)
                problem = "was not refused" if (kind, name) in REFUSED else None
            except ConfigurationError as error:
                words = REFUSED.get((kind, name), "not at all")
                problem = None if words in str(error) else str(error)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                broken[call, *options] = problem
    assert broken == {}
    assert registry.client.list(mail) == []
    registry.database.close()


def joined(
    client: Client,
    url: str,
    kind: str,
    call: str,
    arguments: tuple[object, ...],
    options: dict[str, object],
) -> None:
    """One call, in a transaction that commits."""
    opened, driver = KINDS[kind]

    async def awaited() -> None:
        async with opened(url, driver) as connection:
            await getattr(client.aio, call)(
                *arguments, connection=connection, **options
            )

    if "async" in opened.__name__:
        asyncio.run(awaited())
        return
    with opened(url, driver) as connection:
        getattr(client, call)(*arguments, connection=connection, **options)
