"""How a worker comes in: it waits for a database that is away, and ends where waiting would not help."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from slotwise.engine.service import Outage
from slotwise.errors import DatabaseRefused
from slotwise.policies import growing_pauses
from slotwise.store.database import is_transient

FIRST_PAUSE = timedelta(milliseconds=300)
LONGEST_PAUSE = timedelta(seconds=15)


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
        for pause in growing_pauses(FIRST_PAUSE, LONGEST_PAUSE):
            if self._stopping.is_set():
                return False
            try:
                self._enter()
            except Exception as error:
                if isinstance(error, DatabaseRefused) or not is_transient(error):
                    raise
                self._outage.begins(self.name, error)
            else:
                self._outage.ends(self.name)
                return True
            self._stopping.wait(pause.total_seconds())
        raise AssertionError("pauses never end")
