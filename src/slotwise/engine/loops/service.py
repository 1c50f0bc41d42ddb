"""Start, stop, wake and wait: the driver around every loop's ``run_once``."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import timedelta

from slotwise.engine.loops.tuning import REMINDER
from slotwise.engine.run.active_claims import ActiveClaims
from slotwise.jobs.policies import growing_pauses
from slotwise.model.clock import Stopwatch, elapsed
from slotwise.model.durations import format_duration
from slotwise.model.events import DatabaseBack, DatabaseLost, Listeners
from slotwise.settings.settings import Settings
from slotwise.store.connect.database_errors import (
    describe_error,
    is_busy,
    is_transient,
)
from slotwise.store.slots.store import Store

logger = logging.getLogger(__name__)

#: "Call me again at once."
AT_ONCE = timedelta(0)


class Common:
    """What the loops of a worker share: listeners, clock, pauses, and outages, reported once for
    all loops.
    """

    def __init__(
        self,
        listeners: Listeners,
        worker: str,
        *,
        elapsed: Stopwatch = elapsed,
        first_pause: timedelta = timedelta(milliseconds=200),
        longest_pause: timedelta = timedelta(seconds=15),
    ) -> None:
        self.listeners = listeners
        self.worker = worker
        self.elapsed = elapsed
        self.pauses = first_pause, longest_pause
        self._lock = threading.Lock()
        self._cut_off: set[str] = set()
        self._begun = self._told = 0.0

    def outage_begins(self, loop: str, error: BaseException) -> None:
        """Record that ``loop`` cannot reach the database, for the first time or still."""
        with self._lock:
            now = self.elapsed()
            is_news = not self._cut_off
            self._cut_off.add(loop)
            if is_news:
                self._begun = now
            if is_due := is_news or now - self._told >= REMINDER.total_seconds():
                self._told = now
        if is_news:
            self.listeners.publish(
                DatabaseLost(
                    worker=self.worker, loop=loop, error=describe_error(error)
                )
            )
        elif is_due:
            away = format_duration(timedelta(seconds=round(now - self._begun)))
            logger.warning(
                "the database still cannot be used, after %s: %s; retrying",
                away,
                describe_error(error),
            )

    @property
    def is_away(self) -> bool:
        """Whether at least one loop cannot reach the database."""
        return bool(self._cut_off)

    def outage_ends(self, loop: str) -> None:
        """Record that ``loop`` has reached the database; it is back when every loop that missed
        it has.
        """
        with self._lock:
            is_news = self._cut_off == {loop}
            self._cut_off.discard(loop)
        if is_news:
            self.listeners.publish(DatabaseBack(worker=self.worker, loop=loop))


class WorkerCommon(Common):
    """What the loops of a worker need that deal with claims."""

    def __init__(
        self,
        listeners: Listeners,
        worker: str,
        settings: Settings,
        store: Store,
        active_claims: ActiveClaims,
    ) -> None:
        interval = settings.heartbeat_interval
        super().__init__(
            listeners,
            worker,
            elapsed=active_claims.elapsed,
            longest_pause=min(timedelta(seconds=15), interval),
        )
        self.settings = settings
        self.store = store
        self.active_claims = active_claims
        self.interval = interval
        self.lease = settings.lease


class Service(ABC):
    """A loop: ``run_once`` does one round and returns how long to sleep (None: until woken).

    After any error the loop continues, with growing, jittered pauses, which no wake-up shortens. A
    stopped service is not started again.
    """

    name = "service"
    #: How long after the start its first round begins: the first claims come first.
    delay = AT_ONCE

    def __init__(self, common: Common) -> None:
        self.common = common
        self.listeners = common.listeners
        self.elapsed = common.elapsed
        self.worker = common.worker
        self._trouble: Iterator[timedelta] | None = None
        self._wake = threading.Event()
        #: Cuts the sleep short; a wake-up during a round causes another round.
        self.wake: Callable[[], None] = self._wake.set
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        #: When the current round began and the last one ended, in elapsed seconds; None if there
        #: is none.
        self.busy_since: float | None = None
        self.progress: float | None = None

    @abstractmethod
    def run_once(self) -> timedelta | None:
        """Do one round and return how long to sleep before the next."""

    def start(self) -> None:
        """Start the loop's thread; a second start changes nothing."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._drive, name=f"slotwise-{self.name}", daemon=True
            )
            self._thread.start()

    @property
    def has_started(self) -> bool:
        """Whether a round may have begun."""
        return self._thread is not None

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

    def _drive(self) -> None:
        self._stopping.wait(self.delay.total_seconds())
        while True:
            # race: a stop between this and the look at ``_stopping`` must not lose its wake-up
            self._wake.clear()
            if self._stopping.is_set():
                return
            self.busy_since = self.elapsed()
            pause = self._round()
            self.busy_since, self.progress = None, self.elapsed()
            alarm = self._wake if self._trouble is None else self._stopping
            alarm.wait(None if pause is None else max(pause.total_seconds(), 0))

    def _round(self) -> timedelta | None:
        try:
            pause = self.run_once()
        except (
            BaseException
        ) as error:  # this thread is ours alone: the loop continues after any error
            return self._pause_after(error)
        if self._trouble is not None:
            self._trouble = None
            self.common.outage_ends(self.name)
        return pause

    def _pause_after(self, error: BaseException) -> timedelta:
        if is_busy(error):
            logger.warning(
                "%s continues after a pause, the database is busy: %s",
                self.name,
                describe_error(error),
            )
        elif is_transient(error):
            self.common.outage_begins(self.name, error)
        else:
            # A missing permission is named with its cure, and so is what was logged before: one
            # line is enough.
            is_forbidden = (
                getattr(getattr(error, "orig", None), "sqlstate", None) == "42501"
            )
            trace = None if self._trouble is not None or is_forbidden else error
            logger.error(
                "%s failed, and continues after a pause: %s",
                self.name,
                describe_error(error),
                exc_info=trace,
            )
        if self._trouble is None:
            self._trouble = growing_pauses(*self.common.pauses)
        return next(self._trouble)
