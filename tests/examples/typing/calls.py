"""Plain functions as tasks and jobs, and calls of them: what users write, for the type checkers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from slotwise import (
    BulkResult,
    Call,
    Client,
    Context,
    Disabled,
    DistributedJob,
    Item,
    JobContext,
    JobRegistry,
    Receipt,
    TaskContext,
    job,
    task,
)


@dataclass
class Customer:
    number: int


class Shop:
    name = "shop"


@asynccontextmanager
async def shop() -> AsyncGenerator[Shop, None]:
    yield Shop()


@task
def send_mail(to: str, order: int, *, urgent: bool = False) -> str:
    return f"{order} to {to}, {urgent}"


@task(name="fetch", rate_limit="100/m")
async def fetch(url: str | None = None) -> int:
    return len(url or "")


@task
def note() -> None: ...


@task
def ship(ctx: TaskContext, order: int, by: str = "post") -> int:
    assert_type(ctx.id, str)
    assert_type(ctx.then(send_mail.call("ann", order), delay="1h"), str)
    return order


@task
def tick(ctx: TaskContext) -> None: ...


@task
def bill(ctx: TaskContext[Customer]) -> None:
    assert_type(ctx.data, Customer)


@task(name="report")
def report(ctx: TaskContext[None, Shop], customer: int) -> None:
    assert_type(ctx.state, Shop)


@task
def watched(ctx: Context, customer: int) -> None: ...


@job(schedule="@daily")
def nightly(customer: int = 0) -> int:
    return customer


@job(schedule="@daily")
def of_shop(ctx: JobContext[None, Shop]) -> None:
    assert_type(ctx.state.name, str)


@job(schedule="@daily", name="of-all")
def of_all(ctx: JobContext[Customer | None]) -> None:
    assert_type(ctx.data, Customer | None)


@job(schedule="@daily")
def with_both(ctx: JobContext, customer: int = 0) -> None:
    assert_type(ctx.slot, datetime)


class OfCustomers(DistributedJob[Customer]):
    name = "of-customers"
    schedule = Disabled()

    def execute(self, ctx: JobContext[Customer]) -> None:
        assert_type(ctx.data, Customer)


class OfShop(DistributedJob[None, Shop]):
    name = "of-shop"
    schedule = "@daily"

    def execute(self, ctx: JobContext[None, Shop]) -> None:
        assert_type(ctx.state, Shop)


registry = JobRegistry(
    jobs=[nightly, of_shop, of_all, with_both, OfCustomers, OfShop()],
    tasks=[send_mail, fetch, note, ship, tick, bill, report, watched],
    lifespan=shop,
)


def enqueue(client: Client, connection: sa.Connection) -> None:
    assert_type(send_mail.call(to="ann", order=7), Call)
    assert_type(client.schedule(send_mail.call("ann", 7, urgent=True)), Receipt)
    client.schedule(send_mail.call("ann", 7), delay="1h", connection=connection)
    client.schedule(send_mail, {"to": "ann", "order": 7})
    client.schedule(fetch.call())
    client.schedule(note.call(), id="once", priority=90)
    client.schedule(ship.call(7, by="air"))
    client.schedule(tick.call())
    client.schedule(tick)
    client.schedule(bill.call(Customer(7)))
    client.schedule(bill, Customer(7))
    client.schedule(report.call(customer=7))
    client.schedule(watched.call(customer=7))
    assert_type(
        client.schedule_many(send_mail.call("ann", number) for number in range(9)),
        BulkResult,
    )
    client.schedule_many([Item(send_mail.call("ann", 7), id="7")], priority=90)
    client.schedule_recurring(nightly.call(customer=7), "7", "@hourly")
    client.schedule_recurring(of_all.call(Customer(7)), "7", "@hourly")
    client.schedule_recurring(send_mail.call("ann", 7), "ann", "@daily")
    client.schedule_recurring(with_both.call(7), "7", "@hourly", connection=connection)
    assert_type(client.cancel(send_mail, "once", connection=connection), Receipt)


async def enqueue_awaited(client: Client, connection: AsyncConnection) -> None:
    assert_type(await client.aio.schedule(send_mail.call("ann", 7)), Receipt)
    await client.aio.schedule(tick, connection=connection)
    await client.aio.schedule_many([fetch.call("https://example.com")])
    await client.aio.schedule_recurring(nightly.call(7), "7", "@hourly")
    assert_type(await client.aio.cancel(tick, "1", connection=connection), Receipt)


def test_functions(ctx: TaskContext) -> None:
    assert_type(send_mail("ann", 7), str)
    assert_type(ship(ctx, 7), int)
    assert_type(nightly(), int)


async def test_coroutines() -> None:
    assert_type(await fetch("https://example.com"), int)
