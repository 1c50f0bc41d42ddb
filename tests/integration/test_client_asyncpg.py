"""The client joins transactions of SQLAlchemy over asyncpg, which slotwise itself does not use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from slotwise import ConfigurationError, JobRegistry, TaskContext, task
from slotwise.testing import ManualClock, ManualWorker

if not os.environ.get("ALL_TESTS_MUST_RUN"):
    pytest.importorskip("asyncpg")


@task(name="mail")
async def mail(ctx: TaskContext[dict[str, int]]) -> None: ...


@pytest.fixture
def registry(pg_url: str) -> JobRegistry:
    """A registry with one task, on a database with the tables."""
    return JobRegistry(tasks=[mail], database_url=pg_url)


@asynccontextmanager
async def connection_to(url: str) -> AsyncIterator[AsyncConnection]:
    engine = create_async_engine(
        sa.make_url(url).set(drivername="postgresql+asyncpg"), poolclass=sa.NullPool
    )
    async with engine.connect() as connection:
        yield connection


def test_a_task_commits_or_rolls_back_with_a_session(
    registry: JobRegistry, pg_url: str
) -> None:
    """What is scheduled in a session exists if, and only if, the session commits."""

    async def main() -> None:
        async with (
            connection_to(pg_url) as connection,
            AsyncSession(connection) as session,
        ):
            await registry.client.aio.schedule(
                mail, {"n": 1}, id="kept", connection=session
            )
            await session.commit()
            await registry.client.aio.schedule(
                mail, {"n": 2}, id="gone", connection=session
            )
            await session.rollback()

    asyncio.run(main())
    assert [line.id for line in registry.client.list(mail)] == ["kept"]
    registry.database.close()


def test_a_handler_completes_in_a_session(pg_url: str) -> None:
    """``complete_in`` awaited over asyncpg: the effect and the end of the task commit together."""

    @task(name="write", record="all")
    async def write(ctx: TaskContext[int]) -> None:
        async with connection_to(pg_url) as connection, connection.begin():
            await connection.execute(
                sa.text("INSERT INTO effects VALUES (:n)"), {"n": ctx.data}
            )
            found = ctx.complete_in(connection)
            assert found is not None
            await found

    engine = sa.create_engine(sa.make_url(pg_url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE effects (n int)"))
    registry = JobRegistry(tasks=[write], database_url=pg_url)
    registry.client.schedule(write, 7, id="seven")
    with ManualWorker(registry, pg_url, ManualClock(registry.inspect.now())) as worker:
        worker.tick("1s")
        assert [event.outcome for event in worker.run_due()] == ["succeeded"]
    with engine.begin() as connection:
        assert connection.scalars(sa.text("SELECT n FROM effects")).all() == [7]
    engine.dispose()
    registry.database.close()


def test_a_connection_of_its_own_is_refused(
    registry: JobRegistry, pg_url: str
) -> None:
    """One line names what to pass instead."""

    async def main() -> None:
        async with connection_to(pg_url) as connection:
            raw = (await connection.get_raw_connection()).driver_connection
            await registry.client.aio.schedule(mail, {"n": 1}, connection=raw)

    with pytest.raises(
        ConfigurationError,
        match="pass an AsyncConnection or AsyncSession of SQLAlchemy",
    ):
        asyncio.run(main())
    registry.database.close()
