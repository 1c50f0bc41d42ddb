"""A bounded pool of daemon threads: a handler that never returns must not keep the process from ending.

Short handlers are run one after the other by one thread: under the interpreter's lock a second one would only cost
switches. So that a handler that waits holds up nobody behind it, one further thread stands by while work is
queued; it takes over as soon as it gets to run and finds that nothing was taken since it last looked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import TypeAlias, TypeVar

from slotwise.model.clock import elapsed

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work: TypeAlias = Callable[[], None]

#: How often, in seconds, who stands by looks whether the others get on: less and less often while they do.
LOOK = 0.001
SELDOM = 0.008
#: A thread that has taken so many pieces of work, each in less than so many seconds, while others took as many, is
#: one too many: nothing can have waited for anything but the interpreter's lock.
SPELL = 64
SHORT = 0.0002


class Threads:
    """Runs callables on at most ``limit`` threads, made as they are needed and kept until ``close``."""

    def __init__(self, limit: int, name: str = "slotwise-handler") -> None:
        self._limit = limit
        self._name = name
        self._queue: deque[Work] = deque()
        self._lock = threading.Lock()
        self._bell = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._active = 0
        self._is_attended = False  # somebody stands by
        self._taken = 0
        self._taken_before = 0  # when whoever stands by was called
        self._is_closed = False

    def __len__(self) -> int:
        """How many pieces of work wait."""
        return len(self._queue)

    @property
    def busy(self) -> int:
        """How many threads are at work."""
        return self._active

    def submit(self, *work: Work) -> None:
        """Queue this work; it must not raise."""
        self.submit_all(work)

    def submit_all(self, work: Iterable[Work], *, first: bool = False) -> None:
        """Queue this work, in its order; ``first``: before what waits already."""
        if first:
            self._queue.extendleft(reversed(list(work)))
        else:
            self._queue.extend(work)
        self._attend()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Queue ``function``; what it returns or raises is the future's."""
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
        """Let the threads end when they are done; does not wait."""
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
        """See to it that somebody stands by.

        Race: work is queued while the last who stood by lies down. It is queued before the lock is taken, and who
        lies down looks at the queue under the lock: one of the two sees the other.
        """
        with self._lock:
            if self._is_attended or not self._queue:
                return
            self._taken_before = self._taken
            if self._idle:
                self._idle -= 1
                self._is_attended = True
                self._bell.release()
            elif len(self._threads) < self._limit:
                self._is_attended = self._add_thread()

    def _add_thread(self) -> bool:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._live, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more: whoever is there takes the work, or it goes back
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
            self._attend()  # to what came since this thread looked last
            self._bell.acquire()

    def _stand_by(self) -> bool:
        """Wait while the others get on; True: they do not, so this thread is at work now."""
        pause = LOOK
        while True:
            with self._lock:
                if not self._queue or self._taken == self._taken_before:
                    self._is_attended = False
                    self._active += bool(self._queue)
                    return bool(self._queue)
                self._taken_before = self._taken
            time.sleep(pause)
            pause = min(2 * pause, SELDOM)

    def _work(self) -> None:
        queue, done, since, before = self._queue, 0, time.monotonic(), self._taken
        while True:
            try:
                work = queue.popleft()
            except IndexError:
                break
            self._taken += 1  # threads may lose a count between them; that it moves is enough
            if queue and not self._is_attended and (self._idle or len(self._threads) < self._limit):
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
        """Lie down, unless nobody else is at work."""
        with self._lock:
            if self._active < 2:
                return False
            self._active -= 1
            return True
