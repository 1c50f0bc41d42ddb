"""guard and complete_in in a real worker: work and settlement commit together, or neither does."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from tests.databases import provision
from tests.integration.hearing import Heard, sorted_out
from tests.kit.patience import PATIENCE

from slotwise import (
    Cancel,
    ClaimLost,
    ConfigurationError,
    Every,
    Fail,
    JobContext,
    JobRegistry,
    Retry,
    Snooze,
    job,
    task,
)

SOON = timedelta(milliseconds=20)


class Shop:
    """The application's own engine and table, in the database that holds ours; handlers write into
    it.
    """

    def __init__(self, url: str, heard: Heard) -> None:
        self.url = url
        self.heard = heard
        self.address = url.replace("postgresql://", "postgresql+psycopg://")
        self.engine = sa.create_engine(self.address)
        with self.engine.begin() as connection:
            connection.exec_driver_sql("create table orders (id text, token bigint)")
        self.errors: list[BaseException] = []

    def write(self, connection: Any, ctx: JobContext) -> None:
        connection.execute(
            sa.text("insert into orders values (:id, :token)"),
            {"id": ctx.name, "token": ctx.token},
        )

    def orders(self) -> int:
        return int(self.select("select count(*) from orders")[0][0])

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement)]

    def run(
        self,
        handler: Any,
        *,
        kind: str = "job",
        until: str = "settled",
        count: int = 1,
        **policies: Any,
    ) -> None:
        """One slot of a job, or one task, with this handler."""
        subject: object = job(name="buy", schedule=Every("100ms"), **policies)(handler)
        if kind == "task":
            subject = task(
                name="buy", retry=Retry.exponential(max_attempts=2, initial=SOON)
            )(handler)
        registry = JobRegistry(
            **sorted_out(subject),
            listeners=[self.heard],
            database_url=self.url,
            process_hook=False,
            poll_interval="50ms",
        )
        with registry:
            if kind == "task":
                registry.client.schedule("buy", id="1")
            self.heard.wait(until, count)


@pytest.fixture
def shop(url: str, heard: Heard) -> Iterator[Shop]:
    shop = Shop(url, heard)
    yield shop
    shop.engine.dispose()


def all_have_ended(shop: Shop) -> None:
    """Waits until no transaction of a worker is left that had begun by now; on SQLite, none that
    writes.
    """
    if shop.url.startswith("sqlite"):
        with closing(
            sqlite3.connect(
                shop.url.removeprefix("sqlite:///"), PATIENCE, isolation_level=None
            )
        ) as file:
            file.execute("begin immediate")
        return
    with shop.engine.connect().execution_options(
        isolation_level="AUTOCOMMIT"
    ) as connection:
        begun = connection.scalar(sa.text("select clock_timestamp()"))
        older = sa.text(
            "select query from pg_stat_activity where datname = current_database()"
            " and application_name like 'slotwise%' and xact_start < :begun"
        )
        end = time.monotonic() + PATIENCE
        while left := connection.execute(older, {"begun": begun}).scalars().all():
            assert time.monotonic() < end, left


@pytest.mark.parametrize("way", ["job", "job that gives up", "task", "async"])
def test_no_transaction_of_ours_is_open_while_a_handler_runs(
    shop: Shop, way: str
) -> None:
    """What had begun before the handler ends beside it: nothing waits for the handler to end."""

    def look(ctx: JobContext) -> None:
        all_have_ended(shop)

    async def look_async(ctx: JobContext) -> None:
        await asyncio.to_thread(all_have_ended, shop)

    policies: dict[str, Any] = (
        {"on_lost": "give_up"} if way == "job that gives up" else {}
    )
    shop.run(
        look_async if way == "async" else look,
        kind="task" if way == "task" else "job",
        **policies,
    )
    assert shop.heard.of("settled")[0].outcome == "succeeded"


KINDS = pytest.mark.parametrize("kind", ["job", "task"])


@KINDS
@pytest.mark.parametrize(
    "afterwards",
    [ValueError("x"), Snooze("1s"), Cancel("x"), Fail("x")],
    ids=lambda e: type(e).__name__,
)
def test_work_and_success_commit_together(
    shop: Shop, kind: str, afterwards: Exception
) -> None:
    """Once, whatever the handler does afterwards."""

    def buy(ctx: JobContext) -> None:
        if ctx.attempt > 1 or shop.orders():
            return
        with shop.engine.begin() as connection:
            ctx.guard(connection)
            shop.write(connection, ctx)
            ctx.complete_in(connection)
        raise afterwards

    shop.run(buy, kind=kind)
    assert shop.heard.of("settled")[0].outcome == "succeeded"
    assert shop.orders() == 1
    done = shop.select(
        "select attempts from scheduled_slots where outcome = 'succeeded' order by slot limit 1"
    )
    # Of a task without a record, a success leaves nothing.
    assert done == ([(1,)] if kind == "job" else [])
    if kind == "task":
        assert shop.select(
            "select count(*) from scheduled_tasks where task_name = 'buy'"
        ) == [(0,)]


@KINDS
@pytest.mark.parametrize("in_session", [False, True], ids=["connection", "session"])
def test_what_was_rolled_back_did_not_succeed(
    shop: Shop, kind: str, in_session: bool
) -> None:
    """Whatever the handler returns; a task is tried again, and then succeeds."""

    def buy(ctx: JobContext) -> None:
        with (
            Session(shop.engine) if in_session else shop.engine.connect() as connection
        ):
            shop.write(connection, ctx)
            ctx.complete_in(connection)
            if ctx.attempt > 1:
                connection.commit()
            else:
                connection.rollback()

    shop.run(buy, kind=kind, count=1 if kind == "job" else 2)
    first, *more = shop.heard.of("settled")
    assert first.outcome == "failed"
    assert (
        first.error == "complete_in was called, but its transaction was not committed"
    )
    if kind == "task":
        assert [event.outcome for event in more] == ["succeeded"]
        assert shop.orders() == 1


@KINDS
def test_a_stale_token_writes_nothing(shop: Shop, kind: str) -> None:
    """The claim is somebody else's by now: ClaimLost, and the work is rolled back with it."""

    def buy(ctx: JobContext) -> None:
        if ctx.attempt > 1 or stolen.is_set():
            return
        with shop.engine.begin() as connection:
            connection.exec_driver_sql(
                f"update scheduled_tasks set version = version + 1, picked = {no}, "
                "picked_by = null, "
                "last_heartbeat = null, lease = null where task_name = 'buy'"
            )
            connection.exec_driver_sql(
                "update scheduled_slots set token = token + 1 where task_name = 'buy'"
            )
        stolen.set()
        for verb in (ctx.guard, ctx.complete_in):
            try:
                with shop.engine.begin() as connection:
                    shop.write(connection, ctx)
                    verb(connection)
            except ClaimLost as error:
                shop.errors.append(error)

    stolen = threading.Event()
    no = "false" if shop.engine.dialect.name == "postgresql" else "0"
    shop.run(buy, kind=kind, until="claim_lost")
    assert len(shop.errors) == 2
    assert "is stale; another worker may run this slot, so roll back" in str(
        shop.errors[0]
    )
    assert shop.orders() == 0


