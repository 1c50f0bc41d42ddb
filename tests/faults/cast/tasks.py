"""One-time tasks."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from tests.faults.cast.witness import (
    LOG,
    engine,
    first_in_cluster,
    leave_effect,
    tell,
    wait_until_released,
)

from slotwise import JobContext, OneTimeTask, Retry


class Note(OneTimeTask):
    """Writes down that it ran, and with what."""

    name = "note"
    retry = Retry.exponential(max_attempts=3, initial=timedelta(milliseconds=20))

    def execute(self, ctx: JobContext) -> None:
        LOG.write(ctx, "start", repr(ctx.data))


class NoteOnce(OneTimeTask):
    """As Note, and never starts again. It holds until the test releases its number."""

    name = "note-once"
    on_lost = "give_up"

    def execute(self, ctx: JobContext) -> None:
        LOG.write(ctx, "start", repr(ctx.data))
        wait_until_released(ctx, ctx.data)


class Linger(OneTimeTask):
    """Takes the seconds that its data says; listens to nobody."""

    name = "linger"

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            time.sleep(ctx.data)


class Burn(OneTimeTask):
    """Takes the seconds of CPU that its data says, and leaves the interpreter to others for none
    of them.
    """

    name = "burn"

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            until = time.thread_time() + ctx.data
            while time.thread_time() < until:
                pass


class Stay(OneTimeTask):
    """Holds its row for the seconds that its data says, beside any number of others."""

    name = "stay"
    retry = None

    async def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            await asyncio.sleep(ctx.data)


class Pay(OneTimeTask):
    """Completes in its own transaction, and then holds until it is stopped."""

    name = "pay"

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            with engine().begin() as connection:
                leave_effect(connection, ctx.name, ctx.id, ctx.token)
                ctx.complete_in(connection)
            tell("committed", job=ctx.name, instance=ctx.id, token=ctx.token)
            if first_in_cluster(ctx.id):
                ctx.wait("60s")
                ctx.check()
