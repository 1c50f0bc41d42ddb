"""Jobs as functions, registries and their settings: what users write, for the type checkers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import sqlalchemy as sa

from slotwise import (
    Client,
    Context,
    Every,
    FixedDelay,
    JobContext,
    JobRegistry,
    Receipt,
    Retry,
    Settings,
    Skip,
    TaskContext,
    job,
    task,
)
from slotwise.inspect import Health, JobInfo, SlotInfo, WorkerInfo
from slotwise.operations import Backfill, Resumed


@job(name="synchronous", schedule=Every("1m"))
def synchronous(ctx: JobContext) -> None: ...


@job(name="asynchronous", schedule=FixedDelay("30s"), on_lost="give_up")
async def asynchronous(ctx: JobContext) -> None: ...


@task(
    name="send-mail",
    retry=Retry.exponential(max_attempts=3, initial=timedelta(seconds=1)),
)
def send_mail(ctx: TaskContext[Any]) -> None: ...


@task(name="fetch")
async def fetch(ctx: TaskContext) -> int:
    return 1


@asynccontextmanager
async def lifespan() -> AsyncGenerator[str, None]:
    yield "state"


@contextmanager
def timed(ctx: Context) -> Generator[None, None, None]:
    ctx.log.info("%s, attempt %s", ctx.name, ctx.attempt)
    yield


def only_by_day(ctx: Context) -> None:
    if ctx.worker.startswith("night"):
        raise Skip("night")


def narrower(settings: Settings) -> Settings:
    return settings.replace(threads=2)


registry = JobRegistry(
    jobs=[synchronous, asynchronous],
    tasks=[send_mail, fetch],
    lifespan=lifespan,
    listeners=[lambda event: print(event.name)],
    interceptors=[timed],
    before_start=[only_by_day],
    customize=narrower,
    poll_interval="5s",
    heartbeat_interval=timedelta(seconds=5),
)

built = (
    JobRegistry.builder()
    .with_job(synchronous)
    .with_jobs([asynchronous])
    .with_task(fetch)
    .settings(
        database_url="sqlite:///jobs.db",
        poll_interval=timedelta(seconds=5),
        heartbeat_interval="5s",
    )
    .settings(missed_heartbeats_limit=4, shutdown_grace="1m", threads=4)
    .customize(narrower)
    .build()
)


def enqueue(client: Client, connection: sa.Connection) -> Receipt:
    client.schedule(send_mail, {"to": "ann@example.com"})
    client.schedule("send-mail", delay="10m", if_exists="keep", id="one")
    client.schedule(fetch, at=datetime(2026, 1, 1, tzinfo=UTC), connection=connection)
    return client.schedule(fetch, delay=timedelta(minutes=1))


async def serve() -> None:
    async with registry as running:
        running.client.schedule(send_mail, None)


def script() -> int:
    with registry:
        pass
    return registry.stop(timedelta(seconds=5))


def order(slot: datetime) -> None:
    operations = registry.operations
    assert_type(operations.pause(synchronous, note="deploy"), bool)
    assert_type(
        operations.resume("synchronous", replay=True, dry_run=True), list[Resumed]
    )
    assert_type(operations.trigger(synchronous, overlap="queue"), datetime)
    assert_type(operations.skip_next(synchronous), datetime)
    assert_type(operations.cancel("synchronous", slot, id="ann"), list[datetime])
    assert_type(operations.retry(synchronous, slot), None)
    assert_type(
        operations.backfill(synchronous, slot, slot, pace="5s", dry_run=True), Backfill
    )
    assert_type(operations.cancel_backfill(fetch), int)
    assert_type(operations.delete("synchronous", force=True), int)
    assert_type(registry.inspect.slot(synchronous, slot), SlotInfo | None)


def operate() -> str:
    registry.operations.by("ada").trigger(synchronous, note="please")
    lines: list[JobInfo] = registry.inspect.jobs()
    slots: list[SlotInfo] = registry.inspect.slots(synchronous, limit=5)
    health: Health = registry.inspect.health("5m")
    return f"{lines} {slots} {health.overdue} {registry.inspect.audit()[0].operation}"


async def look() -> list[WorkerInfo]:
    return await registry.inspect.aio.workers()
