"""The loop of a worker that gives out events, repairs lanes, and deletes old events.

A thread of each worker, not an endless job: which of them works does not matter to the order, so
that nothing waits for the take-over of a slot when a worker dies.
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol, Self

from slotwise import SlotwiseError
from slotwise.contrib.events.fan_out import AT_ONCE, FannedOut
from slotwise.contrib.events.publishing import WORD
from slotwise.contrib.events.repair import BEGIN
from slotwise.spi import elapsed, growing_pauses

if TYPE_CHECKING:
    from slotwise import JobRegistry
    from slotwise.contrib.events.events import Events

logger = logging.getLogger("slotwise.events")

#: The longest time between two looks, in seconds; a notification comes before.
LOOK: Final = 1.0
#: The pause of a look that has left something, as a key was locked, or that had not its turn.
SOON: Final = 0.02
#: How long a fan-out leaves its turn to another one that does not finish.
PATIENCE: Final = 3.0
#: Looks that leave keys before one waits for the next one of them.
SKIPS: Final = 5
#: A look at more events, while those of locked keys fill it.
MOST: Final = 32 * AT_ONCE
#: By how many events a look grows again after one that has failed.
GROWTH: Final = 10
#: Seconds between two pages of the repair, or two batches of the retention; and between two walks
#: of the retention.
REPAIR: Final = 1.0
PRUNE: Final = 60.0
#: How often a thread that waits looks whether it is to stop, in seconds.
_STOP: Final = 0.2
_FIRST_PAUSE: Final = timedelta(milliseconds=200)
_LONGEST_PAUSE: Final = timedelta(seconds=10)


class _Hearing(Protocol):
    """A connection that only listens."""

    def fileno(self) -> int: ...

    def words(self) -> list[str]: ...

    def close(self) -> None: ...


class EventLoop:
    """Runs rounds on a thread of its own, from ``start`` to ``stop``."""

    def __init__(
        self,
        events: Events,
        registry: JobRegistry,
        wake: Callable[[JobRegistry, set[str]], None],
    ) -> None:
        self._events = events
        self._registry = registry
        self._wake = wake
        #: Whether the last look has found all events given out.
        self.is_idle = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._hearing: _Hearing | None = None
        self._is_registered = False
        self._limit = AT_ONCE
        self._skips = 0
        self._left_keys: Sequence[str] = ()
        self._waited_for = ""
        self._busy_since: float | None = None
        self._place = BEGIN
        self._repair_at = 0.0
        self._prune_at = elapsed() + PRUNE
        self._old: int | None = 0
        self._key = ""

    def start(self) -> Self:
        self._thread = threading.Thread(
            target=self._run, name="slotwise-events", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the loop after its round."""
        self._ending.set()

    def join(self, seconds: float) -> None:
        """Wait for the end of the loop."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        pauses = growing_pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        is_failing = False
        while not self._ending.is_set():
            try:
                pause = self.run_once()
            except Exception as error:
                if self._ending.is_set():
                    break  # the connections are closed
                if not is_failing:
                    _log_trouble(error)
                is_failing = True
                self._deafen()
                self._ending.wait(next(pauses).total_seconds())
                continue
            if is_failing:
                logger.info("events are given out again")
                is_failing = False
                pauses = growing_pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
            if pause > 0:
                self._wait(pause)
        self._deafen()

    def run_once(self) -> float:
        """Do one round; return how many seconds to wait before the next one."""
        if not self._is_registered:
            self._events.register()
            self._is_registered = True
        self._listen()
        pause = self._look()
        now = elapsed()
        if now >= self._repair_at:
            self._repair_at = now + REPAIR
            self._tell(self._events.repair_owed())
            repaired = self._events.repair(self._place)
            self._place = repaired.place
            self._tell(repaired.names)
        if now >= self._prune_at:
            self._prune_at = now + (PRUNE if self._prune() else REPAIR)
        return pause

    def _look(self) -> float:
        key = self._awaited()
        try:
            found = self._events.fan_out(
                limit=self._limit, wait_for=key, needs_turn=not self._is_impatient()
            )
        except Exception:
            self._limit = max(1, self._limit // 2)  # it may have been too much
            raise
        if found.is_busy:
            if self._busy_since is None:
                self._busy_since = elapsed()
            return LOOK / 4
        self._busy_since = None
        self._tell(found.names)
        self.is_idle = found.events == 0 and not found.left
        return self._pause_after(found)

    def _awaited(self) -> str | None:
        """Return the key to wait for, if several looks have left some: one after the other, for
        the holder of one may be frozen.
        """
        if self._skips < SKIPS or not self._left_keys:
            return None
        self._skips = 0
        later = (key for key in self._left_keys if key > self._waited_for)
        self._waited_for = next(later, self._left_keys[0])
        return self._waited_for

    def _pause_after(self, found: FannedOut) -> float:
        # Events of locked keys fill no look for ever: the next one sees more.
        is_stuck = found.is_full and found.left > 0 and found.events == 0
        if is_stuck:
            self._limit = min(2 * self._limit, MOST)
        else:
            self._limit = min(self._limit + GROWTH, AT_ONCE)
        self._left_keys = found.left_keys
        self._skips = self._skips + 1 if found.left else 0
        if found.is_full:
            return 0.0
        return SOON if found.left else LOOK

    def _is_impatient(self) -> bool:
        """Whether another fan-out has had the turn for too long: its process may be frozen."""
        since = self._busy_since
        return since is not None and elapsed() - since > PATIENCE

    def _prune(self) -> bool:
        """Delete old events, or keys, of one batch, and go on there in the next round: events to
        give out must not wait for it. Return whether all were looked at.
        """
        if self._old is not None:
            self._old = self._events.prune(self._old).after
            return False
        key = self._events.forget_keys(self._key).after
        if key is not None:
            self._key = key
            return False
        self._old, self._key = 0, ""
        return True

    def _tell(self, names: object) -> None:
        if isinstance(names, list | frozenset) and names:
            self._wake(self._registry, set(names))

    # -- notifications -----------------------------------------------------------------------

    def _listen(self) -> None:
        database = self._registry.database
        if self._hearing is None and database.hears:
            self._hearing = database.listen()

    def _deafen(self) -> None:
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.close()

    def _wait(self, seconds: float) -> None:
        """Wait for so long, or until an event is published."""
        until = elapsed() + seconds
        while not self._ending.is_set() and (left := until - elapsed()) > 0:
            hearing = self._hearing
            if hearing is None:
                self._ending.wait(min(left, _STOP))
                continue
            try:
                ready, _, _ = select.select([hearing], [], [], min(left, _STOP))
                words = hearing.words() if ready else []
            except (
                Exception
            ) as error:  # the database ends; the next round connects again
                logger.debug("no notifications: %s", error)
                self._deafen()
                continue
            if WORD in words:
                return


def _log_trouble(error: Exception) -> None:
    if isinstance(error, SlotwiseError):
        logger.error("events are not given out: %s", error)
    else:
        logger.error("events are not given out", exc_info=error)