def refused(shop: Shop, kind: str, connect: Any) -> list[str]:
    """What guard and complete_in say to this connection."""
    said: list[str] = []

    def buy(ctx: JobContext) -> None:
        for verb in (ctx.guard, ctx.complete_in):
            with connect() as connection:
                try:
                    verb(connection)
                except ConfigurationError as error:
                    said.append(str(error))

    shop.run(buy, kind=kind)
    return said


@KINDS
@pytest.mark.parametrize("where", ["engine", "connection"])
def test_autocommit_is_refused(shop: Shop, kind: str, where: str) -> None:
    """Each statement by itself proves nothing for the next; wherever it was switched on."""
    options = {"isolation_level": "AUTOCOMMIT"}
    engine = (
        sa.create_engine(shop.address, **options) if where == "engine" else shop.engine
    )  # type: ignore[arg-type]
    said = refused(
        shop,
        kind,
        lambda: engine.connect().execution_options(
            **({} if where == "engine" else options)
        ),
    )
    assert len(said) == 2
    assert all(
        "commits every statement by itself (AUTOCOMMIT)" in each for each in said
    )
    engine.dispose()


def test_a_pipeline_is_refused(pg_url: str, heard: Heard) -> None:
    """Its results come later: neither the guard nor the success would be known."""
    shop = Shop(pg_url, heard)

    @contextmanager
    def piped() -> Iterator[psycopg.Connection]:
        with psycopg.connect(pg_url) as connection, connection.pipeline():
            yield connection

    said = refused(shop, "task", piped)
    shop.engine.dispose()
    assert len(said) == 2
    assert all("is in a pipeline, whose results come later" in each for each in said)


