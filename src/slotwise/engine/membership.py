"""A worker's place among the live workers: signed in with each heartbeat, signed out when it has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from slotwise.engine.loops.peers import Peers
from slotwise.model.vocabulary import State
from slotwise.store.connect.database_errors import describe
from slotwise.store.reading.worker_registry import Badge, WorkerRegistry

logger = logging.getLogger(__name__)

#: How long the row of a worker that vanished stays for people to read.
FORGET_AFTER = timedelta(days=1)
#: Above this the clocks of host and database differ enough to confuse people who read both.
SKEW_WARNING = 1.0


class Membership:
    """Says that a worker lives, what it is, and whether it drains. Safe between threads."""

    def __init__(self, roster: WorkerRegistry, make_badge: Callable[[], Badge]) -> None:
        self._worker_registry = roster
        self._make_badge = make_badge
        self._lock = threading.Lock()
        self._badge: Badge | None = None
        self._skew: float | None = None
        self._skew_told = False
        self.is_draining = False
        self.peers = Peers()

    def join(self) -> None:
        """Sign in for the first time, and forget workers that vanished long ago."""
        self._badge = self._make_badge()
        self._worker_registry.sweep(FORGET_AFTER)
        self.renew()

    def renew(self) -> float | None:
        """Still here: this host's clock against the database's, in seconds; None for who has not joined, or has left.

        Race: a heartbeat may be on its way while the worker leaves. It must not bring the row back.
        """
        with self._lock:
            if self._badge is None:
                return None
            state = State.DRAINING if self.is_draining else State.RUNNING
            skew, peers = self._worker_registry.sign_in(self._badge, state, self._skew)
            self._skew = skew
        self.peers.count = peers
        if abs(skew) > SKEW_WARNING and not self._skew_told:
            self._skew_told = True
            logger.warning(
                "this host's clock is %.1f s off the database's; jobs run by the database's clock, logs here do not",
                skew,
            )
        return skew

    def leave(self) -> None:
        """Sign out; what cannot be written now is swept by others later."""
        with self._lock:
            badge, self._badge = self._badge, None
            if badge is None:
                return
            try:
                self._worker_registry.sign_out(badge.worker)
            except Exception as error:
                logger.warning("could not sign out (%s); the row is swept later", describe(error))
