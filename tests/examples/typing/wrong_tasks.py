"""What users get wrong about payloads: each line with a mark is an error for both checkers, and no other line is."""

from __future__ import annotations

from dataclasses import dataclass

from slotwise import Client, OneTimeTask, TaskContext, task


@dataclass
class Mail:
    to: str


class SendMail(OneTimeTask[Mail]):
    name = "send-mail"

    def execute(self, ctx: TaskContext[str]) -> None: ...  # wrong


class Send(OneTimeTask[Mail]):
    name = "send"

    def execute(self, ctx: TaskContext[Mail]) -> None:
        print(ctx.data.subject)  # wrong


@task(name="remind")
def remind(ctx: TaskContext[Mail]) -> None: ...


def enqueue(client: Client) -> None:
    client.schedule(Send, {"to": "ann@example.com"})  # wrong
    client.schedule(remind, "ann@example.com")  # wrong
    client.schedule(Send(), Mail(7))  # wrong
    client.schedule(Send, Mail("ann@example.com"), if_exists="ignore")  # wrong
    client.schedule(Send, Mail("ann@example.com"), delay=5)  # wrong
    client.schedule(Send, Mail("ann@example.com"), in_="5m")  # wrong
    client.schedule(Send, Mail("ann@example.com"), at="tomorrow")  # wrong
    client.schedule(Send, Mail("ann@example.com"), id=7)  # wrong
    client.schedule(Send, Mail("ann@example.com"), connection="postgresql://localhost")  # wrong
    client.schedule(print)  # wrong
    client.schedule_many(Send, Mail("ann@example.com"))  # wrong
    client.schedule_many(Send, ["ann@example.com"])  # wrong
    client.retry(Send, 7)  # wrong
    client.cancel(Send)  # wrong


async def enqueue_awaited(client: Client) -> None:
    await client.aio.schedule(Send, "ann@example.com")  # wrong
    print((await client.aio.schedule(Send)).state)  # wrong


@task(name="chain")
def chain(ctx: TaskContext[Mail]) -> None:
    ctx.then(Send, "ann@example.com")  # wrong
    ctx.then(Send, Mail("ann@example.com"), if_exists="ignore")  # wrong


@task(name="limits", rate_limit=100)  # wrong
def limits(ctx: TaskContext[Mail]) -> None: ...


@task(name="records", record="some")  # wrong
def records(ctx: TaskContext[Mail]) -> None: ...


@task(name="scheduled", schedule="0 2 * * *")  # wrong
def scheduled(ctx: TaskContext[Mail]) -> None: ...
