"""FastAPI and plain ASGI: the worker lives as long as the application, and requests use its
client.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from starlette.requests import Request
from tests.docs.markdown import ROOT, blocks
from tests.integration.shell import wait_until
from tests.kit.patience import PATIENCE

from slotwise import JobContext, JobRegistry, SchemaMissing, SlotwiseError, task
from slotwise.contrib.asgi import SlotwiseASGI
from slotwise.contrib.fastapi import (
    SlotwiseClient,
    SlotwiseRegistry,
    health_router,
    slotwise_lifespan,
)
from slotwise.embedded import EmbeddedPostgres

pytest_plugins = ["pytester"]


class Cast:
    """A registry with a task that runs on a thread, one that runs on a loop, and what they did."""

    def __init__(self, url: str) -> None:
        self.ran, self.loops, self.done = (
            list[Any](),
            list[object](),
            threading.Event(),
        )

        @task(name="work")
        def work(ctx: JobContext) -> None:
            self.ran.append(ctx.data)
            self.done.set()

        @task(name="awaited")
        async def awaited(ctx: JobContext) -> None:
            self.loops.append(asyncio.get_running_loop())
            self.done.set()

        self.work, self.awaited = work, awaited
        self.registry = JobRegistry(
            tasks=[work, awaited], database_url=url, poll_interval="1s"
        )


@pytest.fixture
def cast(pg_url: str) -> Iterator[Cast]:
    cast = Cast(pg_url)
    yield cast
    cast.registry.database.close()


def test_a_request_schedules_and_the_worker_runs(cast: Cast) -> None:
    """The dependency yields the client; async handlers run on the server's loop; the state of
    others is passed on.
    """

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        yield {"mine": asyncio.get_running_loop()}

    app = FastAPI(
        lifespan=slotwise_lifespan(cast.registry, lifespan=own, start_wait="60s")
    )
    app.include_router(health_router())

    @app.post("/jobs/{number}")
    def work(number: int, client: SlotwiseClient) -> str:
        return client.schedule(cast.work, number).status

    @app.post("/awaited")
    async def awaited(
        request: Request, client: SlotwiseClient, registry: SlotwiseRegistry
    ) -> bool:
        await client.aio.schedule(cast.awaited)
        return (
            registry is cast.registry
            and request.state.mine is asyncio.get_running_loop()
        )

    with TestClient(app) as http:
        assert http.post("/jobs/7").json() == "scheduled"
        assert cast.done.wait(PATIENCE)
        cast.done.clear()
        assert http.post("/awaited").json() is True
        assert cast.done.wait(PATIENCE)
        assert http.get("/health/live").json() == {"state": "running", "reason": None}
        assert http.get("/health/ready").status_code == 200
        assert cast.registry.worker is not None
    assert cast.registry.worker is None
    assert cast.ran == [7]
    assert len(cast.loops) == 1


def test_a_task_commits_with_the_requests_transaction(cast: Cast) -> None:
    """A row of the application and a task are there together, or neither."""
    url = sa.make_url(cast.registry.settings.database_url or "").set(
        drivername="postgresql+psycopg"
    )
    engine = create_async_engine(url, poolclass=sa.NullPool)

    async def transaction() -> AsyncIterator[AsyncConnection]:
        async with engine.begin() as connection:
            yield connection

    app = FastAPI(lifespan=slotwise_lifespan(cast.registry, worker=False))

    @app.post("/orders")
    async def create(
        fails: bool,
        client: SlotwiseClient,
        connection: AsyncConnection = Depends(transaction),  # noqa: B008
    ) -> None:
        await client.aio.schedule(cast.work, "order", connection=connection)
        if fails:
            raise RuntimeError("the request fails")

    with TestClient(app, raise_server_exceptions=False) as http:
        assert http.post("/orders?fails=true").status_code == 500
        assert cast.registry.inspect.tasks() == []
        assert http.post("/orders?fails=false").status_code == 200
        assert len(cast.registry.inspect.tasks()) == 1
        assert cast.registry.worker is None


def test_an_application_without_the_lifespan_is_told_what_is_missing() -> None:
    """The line names the lifespan, and how a test enters it."""
    app = FastAPI()
    app.get("/")(lambda client: None)

    @app.get("/client")
    def use(client: SlotwiseClient) -> None: ...

    with pytest.raises(
        SlotwiseError,
        match=r"pass lifespan=slotwise_lifespan\(registry\), and in tests write: with",
    ):
        TestClient(app).get("/client")


def test_missing_tables_end_the_servers_start(pg_empty_url: str) -> None:
    """A mistake that waiting would not cure is the server's own error."""
    registry = Cast(pg_empty_url).registry
    with (
        pytest.raises(SchemaMissing, match="run: slotwise db upgrade"),
        TestClient(FastAPI(lifespan=slotwise_lifespan(registry, start_wait="60s"))),
    ):
        pass
    registry.database.close()


