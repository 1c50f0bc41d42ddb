"""The client in everybody's transaction: what it did stands if and only if that commits, and so it
is awaited.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.docs.markdown import ROOT, blocks

from slotwise import (
    ConfigurationError,
    Every,
    InstanceExists,
    Item,
    JobRegistry,
    TaskContext,
    task,
)
from slotwise.testing import ManualClock, ManualWorker


@task(name="mail")
def mail(ctx: TaskContext[dict[str, int]]) -> None: ...


@pytest.fixture
def registry(pg_url: str) -> Iterator[JobRegistry]:
    registry = JobRegistry(tasks=[mail], database_url=pg_url)
    yield registry
    registry.database.close()


def ids(registry: JobRegistry) -> list[str]:
    return [line.id for line in registry.client.list()]


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_connection_of_psycopg(
    registry: JobRegistry, pg_url: str, commits: bool
) -> None:
    """Every command in its transaction, with the application's own rows of whatever kind it
    likes.
    """
    client = registry.client
    client.schedule(mail, {"n": 1}, id="old")
    with psycopg.connect(pg_url, row_factory=psycopg.rows.dict_row) as connection:
        everything(client, connection)
        if not commits:
            connection.rollback()
    assert ids(registry) == (["c", "d", "new"] if commits else ["old"])


def everything(client: Any, connection: Any) -> None:
    """Each command once."""
    assert (
        client.schedule(mail, {"n": 2}, id="new", connection=connection).status
        == "scheduled"
    )
    assert (
        client.schedule(mail, {"n": 2}, id="new", connection=connection).status
        == "exists"
    )
    with pytest.raises(InstanceExists):
        client.schedule(
            mail, {"n": 2}, id="new", if_exists="raise", connection=connection
        )
    assert (
        client.schedule_many(mail, [Item({}, id="c")], connection=connection).scheduled
        == 1
    )
    assert (
        client.schedule_many(
            mail, [Item({}, id="d")], copy=True, connection=connection
        ).scheduled
        == 1
    )
    for copy in (False, True):
        with pytest.raises(
            InstanceExists, match="items\\[1\\]: task 'mail' with id 'd'"
        ):
            client.schedule_many(
                mail,
                [Item({}, id="x"), Item({}, id="d")],
                if_exists="raise",
                copy=copy,
                connection=connection,
            )
    assert (
        client.reschedule(mail, "new", delay="1h", connection=connection).status
        == "scheduled"
    )
    assert client.get(mail, "new", connection=connection).data == {"n": 2}
    assert client.cancel(mail, "old", connection=connection).status == "cancelled"
    assert client.retry(mail, connection=connection) == []
    assert [line.id for line in client.list(connection=connection)] == [
        "c",
        "d",
        "new",
    ]


@pytest.mark.parametrize("copy", [False, True], ids=["unnest", "copy"])
def test_in_whatever_encoding_the_caller_speaks(
    registry: JobRegistry, pg_url: str, copy: bool
) -> None:
    """To the server; also in a transaction within autocommit, which goes on after a refusal."""
    items = [Item({"n": 1}, id="ü"), Item({"n": 2}, id="ö")]
    autocommit = psycopg.connect(pg_url, autocommit=True, client_encoding="latin1")
    with autocommit as connection, connection.transaction():
        registry.client.schedule_many(mail, items, copy=copy, connection=connection)
        with pytest.raises(
            InstanceExists, match=r"items\[0\]: task 'mail' with id 'ü'"
        ):
            registry.client.schedule_many(
                mail, items, if_exists="raise", copy=copy, connection=connection
            )
    assert ids(registry) == ["ö", "ü"]


@asynccontextmanager
async def async_psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(
        url, row_factory=psycopg.rows.dict_row
    ) as connection:
        yield connection


@asynccontextmanager
async def async_connection(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    async with engine.connect() as connection:
        yield connection
        await connection.commit()
    await engine.dispose()


@asynccontextmanager
async def async_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    async with AsyncSession(engine) as session:
        yield session
        await session.commit()
    await engine.dispose()


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize(
    "connect",
    [async_psycopg, async_connection, async_session],
    ids=lambda one: one.__name__,
)
def test_an_async_connection(
    registry: JobRegistry, pg_url: str, connect: Callable[[str], Any], commits: bool
) -> None:
    """The same commands, awaited, in its transaction."""
    registry.client.schedule(mail, {"n": 1}, id="old")

    async def main() -> None:
        async with connect(pg_url) as connection:
            await everything_awaited(registry.client.aio, connection)
            if not commits:
                await connection.rollback()

    asyncio.run(main())
    assert ids(registry) == (["c", "d", "new"] if commits else ["old"])


async def everything_awaited(client: Any, connection: Any) -> None:
    assert (
        await client.schedule(mail, {"n": 2}, id="new", connection=connection)
    ).status == "scheduled"
    assert (
        await client.schedule(mail, {"n": 2}, id="new", connection=connection)
    ).status == "exists"
    with pytest.raises(InstanceExists):
        await client.schedule(
            mail, {"n": 2}, id="new", if_exists="raise", connection=connection
        )
    assert (
        await client.schedule_many(mail, [Item({}, id="c")], connection=connection)
    ).scheduled == 1
    assert (
        await client.schedule_many(
            mail, [Item({}, id="d")], copy=True, connection=connection
        )
    ).scheduled == 1
    for copy in (False, True):
        with pytest.raises(
            InstanceExists, match="items\\[1\\]: task 'mail' with id 'd'"
        ):
            await client.schedule_many(
                mail,
                [Item({}, id="x"), Item({}, id="d")],
                if_exists="raise",
                copy=copy,
                connection=connection,
            )
    assert (
        await client.reschedule(mail, "new", delay="1h", connection=connection)
    ).status == "scheduled"
    assert (await client.get(mail, "new", connection=connection)).data == {"n": 2}
    assert (
        await client.cancel(mail, "old", connection=connection)
    ).status == "cancelled"
    assert await client.retry(mail, connection=connection) == []
    assert await client.cancel_all(mail, state="dead", connection=connection) == 0
    assert [line.id for line in await client.list(connection=connection)] == [
        "c",
        "d",
        "new",
    ]
    assert (
        await client.schedule_recurring(
            mail, "often", Every("5m"), {}, connection=connection
        )
        is not None
    )
    assert await client.unschedule_recurring(mail, "often", connection=connection)


@pytest.mark.parametrize("kind", ["pg_url", "sqlite_url"])
def test_awaited_without_a_connection(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """On a thread: the loop goes on meanwhile."""
    registry = JobRegistry(tasks=[mail], database_url=request.getfixturevalue(kind))
    registry.client.schedule(mail, {"n": 1}, id="old")
    asyncio.run(everything_awaited(registry.client.aio, None))
    assert ids(registry) == ["c", "d", "new"]
    registry.database.close()


@pytest.mark.parametrize("many", [False, True])
def test_a_pipeline(registry: JobRegistry, pg_url: str, many: bool) -> None:
    """Its results come later, so a call would not know what it did: it is refused within one."""
    client: Any = registry.client
    call, data = ("schedule_many", [{"n": 1}]) if many else ("schedule", {"n": 1})

    async def main() -> None:
        async with async_psycopg(pg_url) as connection, connection.pipeline():
            with pytest.raises(ConfigurationError, match="in a pipeline"):
                await getattr(client.aio, call)(mail, data, connection=connection)

    with psycopg.connect(pg_url) as connection:
        with (
            connection.pipeline(),
            pytest.raises(ConfigurationError, match="in a pipeline"),
        ):
            getattr(client, call)(mail, data, connection=connection)
        getattr(client, call)(mail, data, connection=connection)
    asyncio.run(main())
    assert len(ids(registry)) == 1


def test_the_wrong_kind_of_connection(registry: JobRegistry, pg_url: str) -> None:
    """Is told which call takes it."""

    async def main() -> None:
        async with async_psycopg(pg_url) as connection:
            with pytest.raises(ConfigurationError, match=r"await client\.aio\.…"):
                registry.client.schedule(mail, {}, connection=connection)
        with (
            psycopg.connect(pg_url) as waiting,
            pytest.raises(
                ConfigurationError,
                match="Connection is not an async connection; pass an AsyncConnection",
            ),
        ):
            await registry.client.aio.schedule(mail, {}, connection=waiting)
        engine = create_async_engine("postgresql+psycopg://")
        with pytest.raises(
            ConfigurationError,
            match=r"write: async with engine\.begin\(\) as connection",
        ):
            await registry.client.aio.schedule(mail, {}, connection=engine)

    asyncio.run(main())
    with psycopg.connect(pg_url) as connection:
        lite = JobRegistry(tasks=[mail], database_url="sqlite://")
        with pytest.raises(
            ConfigurationError, match="leads to postgresql, the tables are in sqlite"
        ):
            lite.client.schedule(mail, {}, connection=connection)


@pytest.mark.parametrize(
    "command",
    [
        lambda client, **own: client.schedule(mail, {"n": 2}, id="new", **own),
        lambda client, **own: client.schedule(
            mail, {"n": 2}, id="old", if_exists="replace", **own
        ),
        lambda client, **own: client.schedule(
            mail, {"n": 2}, id="old", if_exists="reschedule", **own
        ),
        lambda client, **own: client.schedule_many(mail, [{}] * 300, **own),
        lambda client, **own: client.reschedule(mail, "old", delay="1h", **own),
        lambda client, **own: client.cancel(mail, "old", **own),
        lambda client, **own: client.retry(mail, **own),
        lambda client, **own: client.get(mail, "old", **own),
        lambda client, **own: client.list(mail, **own),
        lambda client, **own: client.history(mail, "old", **own),
    ],
    ids=[
        "schedule",
        "replace",
        "put off",
        "many",
        "reschedule",
        "cancel",
        "retry",
        "get",
        "list",
        "history",
    ],
)
def test_each_call_is_one_statement(
    registry: JobRegistry, pg_url: str, command: Callable[..., Any]
) -> None:
    """Whatever it does, where nothing stands in its way; the word that wakes workers is part of
    it.
    """
    registry.client.schedule(mail, {"n": 1}, id="old")
    engine = sa.create_engine(pg_url.replace("postgresql:", "postgresql+psycopg:"))
    sent = []
    with engine.begin() as connection:
        registry.client.get(
            mail, "none", connection=connection
        )  # the first call checks where the connection leads
        sa.event.listen(
            connection, "before_cursor_execute", lambda *call: sent.append(call[2])
        )
        command(registry.client, connection=connection)
    engine.dispose()
    assert len(sent) == 1, sent


def test_a_chunk_with_ids_is_a_transaction_that_can_be_asked_for(
    registry: JobRegistry,
) -> None:
    """It stands as a whole or not at all. Its id is read before the commit, whose reply may get
    lost.
    """
    registry.database.verify()
    sent: list[tuple[str, bool]] = []

    def listen(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        sent.append(
            (statement.split()[0], connection.connection.dbapi_connection.autocommit)
        )

    sa.event.listen(registry.database.main, "before_cursor_execute", listen)
    registry.client.schedule_many(
        mail, [Item({"n": 1}, id="a"), Item({"n": 2}, id="b")], delay="1h"
    )
    assert sent == [("INSERT", False), ("SELECT", False)]
    with pytest.raises(InstanceExists, match=r"items\[1\]: task 'mail' with id 'b'"):
        registry.client.schedule_many(
            mail,
            [Item({"n": 3}, id="c"), Item({"n": 4}, id="b")],
            delay="1h",
            if_exists="raise",
        )
    assert [line.id for line in registry.client.list(mail)] == ["a", "b"]


def test_plain_sql(pg_url: str) -> None:
    """The INSERT of the documentation makes a task like any other: it runs, and is due, cancelled
    and listed.
    """
    (statement,) = [
        block.code
        for block in blocks(ROOT / "docs" / "queue.md", "sql")
        if "INSERT" in block.code
    ]
    given: list[Any] = []

    @task(name="send-mail")
    def send_mail(ctx: TaskContext[dict[str, str]]) -> None:
        given.append((ctx.data, ctx.idempotency_key))

    engine = sa.create_engine(pg_url.replace("postgresql:", "postgresql+psycopg:"))
    with ManualWorker(
        [send_mail], pg_url, ManualClock(datetime(2100, 1, 1, tzinfo=UTC))
    ) as worker:
        with engine.begin() as connection:
            for _ in range(2):  # the second finds the id taken
                connection.execute(sa.text(statement.replace(":", r"\:")))
        (line,) = worker.client.list()
        assert (line.task, line.id, line.state, line.priority) == (
            "send-mail",
            "welcome-42",
            "waiting",
            50,
        )
        assert line.scheduled is not None
        assert [event.outcome for event in worker.run_due()] == ["succeeded"]
    engine.dispose()
    ((data, key),) = given
    assert data == {"to": "ann@example.com"}
    assert re.fullmatch(r"send-mail/welcome-42/\d{16}", key)


@pytest.mark.parametrize("library", ["psycopg2", "asyncpg"])
def test_connections_of_other_libraries(registry: JobRegistry, library: str) -> None:
    """The line names the library, and what to pass instead."""
    foreign = type("connection", (), {"__module__": f"{library}.extensions"})()
    with pytest.raises(
        ConfigurationError,
        match=f"a connection of {library} cannot be joined; pass one of psycopg 3",
    ):
        registry.client.schedule(mail, {"n": 1}, connection=foreign)
