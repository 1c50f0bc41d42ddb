"""The client for asyncio applications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Unpack, overload

from slotwise.client.arguments import Item, Receipt
from slotwise.client.calls import Awaited
from slotwise.client.client import Client
from slotwise.client.commands import BulkOptions, Commands, Options
from slotwise.jobs.context import T
from slotwise.jobs.functions import Call
from slotwise.store.connect.caller_transaction import (
    Joinable,
    Result,
    call_within,
)

if TYPE_CHECKING:
    from slotwise.jobs.context import AsyncConnection, TaskOf
    from slotwise.store.queue.queue import BulkResult


class AsyncClient(Awaited[Client], Commands["AsyncConnection"]):
    """The commands of Client with the same arguments, awaited.

    ``connection``: SQLAlchemy's AsyncConnection or AsyncSession, or psycopg's AsyncConnection; for
    recurring instances one of SQLAlchemy. Without one, a thread waits for the database, and
    ``items`` and ``progress`` of ``schedule_many`` are used on that thread. It finishes even if
    the caller is cancelled.
    """

    @overload
    async def schedule(
        self,
        task: TaskOf[None] | Call,
        data: None = None,
        **options: Unpack[Options[AsyncConnection]],
    ) -> Receipt: ...
    @overload
    async def schedule(
        self, task: TaskOf[T], data: T, **options: Unpack[Options[AsyncConnection]]
    ) -> Receipt: ...
    async def schedule(
        self,
        task: TaskOf[T] | Call,
        data: T | None = None,
        **options: Unpack[Options[AsyncConnection]],
    ) -> Receipt:
        """As ``Client.schedule``."""
        return await self._run(Client.schedule, task, data, **options)

    @overload
    async def schedule_many(
        self,
        calls: Iterable[Call | Item[Call]],
        /,
        **how: Unpack[BulkOptions[AsyncConnection]],
    ) -> BulkResult: ...
    @overload
    async def schedule_many(
        self,
        task: TaskOf[T],
        items: Iterable[T | Item[T]],
        **how: Unpack[BulkOptions[AsyncConnection]],
    ) -> BulkResult: ...
    async def schedule_many(
        self,
        task: object,
        items: Iterable[object] | None = None,
        **how: Unpack[BulkOptions[AsyncConnection]],
    ) -> BulkResult:
        """As ``Client.schedule_many``."""
        return await self._run(Client.schedule_many, task, items, **how)

    async def within(
        self,
        work: Callable[[Joinable], Result],
        *,
        connection: AsyncConnection | None = None,
        where: str = "within",
    ) -> Result:
        """As ``Client.within``; ``work`` is not awaited."""
        return await self._run(Client.within, work, connection=connection, where=where)

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
