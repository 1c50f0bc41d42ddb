"""A bounded pool of daemon threads: a handler that never returns must not keep the process from ending."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import TypeVar

from slotwise.clock import elapsed

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Threads:
    """Runs callables on at most ``limit`` threads, made as they are needed and kept until ``close``."""

    def __init__(self, limit: int, name: str = "slotwise-handler") -> None:
        self._limit = limit
        self._name = name
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        #: Queued or running.
        self._outstanding = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Queue ``work``; it must not raise."""
        with self._lock:
            self._outstanding += 1
            if len(self._threads) < min(self._outstanding, self._limit):
                self._add_thread()
        self._queue.put(work)

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
            for _ in self._threads:
                self._queue.put(None)

    def join(self, timeout: timedelta) -> None:
        """Wait, after ``close``, for the threads that end within this time."""
        until = elapsed() + timeout.total_seconds()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(until - elapsed(), 0))

    def _add_thread(self) -> None:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more: whoever is there takes the work, or it goes back
            logger.warning("only %d of %d threads for handlers: %s", len(self._threads), self._limit, error)
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # a finished handler's claim must not live on in an idle thread
            with self._lock:
                self._outstanding -= 1