@pytest.mark.extended
def test_a_server_starts_while_the_database_is_away(
    open_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves, its readiness says why not yet, and the worker follows when the database is
    back.
    """
    server = EmbeddedPostgres(open_path / "pg", durable=False)
    with server:
        from tests.databases import provision

        provision(server.dsn)
        cast = Cast(server.dsn)
    app = FastAPI(lifespan=slotwise_lifespan(cast.registry, start_wait="100ms"))
    app.include_router(health_router("/checks", details=True))
    caplog.set_level(logging.WARNING, "slotwise.host")
    with TestClient(app) as http:
        assert http.get("/checks/live").json() == {"state": "starting", "reason": None}
        ready = http.get("/checks/ready")
        assert ready.status_code == 503
        assert ready.json()["reason"].startswith(
            "the worker is starting, and waits for the database: the database "
        )
        assert "the server starts without its worker" in caplog.text
        with server:
            cast.registry.client.schedule(cast.work, 1)
            assert cast.done.wait(PATIENCE)
            wait_until(
                lambda: http.get("/checks/ready").status_code == 200, "readiness"
            )
        wait_until(
            lambda: http.get("/checks/ready").status_code == 503, "the database's end"
        )
        assert "\n" not in http.get("/checks/ready").json()["reason"]
    assert cast.registry.worker is None


def test_a_server_that_ends_while_the_database_is_away(open_path: Any) -> None:
    """The stop does not wait for the database."""
    cast = Cast(f"postgresql://nobody@/nowhere?host={open_path}")
    with TestClient(
        FastAPI(lifespan=slotwise_lifespan(cast.registry, start_wait="10ms"))
    ):
        assert _starting()
    assert cast.registry.worker is None
    assert not _starting()


def _starting() -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread.name == "slotwise-start"
    ]


class Plain:
    """An ASGI application without a framework; ``lifespan`` says how it takes the server's
    messages.
    """

    def __init__(self, lifespan: str) -> None:
        self.lifespan, self.said = lifespan, list[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            if self.lifespan == "none":
                raise ValueError("this application speaks http only")
            while True:
                message = await receive()
                self.said.append(message["type"])
                how = "failed" if self.lifespan == "fails" else "complete"
                await send({"type": f"{message['type']}.{how}"})
        host = scope["state"]["slotwise"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": host.state.encode()})


@pytest.mark.parametrize(
    ("lifespan", "said"),
    [("none", []), ("own", ["lifespan.startup", "lifespan.shutdown"])],
)
def test_plain_asgi(cast: Cast, lifespan: str, said: list[str]) -> None:
    """The middleware runs the worker with the server, whether the application has a lifespan or
    not.
    """
    plain = Plain(lifespan)
    with TestClient(
        SlotwiseASGI(plain, lambda: cast.registry, start_wait="60s")
    ) as http:
        assert http.get("/").text == "running"
    assert plain.said == said
    assert cast.registry.worker is None


def test_plain_asgi_whose_own_start_fails(cast: Cast) -> None:
    """The worker does not start then."""
    with (
        pytest.raises(
            SlotwiseError, match="the application's own startup failed: see its log"
        ),
        TestClient(SlotwiseASGI(Plain("fails"), cast.registry)),
    ):
        pass
    assert cast.registry.worker is None


@pytest.mark.extended
def test_the_pages_fixture_uses_the_test_database(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, pg_url: str
) -> None:
    """The registry and the application's engine: the address of the application itself leads
    nowhere.
    """
    found = [block.code for block in blocks(ROOT / "docs" / "frameworks.md", "python")]
    (fixture,) = [code for code in found if "slotwise_override" in code]
    pytester.makepyfile(
        main="\n".join(found[:2])
    )  # the application, and the request's transaction
    client = "from fastapi.testclient import TestClient\n"
    pytester.makepyfile(test_orders=f"from main import *\n{client}{fixture}")
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/x")
    monkeypatch.setenv("TEST_DATABASE_URL", pg_url)
    monkeypatch.syspath_prepend(pytester.path)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
