"""A job each second, one for each kind of promise."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from tests.faults.cast.witness import LOG, engine, leave_effect, tell

from slotwise import DistributedJob, Every, FixedDelay, JobContext, Retry


class Rerun(DistributedJob):
    """Listens to nobody; every fourth slot overlaps the next one."""

    name = "rerun"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            time.sleep((0.05, 0.2, 0.5, 1.3)[ctx.slot.second % 4])


class GiveUp(DistributedJob):
    name = "give-up"
    schedule = Every("1s")
    on_lost = "give_up"

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            time.sleep(0.3)


class Async(DistributedJob):
    name = "async"
    schedule = Every("1s")

    async def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            await asyncio.sleep(0.4)


class Retrying(DistributedJob):
    """Every second slot fails once, every seventh for good."""

    name = "retrying"
    schedule = Every("1s")
    retry = Retry.exponential(max_attempts=3, initial=timedelta(milliseconds=50))

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            if ctx.slot.second % 7 == 0 or (
                ctx.slot.second % 2 == 0 and ctx.attempt == 1
            ):
                raise ValueError("as agreed")


class Delayed(DistributedJob):
    name = "delayed"
    schedule = FixedDelay("700ms")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            time.sleep(0.1)


class Completing(DistributedJob):
    """One effect per slot, in the transaction that completes the slot."""

    name = "completing"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            with engine().begin() as connection:
                leave_effect(connection, ctx.name, ctx.slot.isoformat(), ctx.token)
                ctx.complete_in(connection)
                time.sleep(0.1)
            tell("committed", job=ctx.name, slot=ctx.slot.isoformat(), token=ctx.token)
            time.sleep(0.1)


class CompletingGiveUp(Completing):
    name = "completing-give-up"
    on_lost = "give_up"


class Beat(DistributedJob):
    """Twice a second, and done at once."""

    name = "beat"
    schedule = Every("500ms")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            pass


TICKS = (Rerun, GiveUp, Async, Retrying, Delayed, Completing)
