"""The one event loop that runs ``async def`` handlers: a thread of ours, or the host application's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]


class EventLoop:
    """Runs coroutines from other threads; enters the lifespan once, and leaves it after the drain."""

    def __init__(self, lifespan: Lifespan | None = None, host: asyncio.AbstractEventLoop | None = None) -> None:
        self._lifespan = lifespan
        self._loop = host
        self._own = host is None
        self._thread: threading.Thread | None = None
        self._context: AbstractAsyncContextManager[Any] | None = None
        self._leave: asyncio.Event | None = None
        self._life: Future[None] | None = None

    def start(self) -> Any:
        """Start the loop's thread if it is ours, enter the lifespan, and return what it gave (None without one)."""
        if self._own:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="slotwise-loop", daemon=True)
            self._thread.start()
        if self._lifespan is None:
            return None
        entered: Future[Any] = Future()
        self._life = self.submit(self._live(self._lifespan, entered))
        return entered.result()

    async def _live(self, lifespan: Lifespan, entered: Future[Any]) -> None:
        """One task enters and leaves, as context variables and task groups want it."""
        self._leave = asyncio.Event()
        try:
            async with lifespan() as state:
                entered.set_result(state)
                await self._leave.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        if self._loop is None:
            raise RuntimeError("the event loop has not been started")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Leave the lifespan; end the thread if it is ours."""
        loop = self._loop
        if loop is None:
            return
        if self._life is not None and self._leave is not None:
            loop.call_soon_threadsafe(self._leave.set)
            self._life.result()
        if self._own:
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not None:
                self._thread.join(5)
            if not loop.is_running():
                loop.close()
        self._loop = None
