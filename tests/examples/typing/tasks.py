"""One-time tasks with typed payloads: what users write, for the type checkers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar, assert_type

from slotwise import Client, JobContext, OneTimeTask, TaskContext, task


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

    def execute(self, ctx: JobContext) -> None: ...


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


@task(name="any")
def anything(ctx: JobContext) -> Any:
    return ctx.data


def enqueue(client: Client) -> None:
    client.schedule(SendMail, Mail("ann@example.com"))
    client.schedule(SendMail(), Mail("ann@example.com"), in_="10m")
    client.schedule(PrintedMail, Mail("ann@example.com"))
    client.schedule(Ship, Order(number=1))
    client.schedule(bill, Order(number=1))
    client.schedule(fetch)
    client.schedule(Loose, {"any": ["thing"]})
    client.schedule(anything, 1)
    client.schedule("by-name", {"any": ["thing"]})
