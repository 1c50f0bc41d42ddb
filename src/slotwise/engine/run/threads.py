"""A bounded pool of threads.

One thread runs short work one piece after the other: under the GIL a second thread would only cost
switches. While work is queued, one further thread stands by, so that a piece that blocks delays no
other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from datetime import timedelta
from typing import TypeAlias, TypeVar

from slotwise.engine.run.tuning import LATE, LOOK, MOST_LATE, SELDOM, SHORT, SPELL
from slotwise.model.clock import elapsed

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work: TypeAlias = Callable[[], None]


class Standby:
    """The rule by which a standby thread joins: no work was taken since its last look.

    Race: while any thread holds the GIL, no work is taken, and the standby thread looks late. So
    of late looks, only several in a row count.
    """

    __slots__ = ("_due", "_late", "_pause", "_taken")

    def __init__(self, taken: int, now: float) -> None:
        """``taken``: how many pieces of work were taken when the thread was called, at ``now``, in
        seconds.
        """
        self._taken = taken
        self._due = now
        self._late = 0
        self._pause = LOOK

    def pause_after(self, taken: int, now: float) -> float | None:
        """Return the seconds until the next look, or None: join."""
        if taken != self._taken:
            pause = self._pause
            self._pause = min(2 * self._pause, SELDOM)
            self._taken = taken
            self._late = 0
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
        self._standby: Standby | None = None  # set while a thread stands by
        self._taken = 0
        self._is_closed = False

    @property
    def busy(self) -> int:
        return len(self._threads) - self._idle - (self._standby is not None)

    def submit(self, *work: Work, first: bool = False) -> None:
        """Queue this work in order, which must not raise; ``first``: before the work that waits
        already.
        """
        if first:
            self._queue.extendleft(reversed(work))
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

    # -- who is awake -----------------------------------------------------------------------------

    def _attend(self) -> None:
        """Make sure that a thread stands by.

        Race: the standby thread goes idle meanwhile. It checks the queue under the lock, and the
        work is queued before.
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
        except (
            RuntimeError
        ) as error:  # no more threads: the others take the work, or it is handed back
            logger.warning(
                "only %d of %d threads for handlers: %s",
                len(self._threads),
                self._limit,
                error,
            )
            return False
        self._threads.append(thread)
        return True

    # -- a thread's life --------------------------------------------------------------------------

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
        """Wait while the others make progress; return True when this thread must work, False when
        nothing is queued.
        """
        while True:
            with self._lock:
                if self._standby is None:
                    return False  # woken by ``close``
                pause = (
                    self._standby.pause_after(self._taken, time.monotonic())
                    if self._queue
                    else None
                )
                if pause is None:
                    self._standby = None
                    return bool(self._queue)
            time.sleep(pause)

    def _work(self) -> None:
        """Take work until none is queued; each piece has a copy of this thread's context.

        What a handler leaves in context variables or as the thread's name would otherwise be seen
        by the next one.
        """
        thread = threading.current_thread()
        name = thread.name
        queue = self._queue
        done = 0
        since = time.monotonic()
        before = self._taken
        while True:
            try:
                work = queue.popleft()
            except IndexError:
                return
            self._taken += (
                1  # concurrent increments may get lost; it only has to change
            )
            if (
                queue
                and self._standby is None
                and (self._idle or len(self._threads) < self._limit)
            ):
                self._attend()
            copy_context().run(work)
            if thread.name != name:
                thread.name = name
            del work  # a finished handler's claim must not live on in an idle thread
            done += 1
            if done == SPELL:
                now = time.monotonic()
                if self._is_surplus(now - since, self._taken - before):
                    return
                done = 0
                since = now
                before = self._taken

    def _is_surplus(self, spell: float, taken: int) -> bool:
        """Return whether a thread has nothing to add that took SPELL pieces in these seconds,
        while all threads took so many: the others wait for the GIL only.
        """
        return spell < SPELL * SHORT and taken > 2 * SPELL and self.busy > 1
