"""A caller's connection to another database that has slotwise's tables: refused, as its tasks
would run elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.databases import Databases, provision

from slotwise import (
    ConfigurationError,
    Every,
    JobRegistry,
    SchemaMissing,
    TaskContext,
    task,
)

NEW_ID = "UPDATE scheduled_meta SET value = 'elsewhere' WHERE key = 'installation_id'"


@task(name="mail")
def mail(ctx: TaskContext[dict[str, int]]) -> None: ...


@pytest.fixture
def registry(pg_url: str) -> Iterator[JobRegistry]:
    registry = JobRegistry(tasks=[mail], database_url=pg_url)
    yield registry
    registry.database.close()


@pytest.fixture
def other_url(databases: Databases) -> Iterator[str]:
    """A second database with the tables: another installation."""

    def rename(url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute(NEW_ID)

    with databases.provisioned("elsewhere", rename) as url:
        yield url


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool
    )


@contextmanager
def plain(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


@contextmanager
def connection(url: str) -> Iterator[Any]:
    with engine_of(url).begin() as connection:
        yield connection


@contextmanager
def session(url: str) -> Iterator[Any]:
    with Session(engine_of(url)) as session, session.begin():
        yield session


@asynccontextmanager
async def async_plain(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def async_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    async with AsyncSession(engine) as session, session.begin():
        yield session
    await engine.dispose()


COMMANDS: dict[str, Callable[..., Any]] = {
    "schedule": lambda client, own: client.schedule(mail, {}, id="1", connection=own),
    "schedule_many": lambda client, own: client.schedule_many(
        mail, [{}], connection=own
    ),
    "copy": lambda client, own: client.schedule_many(
        mail, [{}], copy=True, connection=own
    ),
    "cancel": lambda client, own: client.cancel(mail, "1", connection=own),
    "reschedule": lambda client, own: client.reschedule(
        mail, "1", delay="1h", connection=own
    ),
    "retry": lambda client, own: client.retry(mail, connection=own),
}


def rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM scheduled_tasks").fetchone()
    assert found is not None
    return int(found[0])


def is_one_clear_line(error: BaseException, url: str, other_url: str) -> None:
    """It names both databases and both ids, how to go on, and no password."""
    said = str(error)
    assert "\n" not in said
    assert "mail: the connection leads to installation elsewhere" in said
    assert all(repr(sa.make_url(one).database) in said for one in (url, other_url))
    assert said.endswith("pass a connection to that database, or none")


@pytest.mark.extended
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
@pytest.mark.parametrize(
    "connect", [plain, connection, session], ids=lambda one: one.__name__
)
def test_it_is_refused(
    registry: JobRegistry,
    pg_url: str,
    other_url: str,
    connect: Any,
    command: Callable[..., Any],
) -> None:
    """Each time, and the caller's transaction goes on."""
    with connect(other_url) as own:
        for _ in range(2):
            with pytest.raises(ConfigurationError) as caught:
                command(registry.client, own)
            is_one_clear_line(caught.value, pg_url, other_url)
        own.execute("SELECT 1" if connect is plain else sa.text("SELECT 1"))
    assert rows(other_url) == 0


@pytest.mark.parametrize(
    "connect", [async_plain, async_session], ids=lambda one: one.__name__
)
def test_it_is_refused_where_it_is_awaited(
    registry: JobRegistry, pg_url: str, other_url: str, connect: Any
) -> None:
    async def main() -> None:
        async with connect(other_url) as own:
            for command in COMMANDS.values():
                with pytest.raises(ConfigurationError) as caught:
                    await command(registry.client.aio, own)
                is_one_clear_line(caught.value, pg_url, other_url)
        async with connect(pg_url) as own:
            assert (
                await registry.client.aio.schedule(mail, {}, connection=own)
            ).status == "scheduled"

    asyncio.run(main())
    assert (rows(other_url), rows(pg_url)) == (0, 1)


def test_recurring_instances_too(registry: JobRegistry, other_url: str) -> None:
    with (
        connection(other_url) as own,
        pytest.raises(ConfigurationError, match="leads to installation elsewhere"),
    ):
        registry.client.schedule_recurring(
            mail, "often", Every("5m"), {}, connection=own
        )


