"""What users get wrong about plain functions, states and connections: each line with a mark is an
error for both checkers, and no other line is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from slotwise import (
    Client,
    DistributedJob,
    Item,
    JobContext,
    JobRegistry,
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
async def number() -> AsyncGenerator[int, None]:
    yield 7


@task
def send_mail(to: str, order: int, *, urgent: bool = False) -> None: ...


@task
def ship(ctx: TaskContext, order: int) -> None: ...


@task
def bill(ctx: TaskContext[Customer]) -> None: ...


@job(schedule="@daily")
def nightly(customer: int = 0) -> None: ...


@job(schedule="@daily")
def of_all(ctx: JobContext[Customer | None]) -> None:
    print(ctx.data.number)  # wrong


@job(schedule="@daily")
def of_shop(ctx: JobContext[None, Shop]) -> None:
    print(ctx.state.address)  # wrong


class Night(DistributedJob):
    name = "night"
    schedule = "@daily"

    def execute(self, ctx: JobContext) -> None: ...


class OfCustomers(DistributedJob[Customer]):
    name = "of-customers"

    def execute(self, ctx: JobContext[str]) -> None: ...  # wrong


JobRegistry(jobs=[Night(), 3])  # wrong
JobRegistry(tasks=[send_mail, "x"])  # wrong
JobRegistry(jobs=[send_mail])  # wrong
JobRegistry(tasks=[Night])  # wrong
JobRegistry(jobs=[of_shop], lifespan=number)  # wrong
JobRegistry.builder().with_job(3)  # wrong
JobRegistry.builder().with_tasks(["x"])  # wrong


def enqueue(client: Client, connection: AsyncConnection) -> None:
    send_mail.call("ann")  # wrong
    send_mail.call("ann", "7")  # wrong
    send_mail.call("ann", 7, True)  # wrong
    send_mail.call("ann", 7, urgently=True)  # wrong
    send_mail.call("ann", 7, delay="1h")  # wrong
    ship.call()  # wrong
    ship.call(order="7")  # wrong
    bill.call()  # wrong
    bill.call("ann")  # wrong
    nightly.call("7")  # wrong
    of_all.call(7)  # wrong
    send_mail("ann", "7")  # wrong
    client.schedule(send_mail)  # wrong
    client.schedule(send_mail.call("ann", 7), {"to": "ann"})  # wrong
    client.schedule(send_mail.call("ann", 7), to="ann")  # wrong
    client.schedule(send_mail.call)  # wrong
    client.schedule_many([send_mail.call("ann")])  # wrong
    client.schedule_many([Item("ann")])  # wrong
    client.schedule_many(send_mail.call("ann", 7))  # wrong
    client.schedule_recurring(nightly.call("7"), "7", "@daily")  # wrong
    client.schedule(ship.call(7), connection=connection)  # wrong
    client.cancel(ship, "7", connection=connection)  # wrong
    client.get(ship, "7", connection=connection)  # wrong


async def enqueue_awaited(client: Client, connection: sa.Connection) -> None:
    await client.aio.schedule(ship.call(7), connection=connection)  # wrong
    await client.aio.schedule_many([ship.call(7)], connection=connection)  # wrong
    await client.aio.cancel(ship, "7", connection=connection)  # wrong


@task
def chain(ctx: TaskContext) -> None:
    ctx.then(send_mail.call("ann"))  # wrong
    ctx.then(send_mail.call("ann", 7), {"to": "ann"})  # wrong
    ctx.then(send_mail)  # wrong
