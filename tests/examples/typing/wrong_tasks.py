"""What users get wrong about payloads: each line with a mark is an error for both checkers, and no
other line is.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotwise import (
    Client,
    Context,
    DistributedJob,
    Every,
    Item,
    JobContext,
    JobRegistry,
    OneTimeTask,
    TaskContext,
    task,
)


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


class OfAJob(OneTimeTask[Mail]):
    name = "of-a-job"

    def execute(self, ctx: JobContext) -> None: ...  # wrong


class OfATask(DistributedJob):
    name = "of-a-task"
    schedule = Every("1m")

    def execute(self, ctx: TaskContext) -> None: ...  # wrong


class Plain(OneTimeTask):
    name = "plain"

    def execute(self, ctx: TaskContext) -> None:
        print(ctx.data.to)  # wrong


@task(name="slot")
def slot(ctx: TaskContext[Mail]) -> None:
    print(ctx.slot)  # wrong
    print(ctx.interval_start)  # wrong
    print(ctx.interval_end.date())  # wrong


def traced(ctx: JobContext) -> None: ...


def reads_slot(ctx: Context) -> None:
    print(ctx.slot)  # wrong


JobRegistry(tasks=[slot], before_start=[traced])  # wrong


@task(name="remind")
def remind(ctx: TaskContext[Mail]) -> None: ...


def enqueue(client: Client) -> None:
    client.schedule(Send)  # wrong
    client.schedule(Send())  # wrong
    client.schedule(remind, None)  # wrong
    client.schedule(remind, delay="10m")  # wrong
    client.schedule(Plain, Mail("ann@example.com"))  # wrong
    client.schedule(Plain(), {})  # wrong
    client.schedule(slot, slot)  # wrong
    client.schedule(Send, Mail("ann@example.com"), priority="high")  # wrong
    client.schedule(Send, Mail("ann@example.com"), countdown="2")  # wrong
    client.schedule(Send, {"to": "ann@example.com"})  # wrong
    client.schedule(remind, "ann@example.com")  # wrong
    client.schedule(Send(), Mail(7))  # wrong
    client.schedule(Send, Mail("ann@example.com"), if_exists="ignore")  # wrong
    client.schedule(Send, Mail("ann@example.com"), delay=5)  # wrong
    client.schedule(Send, Mail("ann@example.com"), in_="5m")  # wrong
    client.schedule(Send, Mail("ann@example.com"), at="tomorrow")  # wrong
    client.schedule(Send, Mail("ann@example.com"), id=7)  # wrong
    client.schedule(Send, Mail("ann@example.com"), connection="sqlite://")  # wrong
    client.schedule(print)  # wrong
    client.schedule_many(Send, Mail("ann@example.com"))  # wrong
    client.schedule_many(Send, ["ann@example.com"])  # wrong
    client.schedule_many(Send, [Item("ann@example.com")])  # wrong
    client.schedule_many(Plain, [Mail("ann@example.com")])  # wrong
    client.retry(Send, 7)  # wrong
    client.cancel(Send)  # wrong
    client.cancel(print, "1")  # wrong


async def enqueue_awaited(client: Client) -> None:
    await client.aio.schedule(Send, "ann@example.com")  # wrong
    await client.aio.schedule(Send)  # wrong
    await client.aio.schedule(Plain, 1)  # wrong
    print((await client.aio.schedule(Plain)).state)  # wrong
    print((await client.aio.cancel(Send, "1")).state)  # wrong


@task(name="chain")
def chain(ctx: TaskContext[Mail]) -> None:
    ctx.then(Send, "ann@example.com")  # wrong
    ctx.then(Send)  # wrong
    ctx.then(Plain, Mail("ann@example.com"))  # wrong
    ctx.then(Send, Mail("ann@example.com"), connection=None)  # wrong
    ctx.then(Send, Mail("ann@example.com"), if_exists="ignore")  # wrong


@task(name="limits", rate_limit=100)  # wrong
def limits(ctx: TaskContext[Mail]) -> None: ...


@task(name="records", record="some")  # wrong
def records(ctx: TaskContext[Mail]) -> None: ...


@task(name="scheduled", schedule="0 2 * * *")  # wrong
def scheduled(ctx: TaskContext[Mail]) -> None: ...