def test_sqlite(provisioned_sqlite: Any, sqlite_url: str, tmp_path: Any) -> None:
    """Two files; neither waits for the other's lock."""
    provision(other := f"sqlite:///{tmp_path / 'other.db'}")
    registry = JobRegistry(tasks=[mail], database_url=sqlite_url)
    with closing(registry.database), Session(sa.create_engine(other)) as own:
        with pytest.raises(
            ConfigurationError, match=r"in '.*other\.db'.*in '.*slotwise\.db'"
        ):
            registry.client.schedule(mail, {}, connection=own)
        with Session(sa.create_engine(sqlite_url)) as right:
            assert (
                registry.client.schedule(mail, {}, connection=right).status
                == "scheduled"
            )


def test_an_address_is_asked_once(registry: JobRegistry, pg_url: str) -> None:
    """Django opens a connection for each request."""
    with plain(pg_url) as own:
        registry.client.schedule(mail, {}, connection=own)
        own.execute("DROP TABLE scheduled_meta")
        registry.client.schedule(mail, {}, connection=own)
    with plain(pg_url) as own:
        registry.client.schedule(mail, {}, connection=own)
    assert rows(pg_url) == 3


def test_what_it_costs(registry: JobRegistry, pg_url: str) -> None:
    """Three statements for the first command in the process, none on top of the others."""
    engine, sent = engine_of(pg_url), []
    sa.event.listen(
        engine, "before_cursor_execute", lambda *call: sent.append(call[2].split()[0])
    )
    for _ in range(2):
        with engine.begin() as own:
            registry.client.schedule(mail, {}, connection=own)
    assert sent == ["SAVEPOINT", "SELECT", "RELEASE", "INSERT", "INSERT"]


def test_the_id_of_the_installation_changes(
    registry: JobRegistry, pg_url: str
) -> None:
    """After ``slotwise db new-epoch`` a process that knows the old id learns the new one."""
    with plain(pg_url) as own:
        registry.client.schedule(mail, {}, connection=own)
        own.execute(NEW_ID)
    with plain(pg_url.replace("127.0.0.1", "localhost")) as own:
        registry.client.schedule(mail, {}, connection=own)
    assert rows(pg_url) == 2


def test_a_role_that_may_only_insert(registry: JobRegistry, pg_url: str) -> None:
    """It cannot be asked, and schedules as before; its transaction stays usable."""
    with psycopg.connect(pg_url) as admin:
        admin.execute("CREATE ROLE inserts")
        admin.execute("GRANT SELECT, INSERT ON scheduled_tasks TO inserts")
    try:
        with psycopg.connect(pg_url, options="-c role=inserts") as own:
            assert (
                registry.client.schedule(mail, {}, connection=own).status
                == "scheduled"
            )
    finally:
        with psycopg.connect(pg_url) as admin:
            admin.execute("DROP OWNED BY inserts; DROP ROLE inserts")
    assert rows(pg_url) == 1


def test_our_own_database_cannot_be_reached(pg_url: str) -> None:
    """The caller's connection works, so its transaction must not fail because no further
    connection is free.
    """
    closed = sa.make_url(pg_url).set(port=1).render_as_string(hide_password=False)
    registry = JobRegistry(tasks=[mail], database_url=closed)
    with closing(registry.database), plain(pg_url) as own:
        assert registry.client.schedule(mail, {}, connection=own).status == "scheduled"
    assert rows(pg_url) == 1


def test_a_database_without_the_tables(
    registry: JobRegistry, pg_empty_url: str
) -> None:
    """Says so as before; the caller's transaction goes on."""
    with plain(pg_empty_url) as own:
        with pytest.raises(SchemaMissing, match="are missing in this database"):
            registry.client.schedule(mail, {}, connection=own)
        assert own.execute("SELECT 1").fetchone() == (1,)


def test_our_own_database_lacks_the_tables(pg_url: str, pg_empty_url: str) -> None:
    """The workers look there: what the caller's connection reaches would never run."""
    registry = JobRegistry(tasks=[mail], database_url=pg_empty_url)
    missing = pytest.raises(
        SchemaMissing, match="the table scheduled_meta is missing in "
    )
    with closing(registry.database), plain(pg_url) as own, missing:
        registry.client.schedule(mail, {}, connection=own)
    assert rows(pg_url) == 0
