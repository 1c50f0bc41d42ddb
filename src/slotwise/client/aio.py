"""The client's commands, awaited: on an async connection the same statements, else on a thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

from slotwise.client.client import Client
from slotwise.store.connect.caller_transaction import call_within

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _awaited(
    command: Callable[Concatenate[Client, Given], Result],
) -> Callable[Concatenate[AsyncClient, Given], Awaitable[Result]]:
    """Return the same command as a coroutine function."""

    @functools.wraps(command)
    async def call(self: AsyncClient, /, *given: Given.args, **named: Given.kwargs) -> Result:
        if (connection := named.get("connection")) is None:
            return await asyncio.to_thread(command, self._client, *given, **named)
        if (installation := self._client._make_store().installation).is_unknown:
            await asyncio.to_thread(installation.learn)  # else the command would read the id in the event loop

        def work(inner: object) -> Result:
            named["connection"] = inner
            return command(self._client, *given, **named)

        return await call_within(connection, work)

    return call


class AsyncClient:
    """The commands of Client with the same arguments, awaited.

    ``connection``: SQLAlchemy's AsyncConnection or AsyncSession, or psycopg's AsyncConnection; for recurring instances
    one of SQLAlchemy. Without one, a thread waits for the database, and ``items`` and ``progress`` of ``schedule_many``
    are used on that thread. It finishes even if the caller is cancelled.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    schedule = _awaited(Client.schedule)
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
