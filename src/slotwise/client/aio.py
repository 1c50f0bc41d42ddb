"""The client's commands to be awaited: on an async connection the same statements, else on a thread."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from slotwise.jobs.context import T
from slotwise.store.connect.caller_transaction import Result, call_within

if TYPE_CHECKING:
    from slotwise.client.arguments import AnyTask, Item, Receipt, Task
    from slotwise.client.client import Client
    from slotwise.model.records import IfExists
    from slotwise.schedules import Schedule
    from slotwise.store.dialects.task_statements import BulkResult
    from slotwise.store.queue.task_views import TaskInfo, TaskResult


class AsyncClient:
    """As Client, awaited. ``connection``: SQLAlchemy's AsyncConnection or AsyncSession, or psycopg's AsyncConnection.

    Without one, a thread waits for the database. It finishes even if the caller is cancelled.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def schedule(
        self,
        task: Task[T],
        data: T | None = None,
        *,
        id: str | None = None,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists = "keep",
        countdown: int = 0,
        connection: Any = None,
    ) -> Receipt:
        """As Client.schedule."""
        return await self._call(
            connection,
            lambda inner: self._client.schedule(
                task,
                data,
                id=id,
                at=at,
                delay=delay,
                priority=priority,
                if_exists=if_exists,
                countdown=countdown,
                connection=inner,
            ),
        )

    async def schedule_many(
        self,
        task: Task[T],
        items: Iterable[T | Item[T]],
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists | None = None,
        chunk_size: int | None = None,
        copy: bool = False,
        progress: Callable[[BulkResult], object] = lambda tally: None,
        connection: Any = None,
    ) -> BulkResult:
        """As Client.schedule_many; without ``connection``, ``items`` and ``progress`` are used on a thread."""
        return await self._call(
            connection,
            lambda inner: self._client.schedule_many(
                task, items, at=at, delay=delay, priority=priority, if_exists=if_exists,
                chunk_size=chunk_size, copy=copy, progress=progress, connection=inner,
            ),
        )  # fmt: skip

    async def reschedule(
        self,
        task: Task[Any],
        id: str,
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        connection: Any = None,
    ) -> Receipt:
        """As Client.reschedule."""
        return await self._call(
            connection,
            lambda inner: self._client.reschedule(task, id, at=at, delay=delay, priority=priority, connection=inner),
        )

    async def cancel(self, task: Task[Any], id: str, *, connection: Any = None) -> Receipt:
        """As Client.cancel."""
        return await self._call(connection, lambda inner: self._client.cancel(task, id, connection=inner))

    async def cancel_all(self, task: Task[Any], *, state: str | None = None, connection: Any = None) -> int:
        """As Client.cancel_all."""
        return await self._call(connection, lambda inner: self._client.cancel_all(task, state=state, connection=inner))

    async def retry(
        self,
        task: Task[Any],
        ids: str | Iterable[str] | None = None,
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        connection: Any = None,
    ) -> builtins.list[Receipt]:
        """As Client.retry."""
        return await self._call(
            connection, lambda inner: self._client.retry(task, ids, at=at, delay=delay, connection=inner)
        )

    async def get(self, task: Task[Any], id: str, *, connection: Any = None) -> TaskInfo | None:
        """As Client.get."""
        return await self._call(connection, lambda inner: self._client.get(task, id, connection=inner))

    async def list(
        self,
        task: Task[Any] | None = None,
        *,
        state: str | None = None,
        after: TaskInfo | str | None = None,
        limit: int = 100,
        connection: Any = None,
    ) -> builtins.list[TaskInfo]:
        """As Client.list."""
        return await self._call(
            connection,
            lambda inner: self._client.list(task, state=state, after=after, limit=limit, connection=inner),
        )

    async def schedule_recurring(
        self,
        task: AnyTask[T],
        id: str,
        schedule: Schedule | str,
        data: T | None = None,
        *,
        priority: int | None = None,
        connection: Any = None,
    ) -> datetime | None:
        """As Client.schedule_recurring; ``connection`` is one of SQLAlchemy."""
        return await self._call(
            connection,
            lambda inner: self._client.schedule_recurring(
                task, id, schedule, data, priority=priority, connection=inner
            ),
        )

    async def unschedule_recurring(self, task: AnyTask[Any], id: str, *, connection: Any = None) -> bool:
        """As Client.unschedule_recurring; ``connection`` is one of SQLAlchemy."""
        return await self._call(connection, lambda inner: self._client.unschedule_recurring(task, id, connection=inner))

    async def history(self, task: Task[Any], id: str, *, connection: Any = None) -> builtins.list[TaskResult]:
        """As Client.history."""
        return await self._call(connection, lambda inner: self._client.history(task, id, connection=inner))

    async def result(self, task: Task[Any], id: str, *, connection: Any = None) -> TaskResult | None:
        """As Client.result."""
        return await self._call(connection, lambda inner: self._client.result(task, id, connection=inner))

    async def _call(self, connection: Any, work: Callable[[Any], Result]) -> Result:
        if connection is None:
            return await asyncio.to_thread(work, None)
        return await call_within(connection, work)
