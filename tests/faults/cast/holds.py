"""Jobs whose first attempt holds its claim until somebody stops it; every later one ends at
once.
"""

from __future__ import annotations

import asyncio
import time

from tests.faults.cast.witness import (
    LOG,
    attempt,
    engine,
    leave_effect,
    tell,
    wait_for_release,
)

from slotwise import ClaimLost, DistributedJob, Every, JobContext, Resume


class Hold(DistributedJob):
    name = "hold"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            if is_first:
                ctx.wait("60s")
                ctx.check()


class HoldGiveUp(Hold):
    name = "hold-give-up"
    on_lost = "give_up"


class HoldAsync(DistributedJob):
    name = "hold-async"
    schedule = Every("1s")

    async def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            if is_first:
                await asyncio.sleep(60)


class HoldLong(DistributedJob):
    """Until the test releases it; listens to nobody, and ends well."""

    name = "hold-long"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            if is_first:
                wait_for_release(ctx)


class HoldAgain(DistributedJob):
    """The second attempt takes its time; all others end soon. Listens to nobody."""

    name = "hold-again"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            time.sleep(3 if ctx.attempt == 2 else 0.2)


class HoldInGuard(DistributedJob):
    """Holds inside the transaction that it has guarded."""

    name = "hold-in-guard"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first, engine().begin() as connection:
            ctx.guard(connection)
            leave_effect(connection, ctx.name, ctx.slot.isoformat(), ctx.token)
            if is_first:
                tell(
                    "guarded", job=ctx.name, slot=ctx.slot.isoformat(), token=ctx.token
                )
                time.sleep(4)


class HoldAfterCommit(DistributedJob):
    """Completes its slot, and holds after that commit."""

    name = "hold-after-commit"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            with engine().begin() as connection:
                leave_effect(connection, ctx.name, ctx.slot.isoformat(), ctx.token)
                ctx.complete_in(connection)
            if is_first:
                tell(
                    "committed",
                    job=ctx.name,
                    slot=ctx.slot.isoformat(),
                    token=ctx.token,
                )
                ctx.wait("60s")
                ctx.check()


class HoldAtCheckpoint(DistributedJob):
    """Walks five places, each with its checkpoint; the first attempt holds after three, and then
    tries to go back.
    """

    name = "hold-at-checkpoint"
    schedule = Every("1s")
    max_lost = 5

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            slot = ctx.slot.isoformat()
            done = ctx.last_checkpoint
            for place in range(done if isinstance(done, int) else 0, 5):
                with engine().begin() as connection:
                    leave_effect(connection, ctx.name, f"{slot} {place}", ctx.token)
                    ctx.checkpoint(place + 1, connection)
                if is_first and place == 2:
                    tell("saved", job=ctx.name, slot=slot, token=ctx.token)
                    time.sleep(4)
                    try:
                        ctx.checkpoint(0)
                    except ClaimLost:
                        tell("refused", job=ctx.name, slot=slot)
                        raise


class HoldUntilDrain(DistributedJob):
    """Walks five places, and has one attempt. The first start holds after three until its worker
    drains.
    """

    name = "hold-until-drain"
    schedule = Every("1s")
    max_lost = 1

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            slot = ctx.slot.isoformat()
            done = ctx.last_checkpoint
            for place in range(done if isinstance(done, int) else 0, 5):
                with engine().begin() as connection:
                    leave_effect(connection, ctx.name, f"{slot} {place}", ctx.token)
                    ctx.checkpoint(place + 1, connection)
                if is_first and place == 2:
                    tell("saved", job=ctx.name, slot=slot, token=ctx.token)
                    while not ctx.stopping:
                        time.sleep(0.02)
                    raise Resume
