"""How a worker comes in: it waits for a database that is away, and ends where waiting would not help."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

from slotwise.engine.loops.service import Outage
from slotwise.errors import DatabaseRefused
from slotwise.jobs.policies import growing_pauses
from slotwise.store.connect.database import is_transient
from slotwise.store.connect.database_errors import describe, is_busy

logger = logging.getLogger(__name__)

FIRST_PAUSE = timedelta(milliseconds=300)
LONGEST_PAUSE = timedelta(seconds=15)
#: Who keeps a row of ours from us is there as well: another worker that starts just now.
BUSY_PAUSES = timedelta(milliseconds=50), timedelta(seconds=1)


class Startup:
    """Tries to enter the cluster until it has succeeded, or until somebody asks for an end."""

    name = "start"

    def __init__(self, enter: Callable[[], None], outage: Outage, stopping: threading.Event) -> None:
        self._enter = enter
        self._outage = outage
        self._stopping = stopping

    def run(self) -> bool:
        """Whether the worker is in; False if it was asked to stop first.

        Raises DatabaseRefused: a wrong password or name does not become right by waiting, and whoever deploys it
        should see that. Only at the start: later the same words may come from a server that is being replaced.
        """
        away, busy = growing_pauses(FIRST_PAUSE, LONGEST_PAUSE), growing_pauses(*BUSY_PAUSES)
        while not self._stopping.is_set():
            try:
                self._enter()
            except Exception as error:
                if isinstance(error, DatabaseRefused) or not is_transient(error):
                    raise
                pause = self._pause_after(error, away, busy)
            else:
                self._outage.ends(self.name)
                return True
            self._stopping.wait(pause.total_seconds())
        return False

    def _pause_after(self, error: Exception, away: Iterator[timedelta], busy: Iterator[timedelta]) -> timedelta:
        """A database that is there and busy with others is no outage, and tried again soon."""
        if not is_busy(error):
            self._outage.begins(self.name, error)
            return next(away)
        logger.info("the start goes on after a pause, the database is busy with others: %s", describe(error))
        return next(busy)
