"""What handlers run on: a bounded pool of daemon threads, and one event loop for ``async def``.

The threads are daemons, so a handler that never returns does not keep the process from ending. One thread runs short
handlers one after the other: under the GIL a second thread would only cost switches. While work is queued, one further
thread stands by, so that a handler that waits delays no other. ``Standby`` decides when that thread joins.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from slotwise.model.clock import elapsed

logger = logging.getLogger(__name__)


T = TypeVar("T")
Work: TypeAlias = Callable[[], None]

#: First and longest pause, in seconds, between two looks of the standby thread.
LOOK, SELDOM = 0.001, 0.008
#: A look that comes later than this, in seconds, says that another thread had the GIL.
LATE = 0.0005
#: After so many late looks without progress in between, the standby thread joins all the same.
MOST_LATE = 5
#: A thread that finished ``SPELL`` pieces of work, each within ``SHORT`` seconds, while others finished as many, is one
#: too many: the work can have waited for nothing but the GIL.
SPELL = 64
SHORT = 0.0002


class Standby:
    """The rule by which a standby thread joins: it looked in time, and no work was taken since the look before.

    Race: while any thread holds the GIL, the working threads make no progress, and the standby thread looks late. So a
    late look proves nothing by itself. Several in a row do: a handler computes, and others must not wait for it.
    """

    __slots__ = ("_due", "_late", "_pause", "_taken")

    def __init__(self, taken: int, now: float) -> None:
        """``taken``: how many pieces of work were taken when the thread was called, at ``now``, in seconds."""
        self._taken = taken
        self._due = now
        self._late = 0
        self._pause = LOOK

    def look(self, taken: int, now: float) -> float | None:
        """Return the seconds until the next look, or None: join."""
        if taken != self._taken:
            pause, self._pause = self._pause, min(2 * self._pause, SELDOM)
            self._taken, self._late = taken, 0
        else:
            self._late += 1
            if now - self._due <= LATE or self._late >= MOST_LATE:
                return None
            pause = self._pause = LOOK
        self._due = now + pause
        return pause


class Threads:
    """Run callables on at most ``limit`` threads, started as needed and kept until ``close``."""

    def __init__(self, limit: int, name: str = "slotwise-handler") -> None:
        self._limit = limit
        self._name = name
        self._queue: deque[Work] = deque()
        self._lock = threading.Lock()
        self._bell = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._active = 0
        self._standby: Standby | None = None  # set while a thread stands by
        self._taken = 0
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many pieces of work wait."""
        return len(self._queue)

    @property
    def busy(self) -> int:
        """How many threads are at work."""
        return self._active

    def submit(self, *work: Work) -> None:
        """Queue this work, which must not raise."""
        self.submit_all(work)

    def submit_all(self, work: Iterable[Work], *, first: bool = False) -> None:
        """Queue this work in order; ``first``: before the work that waits already."""
        if first:
            self._queue.extendleft(reversed(list(work)))
        else:
            self._queue.extend(work)
        self._attend()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Queue ``function``; the future gets its result or exception."""
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        self.submit(work)
        return future

    def close(self) -> None:
        """Let the threads end when they are done, without waiting for them."""
        with self._lock:
            self._is_closed = True
            for _ in self._threads:
                self._bell.release()

    def join(self, timeout: timedelta) -> None:
        """Wait, after ``close``, for the threads that end within this time."""
        until = elapsed() + timeout.total_seconds()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(until - elapsed(), 0))

    # -- who is awake -----------------------------------------------------------------------------------------

    def _attend(self) -> None:
        """Make sure that a thread stands by.

        Race: work is queued while the last standby thread goes idle. The work is queued before the lock is taken, and
        a thread that goes idle checks the queue under the lock: one of the two sees the other.
        """
        with self._lock:
            if self._standby is not None or not self._queue:
                return
            standby = Standby(self._taken, time.monotonic())
            if self._idle:
                self._idle -= 1
                self._standby = standby
                self._bell.release()
            elif len(self._threads) < self._limit and self._add_thread():
                self._standby = standby

    def _add_thread(self) -> bool:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._live, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: the others take the work, or it is handed back
            logger.warning("only %d of %d threads for handlers: %s", len(self._threads), self._limit, error)
            return False
        self._threads.append(thread)
        return True

    # -- a thread's life --------------------------------------------------------------------------------------

    def _live(self) -> None:
        while True:
            if self._stand_by():
                self._work()
            with self._lock:
                if self._is_closed and not self._queue:
                    return
                self._idle += 1
            self._attend()  # work may have come since the last check
            self._bell.acquire()

    def _stand_by(self) -> bool:
        """Wait while the others make progress; return True when this thread must work, False when nothing is queued."""
        while True:
            with self._lock:
                if self._standby is None:
                    return False  # woken by ``close``
                pause = self._standby.look(self._taken, time.monotonic()) if self._queue else None
                if pause is None:
                    self._standby = None
                    self._active += bool(self._queue)
                    return bool(self._queue)
            time.sleep(pause)

    def _work(self) -> None:
        queue, done, since, before = self._queue, 0, time.monotonic(), self._taken
        while True:
            try:
                work = queue.popleft()
            except IndexError:
                break
            self._taken += 1  # concurrent increments may get lost; it only has to change
            if queue and self._standby is None and (self._idle or len(self._threads) < self._limit):
                self._attend()
            work()
            del work  # a finished handler's claim must not live on in an idle thread
            done += 1
            if done == SPELL:
                now, taken = time.monotonic(), self._taken
                if now - since < SPELL * SHORT and taken - before > 2 * SPELL and self._leave():
                    return
                done, since, before = 0, now, taken
        with self._lock:
            self._active -= 1

    def _leave(self) -> bool:
        """Go idle, unless no other thread is at work."""
        with self._lock:
            if self._active < 2:
                return False
            self._active -= 1
            return True


Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]


#: How long our own loop may take to end; a handler that blocks it, or ignores its cancellation, is left behind.
PATIENCE = timedelta(seconds=5)
#: How often a wait for the lifespan checks that its loop still runs.
LIFESPAN_CHECK = timedelta(milliseconds=200)


class EventLoop:
    """Run coroutines from other threads; enter the lifespan once, and leave it after the drain. Starts once."""

    def __init__(self, lifespan: Lifespan | None = None, host: asyncio.AbstractEventLoop | None = None) -> None:
        self._lifespan = lifespan
        self._loop = host
        self._own = host is None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._leave: Callable[[], object] | None = None
        self._life: Future[None] | None = None
        self._failure: BaseException | None = None
        #: Whether the lifespan was entered and never left.
        self.left_behind = False

    def start(self, stopping: threading.Event | None = None) -> Any:
        """Start the loop's thread if it is ours, enter the lifespan, and return its state (None without one).

        Return early when ``stopping`` is set meanwhile: the caller of ``stop`` then cancels the lifespan.
        Raise what the lifespan raises; then nothing is left behind.
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
        """Run ``coroutine`` on the loop. Raise RuntimeError if there is no loop."""
        try:
            if self._loop is None:
                raise RuntimeError("the event loop has not been started, or has ended")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise

    def stop(self, within: timedelta | None = None) -> None:
        """Leave the lifespan; end the thread if it is ours. Raise what the lifespan raises on exit.

        A lifespan that is being entered is cancelled. One that is not left ``within`` this time is left behind.
        """
        try:
            self._leave_lifespan(within)
        finally:
            if self._own:
                self._stop_thread()
            self._loop = None

    def blame(self, error: BaseException) -> str | None:
        """Return the lifespan's name if it raised ``error``, else None."""
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
        """Enter and leave in one task, as context variables and task groups require."""
        task, leave = asyncio.current_task(), asyncio.Event()
        assert task is not None
        self._leave = task.cancel
        try:
            async with lifespan() as state:
                self._leave = leave.set
                if entered.set_running_or_notify_cancel():  # else the waiting thread has given up
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
        """Leave or cancel the lifespan. Race: it may be entered just now, so the loop itself decides."""
        (self._leave or life.cancel)()

    def _is_done(
        self, future: Future[Any], within: timedelta | None = None, stopping: threading.Event | None = None
    ) -> bool:
        """Wait until ``future`` is done; return False if its loop has ended or the time is up."""
        end = None if within is None else elapsed() + within.total_seconds()
        while not wait([future], LIFESPAN_CHECK.total_seconds()).done:
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
        """Run the loop; end as asyncio.run does: running tasks are cancelled, asynchronous generators closed."""
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
    """Run the loop until ``end``, also after a background task of a handler stopped it by raising SystemExit."""
    try:
        loop.run_until_complete(end)
    except (SystemExit, KeyboardInterrupt) as error:
        logger.error("a task beside a handler raised %r; the event loop goes on without it", error)
