"""What users write by mistake: each line with a mark is an error for both checkers, and no other
line is.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from slotwise import (
    CatchUp,
    Cron,
    Daily,
    DistributedJob,
    Every,
    JobContext,
    JobRegistry,
    Overlap,
    Retry,
    Snooze,
    job,
)
from slotwise.contrib.commands import CommandJob


class WrongSchedule(DistributedJob):
    name = "wrong-schedule"
    schedule = 120  # wrong

    def execute(self, ctx: JobContext) -> None: ...


class WrongName(DistributedJob):
    name = 7  # wrong
    schedule = Every("1m")

    def execute(self, ctx: JobContext) -> None: ...


class WrongPolicy(DistributedJob):
    name = "wrong-policy"
    schedule = Every("1m")
    on_lost = "ignore"  # wrong

    def execute(self, ctx: JobContext) -> None: ...


class WrongHandler(DistributedJob):
    name = "wrong-handler"
    schedule = Every("1m")

    def execute(self) -> None: ...  # wrong


class NoHandler(DistributedJob):
    name = "no-handler"
    schedule = Every("1m")


NoHandler()  # wrong


@job(name="no-schedule")  # wrong
def no_schedule(ctx: JobContext) -> None: ...


JobRegistry(jobs=7)  # wrong
JobRegistry(jobs=[], poll_intervall="5s")  # wrong
JobRegistry(jobs=[], poll_interval=5)  # wrong
JobRegistry(jobs=[], threads="4")  # wrong
JobRegistry(jobs=[], tags=1)  # wrong
JobRegistry(jobs=[], log_format="xml")  # wrong
JobRegistry(jobs=[], lifespan="lifespan")  # wrong
JobRegistry(jobs=[], customize=lambda settings: 1)  # wrong
JobRegistry.builder().settings(threads="4")  # wrong
JobRegistry.builder().settings(poll_interval=5)  # wrong


@job(name="misspelled", schedule=Every("1m"), catchup=CatchUp.latest())  # wrong
def misspelled(ctx: JobContext) -> None: ...


@job(name="number", schedule=Every("1m"), timeout=60)  # wrong
def number(ctx: JobContext) -> None: ...


@job(name="text", schedule=Every("1m"), overlap="skip")  # wrong
def text(ctx: JobContext) -> None: ...


@job(name="tries", schedule=Every("1m"), retry=3)  # wrong
def tries(ctx: JobContext) -> None: ...


@job(name="isolated", schedule=Every("1m"), isolation="thread")  # wrong
def isolated(ctx: JobContext) -> None: ...


@job(name="limited", schedule=Every("1m"), concurrency=3)  # wrong
def limited(ctx: JobContext) -> None: ...


Every(5)  # wrong
Cron("0 2 * * *", gap="later")  # wrong
Cron("0 2 * * *", day_rule="xor")  # wrong
Daily(2)  # wrong
CatchUp.all(max="3")  # wrong
CatchUp.none(grace=60)  # wrong
Overlap.allow()  # wrong
Overlap.queue("2")  # wrong
Retry.exponential(max_attempts="5")  # wrong
Retry.exponential(first="2s")  # wrong
Snooze(60)  # wrong


def handle(ctx: JobContext, connection: sa.Connection) -> None:
    ctx.wait(5)  # wrong
    ctx.guard("postgresql://localhost/shop")  # wrong
    ctx.complete_in(None)  # wrong
    ctx.slot.later()  # wrong
    print(ctx.interval_end + 1)  # wrong
    print(ctx.interval_start.hour)  # wrong
    text: str = ctx.slot  # wrong
    print(text)
    print(ctx.missed)  # wrong


async def handle_awaited(ctx: JobContext, connection: sa.Connection) -> None:
    await ctx.guard(connection)  # wrong


def operate(registry: JobRegistry, day: datetime) -> None:
    registry.operations.pause(7)  # wrong
    registry.operations.pause(NoHandler, notes="why")  # wrong
    registry.operations.resume("report", replay="yes")  # wrong
    registry.operations.trigger("report", overlap="parallel")  # wrong
    registry.operations.skip_next("report", slot="2026-01-01")  # wrong
    registry.operations.retry("report")  # wrong
    registry.operations.backfill("report", first="2026-01-01", last=day)  # wrong
    registry.operations.backfill("report", day, day, pace=5)  # wrong
    registry.operations.settle_until("2026-01-01")  # wrong
    print(registry.operations.pause("report").name)  # wrong
    registry.inspect.slots("report", limit="5")  # wrong
    registry.inspect.slot("report", "2026-01-01T02:00:00Z")  # wrong


CommandJob(name="dump", schedule=Every("1d"), command=7)  # wrong
LATE = CatchUp.latest()
CommandJob(name="dump", schedule=Every("1d"), command="dump", catchup=LATE)  # wrong
