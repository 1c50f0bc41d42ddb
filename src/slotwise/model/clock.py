"""The clock: the database's, or another. Only this file may read the clocks of the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Protocol, TypeAlias

from slotwise.model.records import from_micros

#: Seconds on a monotonic clock; only differences are meaningful.
Stopwatch: TypeAlias = Callable[[], float]
#: A monotonic clock that, where the system has one, continues during suspend. A worker measures
#: its leases with it: a laptop must not trust old claims after a suspend.
elapsed: Stopwatch = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


class DatabaseClock:
    """The clock of the contract: every statement uses the database's own time, spans come from the
    process's clock.
    """

    def override(self) -> datetime | None:
        """Return what a statement uses as "now"; None for the database's time."""
        return None

    elapsed = staticmethod(elapsed)


class Clock(Protocol):
    """Where "now" and spans of time come from: the database's clock, or one that a test moves."""

    def override(self) -> datetime | None:
        """Return what a statement uses as "now"; None for the database's time."""

    def elapsed(self) -> float:
        """Return seconds of which only differences are meaningful."""


def host_now() -> datetime:
    """Return this host's wall clock: the database time of SQLite, and one side of the clock
    drift.
    """
    return from_micros(time.time_ns() // 1000)
