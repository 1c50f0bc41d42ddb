"""The client's commands, awaited: on an async connection the same statements, else on a thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, Unpack, overload

from slotwise.client.arguments import Receipt
from slotwise.client.client import Client, Options
from slotwise.jobs.context import T
from slotwise.store.connect.caller_transaction import call_within

if TYPE_CHECKING:
    from slotwise.jobs.context import TaskOf

Given = ParamSpec("Given")
Result = TypeVar("Result")


async def _run(command: Callable[..., Result], client: Client, *given: object, **named: object) -> Result:
    if (connection := named.get("connection")) is None:
        return await asyncio.to_thread(command, client, *given, **named)
    if (installation := client._make_store().installation).is_unknown:
        await asyncio.to_thread(installation.learn)  # else the command would read the id in the event loop
    return await call_within(connection, lambda inner: command(client, *given, **named | {"connection": inner}))


def _awaited(
    command: Callable[Concatenate[Client, Given], Result],
) -> Callable[Concatenate[AsyncClient, Given], Awaitable[Result]]:
    """Return the same command as a coroutine function."""

    @functools.wraps(command)
    async def call(self: AsyncClient, /, *given: Given.args, **named: Given.kwargs) -> Result:
        return await _run(command, self._client, *given, **named)

    return call


class AsyncClient:
    """The commands of Client with the same arguments, awaited.

    ``connection``: SQLAlchemy's AsyncConnection or AsyncSession, or psycopg's AsyncConnection; for recurring instances
    one of SQLAlchemy. Without one, a thread waits for the database, and ``items`` and ``progress`` of ``schedule_many``
    are used on that thread. It finishes even if the caller is cancelled.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @overload
    async def schedule(self, task: TaskOf[None], data: None = None, **options: Unpack[Options]) -> Receipt: ...
    @overload
    async def schedule(self, task: TaskOf[T], data: T, **options: Unpack[Options]) -> Receipt: ...
    async def schedule(self, task: TaskOf[T], data: T | None = None, **options: Unpack[Options]) -> Receipt:
        """As ``Client.schedule``."""
        return await _run(Client.schedule, self._client, task, data, **options)

    schedule_many = _awaited(Client.schedule_many)
    reschedule = _awaited(Client.reschedule)
    cancel = _awaited(Client.cancel)
    cancel_all = _awaited(Client.cancel_all)
    retry = _awaited(Client.retry)
    get = _awaited(Client.get)
    list = _awaited(Client.list)
    schedule_recurring = _awaited(Client.schedule_recurring)
    unschedule_recurring = _awaited(Client.unschedule_recurring)
    history = _awaited(Client.history)
    result = _awaited(Client.result)
