"""The event loop where coroutines of handlers run, with the lifespan around it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from typing import TypeAlias

from typing_extensions import TypeVar

from slotwise.engine.run.tuning import EVENT_LOOP_PATIENCE, LIFESPAN_CHECK
from slotwise.model.clock import elapsed

logger = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S", default=object)
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[S]]


class EventLoop:
    """Run coroutines from other threads; enter the lifespan once, and leave it after the drain.
    Starts once.
    """

    def __init__(
        self,
        lifespan: Lifespan | None = None,
        host: asyncio.AbstractEventLoop | None = None,
        *,
        is_needed: bool = True,
    ) -> None:
        """``is_needed``: whether there are coroutines to run; a lifespan needs a loop anyway."""
        self._lifespan = lifespan
        self._loop = host
        self._is_needed = is_needed or lifespan is not None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._leave: Callable[[], object] | None = None
        self._life: Future[None] | None = None
        self._failure: BaseException | None = None
        #: Whether the lifespan was entered and never left.
        self.left_behind = False
        #: What the lifespan has returned; None without one.
        self.state: object = None

    def start(self, stopping: threading.Event | None = None) -> None:
        """Start the loop's thread if it is ours, and enter the lifespan; return early when
        ``stopping`` is set.

        Raise what the lifespan raises; then nothing is left behind.
        """
        if self._loop is None and self._is_needed:
            ready: Future[asyncio.AbstractEventLoop] = Future()
            self._thread = threading.Thread(
                target=self._run, args=(ready,), name="slotwise-loop", daemon=True
            )
            self._thread.start()
            self._loop = ready.result()
        if self._lifespan is None:
            return
        try:
            self.state = self._enter_lifespan(self._lifespan, stopping)
        except BaseException:
            if self._life is not None:
                self._life.cancel()
            self.stop()
            raise

    def submit(self, coroutine: Coroutine[object, None, T]) -> Future[T]:
        """Run ``coroutine`` on the loop. Raise RuntimeError if there is no loop."""
        try:
            if self._loop is None:
                raise RuntimeError("the event loop has not been started, or has ended")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise

    def stop(self, within: timedelta | None = None) -> None:
        """Leave the lifespan; end the thread if it is ours. Raise what the lifespan raises on
        exit.

        A lifespan that is being entered is cancelled. One that is not left ``within`` this time is
        left behind.
        """
        try:
            self._leave_lifespan(within)
        finally:
            if self._thread is not None and self._loop is not None:
                self._is_stopped = True
                with suppress(RuntimeError):  # it has ended already
                    self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(EVENT_LOOP_PATIENCE.total_seconds())
            self._loop = None

    def blame(self, error: BaseException) -> str | None:
        """Return the lifespan's name if it raised ``error``, else None."""
        return (
            getattr(self._lifespan, "__qualname__", repr(self._lifespan))
            if error is self._failure
            else None
        )

    # -- the lifespan -----------------------------------------------------------------------------

    def _enter_lifespan(
        self, lifespan: Lifespan, stopping: threading.Event | None
    ) -> object:
        entered: Future[object] = Future()
        self._life = self.submit(self._live(lifespan, entered))
        if self._is_done(entered, stopping=stopping) or not entered.cancel():
            return entered.result()
        if stopping is not None and stopping.is_set():
            return None
        raise RuntimeError("the event loop ended while the lifespan was entered")

    async def _live(self, lifespan: Lifespan, entered: Future[object]) -> None:
        """Enter and leave in one task, as context variables and task groups require."""
        task = asyncio.current_task()
        leave = asyncio.Event()
        assert task is not None
        self._leave = task.cancel
        try:
            async with lifespan() as state:
                self._leave = leave.set
                if (
                    entered.set_running_or_notify_cancel()
                ):  # else the waiting thread has given up
                    entered.set_result(state)
                    await leave.wait()
        except BaseException as error:
            self._failure = error
            if entered.done() or not entered.set_running_or_notify_cancel():
                raise
            entered.set_exception(error)

    def _leave_lifespan(self, within: timedelta | None) -> None:
        loop = self._loop
        life = self._life
        if loop is None or life is None:
            return
        if not life.done():
            try:
                # Race: it may be entered just now, so the loop itself decides.
                loop.call_soon_threadsafe(lambda: (self._leave or life.cancel)())
            except RuntimeError:
                self.left_behind = True
                logger.warning(
                    "the application closed its event loop before the registry was stopped"
                )
                return
        if not self._is_done(life, within):
            self.left_behind = True
            found = (
                "did not get to its end in time"
                if loop.is_running()
                else "ended before the registry was stopped"
            )
            logger.warning("the event loop %s; its lifespan was not left", found)
        elif not life.cancelled():
            life.result()

    def _is_done(
        self,
        future: Future[T],
        within: timedelta | None = None,
        stopping: threading.Event | None = None,
    ) -> bool:
        """Wait until ``future`` is done; return False if its loop has ended or the time is up."""
        end = None if within is None else elapsed() + within.total_seconds()
        while not wait([future], LIFESPAN_CHECK.total_seconds()).done:
            if stopping is not None and stopping.is_set():
                return False
            if (
                self._loop is None
                or not self._loop.is_running()
                or (end is not None and elapsed() >= end)
            ):
                return future.done()
        return True

    # -- a loop of ours ---------------------------------------------------------------------------

    def _run(self, ready: Future[asyncio.AbstractEventLoop]) -> None:
        """Run the loop; end as asyncio.run does: running tasks are cancelled, asynchronous
        generators closed.
        """
        try:
            with asyncio.Runner() as runner:
                loop = runner.get_loop()
                loop.call_soon(ready.set_result, loop)
                while not self._is_stopped:
                    try:
                        loop.run_forever()
                    except (SystemExit, KeyboardInterrupt) as error:
                        logger.error(
                            "a background task raised %r; the event loop continues without it",
                            error,
                        )
        except BaseException as error:  # no more file descriptors, for instance
            if ready.done():
                raise
            ready.set_exception(error)
