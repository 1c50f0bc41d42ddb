"""Tick, rest until the next known instant without a statement, and tick again.

While it rests, it has no connection, or one that only listens. A rest begins only after a look that
found nothing due, nothing held by this process, and no lease that has expired.

Races:

- A task is inserted between the last look and the rest. Listening begins before the look, so its
  notification is waiting, and the rest ends at once. A client notifies of what is due within its
  poll interval: what is due later, what plain SQL inserts, and anything without listening is found
  after ``every`` at the latest.
- A process that runs something dies while all others rest. When it claimed, they were woken, or
  woke at the same instant, and saw its lease: they rest until that ends, and then reap. Without
  listening, one that did not see the claim finds it after ``every`` at the latest; then the bound
  of the take-over begins.
- All wake at one instant, and one claims: the others see the row held, as above.
- When a tick ends, the notification of its own claim still waits: one more tick finds nothing,
  notifies nobody, and rests.
- The database's clock is set forward in a rest: a slot is late by the step, by ``every`` at most.
  Set back: it wakes early, finds nothing, and rests again. The rest is measured by a clock that
  also runs while the host sleeps.
- The listening connection breaks: it ticks, and listens again. If it breaks in silence, the system
  finds it by its keepalives; until then ``every`` is the bound.
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from typing import Final, Protocol

from slotwise import ConfigurationError, DatabaseProblem, JobRegistry
from slotwise.contrib.tick.tick import EARLY, Tick, TickResult, TickState
from slotwise.spi import describe_error, elapsed

logger = logging.getLogger("slotwise.tick")

#: For how long it waits at most without looking at the clock, and for a stop, in seconds: a host
#: that slept is late by this at most.
STEP: Final = 1.0
#: The longest pause after a tick that has failed.
LONGEST_PAUSE: Final = timedelta(seconds=30)
#: What all workers heed: look, and an operation.
_FOR_ALL: Final = frozenset({"*", ""})


class Ear(Protocol):
    """A connection that only listens."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""

    def words(self) -> list[str]:
        """Return the notifications so far. Raise when the connection has ended."""

    def close(self) -> None:
        """Close it."""


class Resting:
    """Run what is due with ``registry``, and rest, until a stop.

    It looks after ``every`` at the latest; ``early`` is that of its ticks. With ``listens`` a
    notification ends the rest; without, it has no connection then. ``tell`` gets each result.
    Raises ConfigurationError if the database has no notifications and it shall listen.
    """

    def __init__(
        self,
        registry: JobRegistry,
        make_tick: Callable[[], Tick],
        *,
        every: timedelta,
        early: timedelta = EARLY,
        listens: bool = False,
        tell: Callable[[TickResult], object] = lambda result: None,
    ) -> None:
        if listens and not registry.database.hears:
            raise ConfigurationError(
                "this database sends no notifications, or a pooler is in between: set "
                "wake_up_url to its own address, or do not listen"
            )
        if every <= timedelta(0):
            raise ConfigurationError("every must be more than zero")
        self._database = registry.database
        self._names = registry.definitions.keys() | _FOR_ALL
        self._make_tick = make_tick
        self._every = every
        self._early = early
        self._listens = listens
        self._tell = tell
        self._ear: Ear | None = None
        self._tick: Tick | None = None
        self._asked = threading.Event()
        self._reason: str | None = None

    def run(self) -> int:
        """Tick and rest until a stop; return how much the last tick has left behind.

        Raises what the first tick raises. A later one that cannot use the database is logged, and
        followed by another.
        """
        is_first = True
        try:
            while not self._asked.is_set():
                try:
                    found = self._once()
                except DatabaseProblem as error:
                    if is_first:
                        raise
                    logger.error("the tick failed, and is repeated: %s", error)
                    self._deafen()
                    self._rest(min(self._every, LONGEST_PAUSE))
                    continue
                is_first = False
                if found.unfinished:
                    return found.unfinished
                self._rest(pause_after(found, every=self._every, early=self._early))
        finally:
            self._deafen()
            self._database.close()
        return 0

    def stop(self, reason: str | None = None) -> None:
        """End the rest, or drain the tick, from any thread; a second call cancels what runs."""
        self._reason = reason
        self._asked.set()
        if (tick := self._tick) is not None:
            tick.stop(reason)

    def _once(self) -> TickResult:
        if self._listens and self._ear is None:
            self._ear = self._database.listen()
        self._tick = tick = self._make_tick()
        if self._asked.is_set():  # race: it was requested before there was a tick
            tick.stop(self._reason)
        try:
            found = tick.run()
        finally:
            self._tick = None
            self._database.close()
        self._tell(found)
        return found

    def _rest(self, pause: timedelta) -> None:
        """Wait so long, until a notification, or for a stop."""
        until = elapsed() + pause.total_seconds()
        while (left := until - elapsed()) > 0 and not self._asked.is_set():
            if self._ear is None:
                self._asked.wait(min(left, STEP))
            elif self._is_called(self._ear, min(left, STEP)):
                return

    def _is_called(self, ear: Ear, seconds: float) -> bool:
        """Wait for notifications; return whether one is for this process."""
        try:
            if not select.select([ear], [], [], seconds)[0]:
                return False
            return concerns(ear.words(), self._names)
        except Exception as error:
            logger.warning("notifications have ended: %s", describe_error(error))
            self._deafen()
            return True

    def _deafen(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            with suppress(Exception):
                ear.close()


def concerns(words: Collection[str], names: Collection[str]) -> bool:
    """Whether one of these notifications is about one of these names."""
    return any(word in names for word in words)


def pause_after(found: TickResult, *, every: timedelta, early: timedelta) -> timedelta:
    """Return how long to rest after a tick; none if more is due. It wakes ``early``, by as much as
    the tick waits for what is about to be due: so the start of a worker delays no slot.
    """
    if found.state == TickState.MORE:
        return timedelta(0)
    if found.rest is None:
        return every
    return max(min(found.rest - early, every), timedelta(0))
