"""The one event loop that runs ``async def`` handlers: a thread of ours, or the host application's loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from typing import Any, TypeAlias

from slotwise.model.clock import elapsed

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]

logger = logging.getLogger(__name__)

#: How long a loop of ours may take to end; a handler that blocks it, or ignores its cancellation, is left behind.
PATIENCE = timedelta(seconds=5)
#: How often a wait for the lifespan makes sure that its loop still runs.
LOOK = timedelta(milliseconds=200)


class EventLoop:
    """Runs coroutines from other threads; enters the lifespan once, and leaves it after the drain. Starts once."""

    def __init__(self, lifespan: Lifespan | None = None, host: asyncio.AbstractEventLoop | None = None) -> None:
        self._lifespan = lifespan
        self._loop = host
        self._own = host is None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._leave: Callable[[], object] | None = None
        self._life: Future[None] | None = None
        self._failure: BaseException | None = None
        #: Whether the lifespan was begun, and has never come to its end.
        self.left_behind = False

    def start(self, stopping: threading.Event | None = None) -> Any:
        """Start the loop's thread if it is ours, enter the lifespan, and return what it gave (None without one).

        Returns when ``stopping`` is set meanwhile: whoever calls ``stop`` then has the lifespan cancelled.
        Raises what the lifespan raises; then nothing is left behind.
        """
        if self._own:
            self._start_thread()
        if self._lifespan is None:
            return None
        try:
            return self._enter_lifespan(self._lifespan, stopping)
        except BaseException:
            if self._life is not None:
                self._life.cancel()
            self.stop()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run ``coroutine`` on the loop. Raises RuntimeError if that is not there."""
        try:
            if self._loop is None:
                raise RuntimeError("the event loop has not been started, or has ended")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise

    def stop(self, within: timedelta | None = None) -> None:
        """Leave the lifespan; end the thread if it is ours. Raises what the lifespan raises while it is left.

        A lifespan that is being entered is cancelled. One that is not left ``within`` this time is left behind.
        """
        try:
            self._leave_lifespan(within)
        finally:
            if self._own:
                self._stop_thread()
            self._loop = None

    def blame(self, error: BaseException) -> str | None:
        """The lifespan's name, if ``error`` is what it raised."""
        return getattr(self._lifespan, "__qualname__", repr(self._lifespan)) if error is self._failure else None

    # -- the lifespan -----------------------------------------------------------------------------------------

    def _enter_lifespan(self, lifespan: Lifespan, stopping: threading.Event | None) -> Any:
        entered: Future[Any] = Future()
        self._life = self.submit(self._live(lifespan, entered))
        if self._is_done(entered, stopping=stopping) or not entered.cancel():
            return entered.result()
        if stopping is not None and stopping.is_set():
            return None
        raise RuntimeError("the event loop ended while the lifespan was entered")

    async def _live(self, lifespan: Lifespan, entered: Future[Any]) -> None:
        """One task enters and leaves, as context variables and task groups want it."""
        task, leave = asyncio.current_task(), asyncio.Event()
        assert task is not None
        self._leave = task.cancel
        try:
            async with lifespan() as state:
                self._leave = leave.set
                if entered.set_running_or_notify_cancel():  # else nobody waits for it any more
                    entered.set_result(state)
                    await leave.wait()
        except BaseException as error:
            self._failure = error
            if entered.done() or not entered.set_running_or_notify_cancel():
                raise
            entered.set_exception(error)

    def _leave_lifespan(self, within: timedelta | None) -> None:
        loop, life = self._loop, self._life
        if loop is None or life is None:
            return
        if not life.done():
            try:
                loop.call_soon_threadsafe(self._let_go, life)
            except RuntimeError:
                self.left_behind = True
                logger.warning("the application closed its event loop before the registry was stopped")
                return
        if not self._is_done(life, within):
            self.left_behind = True
            found = "did not get to its end in time" if loop.is_running() else "ended before the registry was stopped"
            logger.warning("the event loop %s; its lifespan was not left", found)
        elif not life.cancelled():
            life.result()

    def _let_go(self, life: Future[None]) -> None:
        """Race: it may be entered just now. So the loop itself decides whether that is cancelled, or it is left."""
        (self._leave or life.cancel)()

    def _is_done(
        self, future: Future[Any], within: timedelta | None = None, stopping: threading.Event | None = None
    ) -> bool:
        """Wait until ``future`` is done; False if its loop has ended, so that it never will be, or the time is up."""
        end = None if within is None else elapsed() + within.total_seconds()
        while not wait([future], LOOK.total_seconds()).done:
            if stopping is not None and stopping.is_set():
                return False
            if self._loop is None or not self._loop.is_running() or (end is not None and elapsed() >= end):
                return future.done()
        return True

    # -- a loop of ours ---------------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        ready: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="slotwise-loop", daemon=True)
        self._thread.start()
        self._loop = ready.result()

    def _run(self, ready: Future[asyncio.AbstractEventLoop]) -> None:
        """Ends as asyncio.run does: what still runs is cancelled, asynchronous generators are closed."""
        try:
            with asyncio.Runner() as runner:
                serving = runner.get_loop().create_task(self._serve(ready))
                while not serving.done():
                    _run_until(serving, runner.get_loop())
        except BaseException as error:  # no more file descriptors, for instance
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: Future[asyncio.AbstractEventLoop]) -> None:
        self._stop = asyncio.Event()
        ready.set_result(asyncio.get_running_loop())
        await self._stop.wait()

    def _stop_thread(self) -> None:
        if self._thread is None or self._loop is None or self._stop is None:
            return
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE.total_seconds())


def _run_until(end: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
    """A task that a handler made beside itself may raise SystemExit, which stops the loop; it is run on."""
    try:
        loop.run_until_complete(end)
    except (SystemExit, KeyboardInterrupt) as error:
        logger.error("a task beside a handler raised %r; the event loop goes on without it", error)
