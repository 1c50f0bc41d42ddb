"""Comparisons every few minutes, on a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Final, Self

from slotwise import Client, SlotwiseError
from slotwise.contrib.reconciliation.comparison import reconcile
from slotwise.contrib.reconciliation.kept import keep, kept

logger = logging.getLogger("slotwise.reconciliation")

#: The pause between two comparisons of the whole cluster, and after one that failed.
EVERY: Final = timedelta(minutes=5)
#: The shortest pause, in multiples of the time that the comparison took.
SHARE: Final = 20
_MIDNIGHT: Final = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0}


class Reconciler:
    """Compares the schedules with the ledger since midnight, and keeps the result for all.

    Of several processes, the one whose turn comes first compares; the others find a result that
    is new enough. Between two comparisons it has no connection.
    """

    def __init__(
        self,
        open_client: Callable[[], AbstractContextManager[Client]],
        every: timedelta = EVERY,
    ) -> None:
        """``every``: the pause between two comparisons, at least."""
        self._open = open_client
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="slotwise-reconciliation", daemon=True
        )

    def run_once(self) -> bool:
        """Compare, unless another process has done so recently; return whether this one did.

        Raises DatabaseProblem, SchemaMissing or SchemaMismatch.
        """
        with self._open() as client:
            inspect = client.inspect
            now = inspect.now()
            last = kept(client)
            if last is not None and timedelta(0) <= now - last.at < self._every:
                return False
            local = now.astimezone(inspect.common_zone())
            midnight = local.replace(**_MIDNIGHT)  # type: ignore[arg-type]
            keep(client, reconcile(inspect, midnight, now))
        return True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ask the thread to end. What it reads at this moment changes nothing."""
        self._stop.set()

    def _run(self) -> None:
        is_failing = False
        pause = 0.0
        while not self._stop.wait(pause):
            began = time.monotonic()
            try:
                self.run_once()
            except Exception as error:
                if not is_failing:
                    _log_trouble(error)
                is_failing = True
            else:
                is_failing = False
            took = time.monotonic() - began
            pause = max(self._every.total_seconds(), SHARE * took)


def _log_trouble(error: Exception) -> None:
    if isinstance(error, SlotwiseError):
        logger.warning("the schedules could not be compared: %s", error)
    else:
        logger.warning("the schedules could not be compared", exc_info=error)
