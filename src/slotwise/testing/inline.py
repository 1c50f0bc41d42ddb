"""Run the handler of a one-time task in this thread, without a row and without a claim."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from contextlib import ExitStack
from contextvars import copy_context
from datetime import UTC, datetime, timedelta

from slotwise import ConfigurationError, JobRegistry, TaskContext
from slotwise.spi import Claim, Holding, Inserted, Row, elapsed

_NO_CLAIM = (
    "{} proves a claim in the database, and a captured task has none; test this "
    "handler with ManualWorker"
)


def run_inline(
    registry: JobRegistry, name: str, id: str, data: object, *, priority: int = 50
) -> tuple[object, list[Inserted]]:
    """Run the task's handler, within the registry's interceptors; return its result and the tasks
    that it has left to follow.

    Raises what the handler raises. ``ctx.guard`` and ``ctx.complete_in`` raise ConfigurationError.
    """
    hold = Holding(_claim(name, id, priority), elapsed())
    ctx = TaskContext[object](
        hold, fence=_NoFence(), read=lambda _: data, client=registry.client
    )
    result = copy_context().run(_run, registry, name, ctx)
    follows = hold.follow_ups.follows if hold.follow_ups else ()
    wanted = [(one.task, one.wanted) for one in follows]
    return result, [
        Inserted(task, row.instance, row.when, row.priority, row.data)
        for task, row in wanted
    ]


def _claim(name: str, id: str, priority: int) -> Claim:
    now = datetime.now(UTC)
    row = Row(
        task_name=name,
        task_instance=id,
        execution_time=now,
        version=1,
        picked=True,
        picked_by="inline",
        attempt=1,
        created_version=1,
        priority=priority,
    )
    return Claim(row=row, holder="inline", lease=timedelta(hours=1), claimed_at=now)


def _run(registry: JobRegistry, name: str, ctx: TaskContext[object]) -> object:
    result: object = None
    with ExitStack() as stack:
        for interceptor in registry.hooks.interceptors:
            stack.enter_context(interceptor(ctx))
        result = registry.definitions[name].handler(ctx)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    return result


async def _awaited(result: Awaitable[object]) -> object:
    return await result


class _NoFence:
    def guard(self, claim: Claim, connection: object) -> None:
        raise ConfigurationError(_NO_CLAIM.format("ctx.guard"))

    def complete_in(self, claim: Claim, connection: object) -> None:
        raise ConfigurationError(_NO_CLAIM.format("ctx.complete_in"))

    def save(self, claim: Claim, value: object, connection: object = None) -> None:
        raise ConfigurationError(_NO_CLAIM.format("ctx.checkpoint"))

    def saved(self, claim: Claim) -> None:
        """No attempt came before."""

    def is_open(self, connection: object) -> bool:
        return False
