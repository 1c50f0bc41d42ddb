"""Listen for notifications of due rows and wake the poller. Only the latency of starts depends on it."""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Unpack

from slotwise.engine.loops.service import AT_ONCE, Service, ServiceOptions
from slotwise.jobs.policies import growing_pauses
from slotwise.store.connect.database import Database
from slotwise.store.connect.database_errors import describe
from slotwise.store.connect.notifications import LOOK, ORDERS, Hearing

logger = logging.getLogger(__name__)

#: How long a notification sent through the pool may take to arrive.
ECHO = timedelta(seconds=5)
#: How long failures are not logged: of a connection that worked before, and of one that never did, whose address
#: may be wrong.
PATIENCE = timedelta(minutes=1)
FIRST_PATIENCE = timedelta(seconds=1)
#: Where notifications do not get through, an early retry would hardly help.
RETRY = timedelta(minutes=5)


class WakeUp(Service):
    """Listen on a connection of its own, and reconnect whenever it is lost.

    Races: notifications that were sent while it did not listen are made up for by a poll as soon as it listens. A
    transaction pooler accepts LISTEN and delivers nothing, or delivers to another client: so a notification of our
    own, sent through the ordinary pool, must arrive first. ``stop`` may come while it connects, or waits for its own
    notification: the bell, once rung, keeps ringing.
    """

    name = "wake-up"

    def __init__(
        self,
        database: Database,
        *,
        names: Collection[str],
        wake: Callable[[Collection[str]], None],
        obey: Callable[[], None],
        offset: Callable[[], timedelta] = lambda: AT_ONCE,
        **service: Unpack[ServiceOptions],
    ) -> None:
        """``names``: the tasks that run here. ``wake`` gets the notifications; ``obey`` is called for an order.
        ``offset``: see ``Peers``.
        """
        super().__init__(**service)
        self._database = database
        self._names = frozenset(names)
        self._call = wake
        self._obey = obey
        self._offset = offset
        self._hearing: Hearing | None = None
        self._failures: Iterator[timedelta] | None = None
        self._failing_since = 0.0
        self._patience = FIRST_PATIENCE
        self._told = False
        self._bell: tuple[socket.socket, socket.socket] | None = None

    @property
    def is_listening(self) -> bool:
        """Whether notifications arrive now."""
        return self._hearing is not None

    def start(self) -> None:
        """Start the loop, unless the database has no notifications."""
        if self._database.hears and self._bell is None:
            self._bell = socket.socketpair()
            super().start()

    def stop(self) -> None:
        super().stop()
        if self._bell is not None:
            with suppress(OSError):  # closed already
                self._bell[1].send(b"!")

    def _drive(self) -> None:
        super()._drive()
        self._deafen()
        for end in self._bell or ():
            end.close()

    def run_once(self) -> timedelta:
        """Listen until a notification arrives or the service is stopped."""
        try:
            if self._hearing is None:
                self._hearing = self._listen()
                self._recovered()
            self._heed(self._wait(self._hearing, None))
            self._give_way()
        except Exception as error:
            return self._failed(error)
        return AT_ONCE

    def _listen(self) -> Hearing:
        """Connect and listen. Raise _Unheard where notifications do not get through."""
        hearing = self._database.listen()
        try:
            self._database.notify([self.worker])
            end = self.elapsed() + ECHO.total_seconds()
            while self.worker not in self._wait(hearing, max(end - self.elapsed(), 0)):
                if self.is_stopping:
                    break
                if self.elapsed() >= end:
                    raise _Unheard("what is sent through the pool is not heard")
        except BaseException:
            hearing.close()
            raise
        return hearing

    def _wait(self, hearing: Hearing, seconds: float | None) -> list[str]:
        with selectors.DefaultSelector() as selector:
            selector.register(hearing, selectors.EVENT_READ)
            if self._bell is not None:
                selector.register(self._bell[0], selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(seconds)}
        return hearing.words() if hearing in ready else []

    def _heed(self, words: list[str]) -> None:
        if not any(word in self._names or word in (LOOK, ORDERS) for word in words):
            return
        if offset := self._offset().total_seconds():
            self._stopping.wait(offset)
        self._call(words)
        if ORDERS in words:
            self._obey()

    def _recovered(self) -> None:
        if self._told:
            logger.info("wake-ups are heard again")
        self._failures, self._told, self._patience = None, False, PATIENCE
        self._call(())

    def _failed(self, error: Exception) -> timedelta:
        """Return the pause before the next connection; log once, and only if waiting does not help soon.

        Other loops report an outage of the database.
        """
        self._deafen()
        if self._failures is None:
            self._failures, self._failing_since = growing_pauses(*self._pauses), self.elapsed()
        pause = next(self._failures) if self._is_transient(error) else RETRY
        patience_is_over = pause == RETRY or self.elapsed() - self._failing_since > self._patience.total_seconds()
        if patience_is_over and not self._told and not self._outage.goes_on:
            self._told = True
            logger.warning(
                "wake-ups are off, due rows are found by polls: %s; %s wake_up_url to an address that leads to this "
                "database past any pooler, or set wake_up = off", describe(error),
                "set" if self._database.settings.wake_up_url is None else "correct",
            )  # fmt: skip
        return pause

    def _deafen(self) -> None:
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.close()


class _Unheard(Exception):
    """A pooler in between swallows notifications, or the address leads to another database."""
