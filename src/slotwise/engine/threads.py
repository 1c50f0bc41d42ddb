"""A bounded pool of daemon threads: a handler that never returns must not keep the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Threads:
    """Runs callables on at most ``limit`` threads, made as they are needed and kept until ``close``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Queue ``work``; it must not raise."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif len(self._threads) < self._limit:
                self._add_thread()
        self._queue.put(work)

    def close(self) -> None:
        """Let the threads end when they are done; does not wait."""
        for _ in self._threads:
            self._queue.put(None)

    def _add_thread(self) -> None:
        name = f"slotwise-handler-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # a finished handler's claim must not live on in an idle thread
            with self._lock:
                self._idle += 1
