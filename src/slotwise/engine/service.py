"""The one start, stop, wake and wait discipline around every loop's ``run_once``."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import timedelta

from slotwise.clock import Stopwatch, elapsed
from slotwise.events import DatabaseBack, DatabaseLost, Listeners
from slotwise.policies import growing_pauses

logger = logging.getLogger(__name__)

#: "Call me again at once."
AT_ONCE = timedelta(0)


class Service(ABC):
    """A loop: ``run_once`` does one round and says how long to sleep (None: until woken).

    The driver below is dumb on purpose; tests call ``run_once``. An outage of the database is waited out with
    growing, jittered pauses and said once; any other error is logged, and the loop goes on.
    """

    name = "service"

    def __init__(
        self,
        listeners: Listeners,
        *,
        worker: str,
        is_transient: Callable[[BaseException], bool] = lambda _: False,
        first_pause: timedelta = timedelta(milliseconds=200),
        longest_pause: timedelta = timedelta(seconds=15),
        elapsed: Stopwatch = elapsed,
    ) -> None:
        self.listeners = listeners
        self.elapsed = elapsed
        self.worker = worker
        self._is_transient = is_transient
        self._pauses = (first_pause, longest_pause)
        self._trouble: Iterator[timedelta] | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def run_once(self) -> timedelta | None:
        """One round; how long to sleep before the next."""

    def start(self) -> None:
        """Start the loop's thread; a second start changes nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, name=f"slotwise-{self.name}", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Cut the sleep short; a wake-up during a round causes another round."""
        self._wake.set()

    def stop(self) -> None:
        """Ask the loop to end after its current round."""
        self._stopping.set()
        self._wake.set()

    def join(self, timeout: timedelta | None = None) -> bool:
        """Wait for the loop's thread; True once it has ended."""
        if self._thread is None:
            return True
        self._thread.join(None if timeout is None else max(timeout.total_seconds(), 0))
        return not self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def _drive(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            pause = self._round()
            self._wake.wait(None if pause is None else max(pause.total_seconds(), 0))

    def _round(self) -> timedelta | None:
        try:
            pause = self.run_once()
        except Exception as error:
            return self._pause_after(error)
        if self._trouble is not None:
            self._trouble = None
            self.listeners.publish(DatabaseBack(worker=self.worker, loop=self.name))
        return pause

    def _pause_after(self, error: Exception) -> timedelta:
        """Race: every loop of every worker meets the same outage, so each waits its own, jittered, growing time."""
        if not self._is_transient(error):
            logger.exception("%s failed; it goes on after a pause", self.name)
        elif self._trouble is None:
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            self.listeners.publish(DatabaseLost(worker=self.worker, loop=self.name, error=first_line))
        if self._trouble is None:
            self._trouble = growing_pauses(*self._pauses)
        return next(self._trouble)
