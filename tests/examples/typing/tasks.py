"""One-time tasks with typed payloads: what users write, for the type checkers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypedDict, TypeVar, assert_type

from sqlalchemy.ext.asyncio import AsyncSession

from slotwise import (
    BulkResult,
    Client,
    Every,
    Item,
    JobContext,
    OneTimeTask,
    Receipt,
    TaskContext,
    job,
    task,
)
from slotwise.inspect import TaskInfo, TaskResult


@dataclass
class Mail:
    to: str


class Order(TypedDict):
    number: int


class SendMail(OneTimeTask[Mail]):
    name = "send-mail"

    def execute(self, ctx: TaskContext[Mail]) -> None:
        assert_type(ctx.data, Mail)


class Ship(OneTimeTask[Order]):
    name = "ship"
    payload_version = 2
    upgrades = {1: lambda old: {"number": int(old)}}  # noqa: RUF012 - as users write it

    async def execute(self, ctx: TaskContext[Order]) -> int:
        return ctx.data["number"]


class Loose(OneTimeTask):
    name = "loose"

    def execute(self, ctx: TaskContext) -> None: ...


class Anything(OneTimeTask[Any]):
    name = "anything"

    def execute(self, ctx: TaskContext[Any]) -> None:
        ctx.then(self, ctx.data)


P = TypeVar("P")


class Printed(OneTimeTask[P], Generic[P]):
    def execute(self, ctx: TaskContext[P]) -> None:
        print(ctx.data)


class PrintedMail(Printed[Mail]):
    name = "printed-mail"


@task(name="bill", codec="json")
def bill(ctx: TaskContext[Order]) -> None:
    assert_type(ctx.data["number"], int)


@task(name="fetch")
async def fetch(ctx: TaskContext[str | None]) -> None: ...


@task(
    name="chain",
    record="failures",
    result_retention="1h",
    concurrency=2,
    rate_limit="100/m",
)
def chain(ctx: TaskContext[int]) -> int:
    assert_type(ctx.then(SendMail, Mail("ann@example.com"), delay="1m"), str)
    ctx.then("by-name", [1], id=ctx.id, countdown=2, if_exists="replace")
    ctx.count_down(Ship, "7")
    return ctx.data


@task(name="any")
def anything(ctx: TaskContext[Any]) -> Any:
    return ctx.data


@task(name="tick")
def tick(ctx: TaskContext) -> None:
    assert_type(ctx.data, None)
    assert_type(ctx.then(tick), str)
    assert_type(
        ctx.then(fetch, "https://example.com", at=datetime(2026, 1, 1, tzinfo=UTC)),
        str,
    )
    assert_type(ctx.id, str)
    assert_type(ctx.attempt, int)
    assert_type(ctx.cancel_reason, str | None)


@job(name="hourly", schedule="@hourly")
def hourly(ctx: JobContext) -> None:
    ctx.then(bill, Order(number=ctx.slot.hour))


def enqueue(client: Client) -> None:
    client.schedule(SendMail, Mail("ann@example.com"))
    client.schedule(SendMail(), Mail("ann@example.com"), delay="10m")
    client.schedule(PrintedMail, Mail("ann@example.com"))
    client.schedule(Ship, Order(number=1))
    client.schedule(bill, Order(number=1))
    client.schedule(fetch)
    client.schedule(fetch, None)
    client.schedule(fetch, "https://example.com", priority=90, countdown=2)
    client.schedule(Loose)
    client.schedule(Loose(), id="once", if_exists="raise")
    client.schedule(tick, delay="10m")
    client.schedule(Anything, {"any": ["thing"]})
    client.schedule(anything, 1)
    client.schedule(anything)
    client.schedule("by-name")
    client.schedule("by-name", {"any": ["thing"]})


def command(client: Client) -> None:
    assert_type(
        client.schedule(SendMail, Mail("ann@example.com"), if_exists="replace"),
        Receipt,
    )
    assert_type(
        client.schedule_many(SendMail, [Mail("ann@example.com")], copy=True),
        BulkResult,
    )
    assert_type(
        client.schedule_many(
            SendMail, [Item(Mail("ann@example.com"), id="1")], progress=print
        ),
        BulkResult,
    )
    assert_type(client.reschedule(SendMail, "1", delay="1h", priority=90), Receipt)
    assert_type(client.cancel("send-mail", "1"), Receipt)
    assert_type(client.cancel(tick, "1"), Receipt)
    assert_type(client.cancel_all(Loose, state="dead"), int)
    assert_type(
        client.schedule_recurring(bill, "ann", "@daily", Order(number=1)),
        datetime | None,
    )
    assert_type(client.schedule_recurring(hourly, "ann", Every("1h")), datetime | None)
    assert_type(client.unschedule_recurring(hourly, "ann"), bool)
    assert_type(client.retry(SendMail, "1"), list[Receipt])
    assert_type(client.retry(SendMail, ["1"], delay="1h"), list[Receipt])
    assert_type(client.retry(SendMail), list[Receipt])
    assert_type(client.get(SendMail, "1"), TaskInfo | None)
    assert_type(client.list(SendMail, state="dead"), list[TaskInfo])
    assert_type(client.result(chain, "1"), TaskResult | None)


async def command_awaited(client: Client, connection: AsyncSession) -> None:
    assert_type(
        await client.aio.schedule(
            SendMail, Mail("ann@example.com"), connection=connection
        ),
        Receipt,
    )
    assert_type(await client.aio.schedule_many(bill, [Order(number=1)]), BulkResult)
    assert_type(await client.aio.schedule(tick, delay=timedelta(minutes=1)), Receipt)
    assert_type(await client.aio.schedule(fetch), Receipt)
    assert_type(await client.aio.schedule(Anything, 1, id="one"), Receipt)
    assert_type(
        await client.aio.schedule_many(
            bill, [Item(Order(number=1), id="1")], copy=True
        ),
        BulkResult,
    )
    assert_type(await client.aio.cancel(SendMail, "1", connection=connection), Receipt)
    assert_type(await client.aio.retry(SendMail), list[Receipt])
    assert_type(await client.aio.list(), list[TaskInfo])
    assert_type(await client.aio.history(chain, "1"), list[TaskResult])
