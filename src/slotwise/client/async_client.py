"""The client for asyncio applications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack, overload

from slotwise.client.arguments import Receipt
from slotwise.client.calls import Awaited, awaited
from slotwise.client.client import Client
from slotwise.client.commands import Commands, Options
from slotwise.jobs.context import T
from slotwise.store.connect.caller_transaction import Result, call_within

if TYPE_CHECKING:
    from slotwise.jobs.context import TaskOf


class AsyncClient(Awaited[Client], Commands):
    """The commands of Client with the same arguments, awaited.

    ``connection``: SQLAlchemy's AsyncConnection or AsyncSession, or psycopg's AsyncConnection; for
    recurring instances one of SQLAlchemy. Without one, a thread waits for the database, and
    ``items`` and ``progress`` of ``schedule_many`` are used on that thread. It finishes even if
    the caller is cancelled.
    """

    @overload
    async def schedule(
        self, task: TaskOf[None], data: None = None, **options: Unpack[Options]
    ) -> Receipt: ...
    @overload
    async def schedule(
        self, task: TaskOf[T], data: T, **options: Unpack[Options]
    ) -> Receipt: ...
    async def schedule(
        self, task: TaskOf[T], data: T | None = None, **options: Unpack[Options]
    ) -> Receipt:
        """As ``Client.schedule``."""
        return await self._run(Client.schedule, task, data, **options)

    schedule_many = awaited(Client.schedule_many)

    async def _run(
        self, body: Callable[..., Result], *given: object, **named: object
    ) -> Result:
        connection = named.pop("connection", None)
        if connection is None:
            return await super()._run(body, *given, **named)
        client = self._inner
        installation = client._make_store().installation
        if (
            installation.is_unknown
        ):  # else the command would read the id in the event loop
            await asyncio.to_thread(installation.learn)
        return await call_within(
            connection, lambda joined: body(client, *given, **named, connection=joined)
        )