@pytest.mark.extended
@KINDS
@pytest.mark.parametrize(
    ("has_tables", "words"),
    [
        (False, "does not reach scheduled_meta: pass one to the database that holds"),
        (True, "the connection leads to installation"),
    ],
    ids=["without tables", "with its own"],
)
def test_another_database_is_refused(
    shop: Shop, kind: str, pg_empty_url: str, has_tables: bool, words: str
) -> None:
    """Work there and settlement here cannot commit together."""
    if has_tables:
        provision(pg_empty_url)
    other = sa.create_engine(
        pg_empty_url.replace("postgresql://", "postgresql+psycopg://")
    )
    said = refused(shop, kind, other.connect)
    assert len(said) == 2
    if shop.url.startswith("sqlite"):
        words = "the connection leads to postgresql, the tables are in sqlite"
    assert all(words in each for each in said), said
    other.dispose()


@KINDS
def test_heartbeats_go_on_under_an_open_guard(
    pg_url: str, heard: Heard, kind: str
) -> None:
    """The guard locks nothing that a heartbeat needs: under it, heartbeats of its own row
    commit.
    """
    shop = Shop(pg_url, heard)
    newest = sa.text(
        "SELECT last_heartbeat FROM scheduled_tasks WHERE task_name = 'buy' AND picked"
    )

    def buy(ctx: JobContext) -> None:
        if shop.errors:
            return
        with shop.engine.begin() as connection:
            ctx.guard(connection)
            beats = {connection.execute(newest).scalar_one()}
            while len(beats) < 5:
                time.sleep(0.05)
                beats.add(connection.execute(newest).scalar_one())
            shop.write(connection, ctx)
            ctx.complete_in(connection)
        shop.errors.append(ValueError("only once"))

    registry = JobRegistry(
        **sorted_out(
            job(name="buy", schedule=Every("100ms"))(buy)
            if kind == "job"
            else task(name="buy")(buy)
        ),
        listeners=[heard],
        database_url=pg_url,
        process_hook=False,
        heartbeat_interval="100ms",
        missed_heartbeats_limit=300,  # a loaded machine loses no claim
    )
    with registry:
        if kind == "task":
            registry.client.schedule("buy")
        heard.wait("settled", outcome="succeeded")
    assert heard.of("claim_lost") == []
    assert shop.orders() == 1
    shop.engine.dispose()


def test_a_handler_that_returns_before_its_transaction_ends(
    pg_url: str, heard: Heard
) -> None:
    """The settlement waits for it, as long as it takes, and tells the truth then."""
    shop, left = Shop(pg_url, heard), []

    def buy(ctx: JobContext) -> None:
        if left:
            return
        connection = shop.engine.connect()
        shop.write(connection, ctx)
        ctx.complete_in(connection)
        left.append(connection)

    registry = JobRegistry(
        tasks=[task(name="buy")(buy)],
        listeners=[heard],
        database_url=pg_url,
        process_hook=False,
        heartbeat_interval="200ms",
        missed_heartbeats_limit=100,
    )
    with registry:
        registry.client.schedule("buy")
        heard.wait(
            "settle_sent", 2
        )  # it could not be written at once, and is tried again
        left[0].commit()
        (settled,) = heard.wait("settled")
    assert settled.outcome == "succeeded"
    assert shop.orders() == 1
    left[0].close()
    shop.engine.dispose()


def test_a_stop_after_the_commit_does_not_run_the_task_again(
    url: str, heard: Heard
) -> None:
    """The work is done and settled; the handler is asked to stop in what it does after it."""
    shop, ready = Shop(url, heard), threading.Event()

    def buy(ctx: JobContext) -> None:
        with shop.engine.begin() as connection:
            shop.write(connection, ctx)
            ctx.complete_in(connection)
        ready.set()
        ctx.wait(timedelta(seconds=PATIENCE))
        ctx.check()

    registry = JobRegistry(
        tasks=[task(name="buy")(buy)],
        listeners=[heard],
        database_url=url,
        process_hook=False,
        shutdown_grace="0s",
    )
    with registry:
        registry.client.schedule("buy")
        assert ready.wait(PATIENCE)
    assert [event.outcome for event in heard.of("settled")] == ["succeeded"]
    assert shop.select("select count(*) from scheduled_tasks") == [(0,)]
    shop.engine.dispose()
