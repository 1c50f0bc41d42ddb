"""The one start, stop, wake and wait discipline around every loop's ``run_once``."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import timedelta

from slotwise.jobs.policies import growing_pauses
from slotwise.model.clock import Stopwatch, elapsed
from slotwise.model.durations import format_duration
from slotwise.model.events import DatabaseBack, DatabaseLost, Listeners
from slotwise.store.connect.database_errors import describe, is_busy

logger = logging.getLogger(__name__)

#: "Call me again at once."
AT_ONCE = timedelta(0)


#: Any wait at all will do, in seconds.
_BLINK = 0.000001

#: How often it is said again that the database is away.
REMINDER = timedelta(minutes=1)


class Outage:
    """What the loops of a worker say about the database: one "lost" and one "back", however many loops notice.

    In between, a line a minute: who looks at the log of a worker that does nothing should not have to search for why.
    """

    def __init__(self, listeners: Listeners, worker: str, elapsed: Stopwatch = elapsed) -> None:
        self._listeners = listeners
        self._worker = worker
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._cut_off: set[str] = set()
        self._begun = self._told = 0.0

    def begins(self, loop: str, error: BaseException) -> None:
        """``loop`` cannot reach the database, for the first time or still."""
        with self._lock:
            now = self._elapsed()
            is_news = not self._cut_off
            self._cut_off.add(loop)
            if is_news:
                self._begun = self._told = now
            is_due = now - self._told >= REMINDER.total_seconds()
            if is_due:
                self._told = now
        if is_news:
            self._listeners.publish(DatabaseLost(worker=self._worker, loop=loop, error=describe(error)))
        elif is_due:
            away = format_duration(timedelta(seconds=round(now - self._begun)))
            logger.warning("the database still cannot be used, after %s: %s; waiting for it", away, describe(error))

    @property
    def goes_on(self) -> bool:
        """Whether a loop is cut off from the database."""
        return bool(self._cut_off)

    def ends(self, loop: str) -> None:
        """``loop`` has reached it. It is back when every loop that missed it has."""
        with self._lock:
            is_news = self._cut_off == {loop}
            self._cut_off.discard(loop)
        if is_news:
            self._listeners.publish(DatabaseBack(worker=self._worker, loop=loop))


def _is_forbidden(error: BaseException) -> bool:
    """Whether the role lacks a right: the line names it with the cure, and where it was missed tells nobody more."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) == "42501"


class Service(ABC):
    """A loop: ``run_once`` does one round and says how long to sleep (None: until woken).

    The driver below is dumb on purpose; tests call ``run_once``. An outage of the database is waited out with
    growing, jittered pauses, which no wake-up shortens, and said once; any other error is logged, and the loop
    goes on, also one of a database that is there and busy (a deadlock, a timeout). Runs once: a service that was
    stopped is not started again.
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
        outage: Outage | None = None,
    ) -> None:
        """``outage`` is shared by the loops of one worker."""
        self.listeners = listeners
        self.elapsed = elapsed
        self.worker = worker
        self._is_transient = is_transient
        self._pauses = (first_pause, longest_pause)
        self._outage = outage or Outage(listeners, worker)
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

    @property
    def has_started(self) -> bool:
        """Whether a round may have been made, or is being made."""
        return self._thread is not None

    def wake(self) -> None:
        """Cut the sleep short; a wake-up during a round causes another round."""
        if not self._wake.is_set():  # it is cleared before a round looks at what there is to do
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

    def _give_way(self) -> None:
        """Let whom this loop has just woken have the interpreter's lock: else it would get it when this one waits."""
        self._stopping.wait(_BLINK)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def _drive(self) -> None:
        while True:
            # Race: stop() may come at any moment. The wake-up is cleared before the look at ``_stopping``: the
            # other way round, a stop between the two would lose its wake-up, and the sleep might never end.
            self._wake.clear()
            if self._stopping.is_set():
                return
            pause = self._round()
            alarm = self._wake if self._trouble is None else self._stopping
            alarm.wait(None if pause is None else max(pause.total_seconds(), 0))

    def _round(self) -> timedelta | None:
        try:
            pause = self.run_once()
        except BaseException as error:  # this thread is ours alone: whatever it was, the loop goes on
            return self._pause_after(error)
        if self._trouble is not None:
            self._trouble = None
            self._outage.ends(self.name)
        return pause

    def _pause_after(self, error: BaseException) -> timedelta:
        """Race: every loop of every worker meets the same outage, so each waits its own, jittered, growing time."""
        if is_busy(error):
            logger.warning("%s goes on after a pause, the database is busy with others: %s", self.name, describe(error))
        elif self._is_transient(error):
            self._outage.begins(self.name, error)
        else:
            trace = None if self._trouble is not None or _is_forbidden(error) else error  # at first; then in one line
            logger.error("%s failed, it goes on after a pause: %s", self.name, describe(error), exc_info=trace)
        if self._trouble is None:
            self._trouble = growing_pauses(*self._pauses)
        return next(self._trouble)
