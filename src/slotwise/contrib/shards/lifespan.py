"""One event loop and one lifespan for the workers of all shards of a process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]

#: How long the loop's thread may take to end, in seconds.
PATIENCE: Final = 5.0


class SharedLifespan:
    """Enter the application's lifespan for the first worker, and leave it after the last one.

    All calls are on one loop. A task of its own enters and leaves it, as context variables and
    task groups require.
    """

    def __init__(self, lifespan: Lifespan) -> None:
        self._lifespan = lifespan
        self._users = 0
        self._turn: asyncio.Lock | None = None
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._state: object = None
        #: What it has raised.
        self.failure: BaseException | None = None

    @property
    def name(self) -> str:
        return getattr(self._lifespan, "__qualname__", repr(self._lifespan))

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[object]:
        """Yield the state that all workers share; raises what the lifespan raises."""
        self._turn = self._turn or asyncio.Lock()
        async with self._turn:
            if self._users == 0:
                await self._enter()
            self._users += 1
        try:
            yield self._state
        finally:
            async with self._turn:
                self._users -= 1
                if self._users == 0:
                    await self._exit()

    async def _enter(self) -> None:
        entered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._hold(entered, self._leave))
        try:
            self._state = await entered
        except BaseException as error:
            self.failure = error
            self._task.cancel()
            raise

    async def _hold(
        self, entered: asyncio.Future[object], leave: asyncio.Event
    ) -> None:
        try:
            async with self._lifespan() as state:
                entered.set_result(state)
                await leave.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    async def _exit(self) -> None:
        self._leave.set()
        if self._task is not None:
            await self._task


class LoopThread:
    """An event loop on a thread of its own, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, name="slotwise-shards-loop", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the loop, and wait a little for its thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(PATIENCE)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
