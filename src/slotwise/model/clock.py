"""The clock: the database's, or a test's. Only this file may read the clocks of the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

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


class ManualClock:
    """A clock that moves only by ``tick`` and ``set``; for tests and simulations. Safe to share
    between workers.

    ``tick`` lets time pass for all workers. ``set`` steps the database's clock and leaves elapsed
    time alone.

    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> clock.tick(timedelta(hours=2))
    datetime.datetime(2026, 1, 1, 2, 0, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError(
                f"ManualClock({start!r}): expected an aware datetime, e.g. datetime(…, tzinfo=UTC)"
            )
        self._now = start.astimezone(UTC)
        self._elapsed = 0.0

    def override(self) -> datetime:
        return self._now

    def now(self) -> datetime:
        return self._now

    def elapsed(self) -> float:
        return self._elapsed

    def tick(self, by: timedelta) -> datetime:
        """Let time pass and return the new time. Raise ValueError for a negative ``by``: use
        ``set``.
        """
        if by < timedelta(0):
            raise ValueError(
                f"tick({by}): time does not pass backwards; step the clock with set(now() - …)"
            )
        self._elapsed += by.total_seconds()
        self._now += by
        return self._now

    def set(self, to: datetime) -> datetime:
        """Step to ``to``, forward or back, and return it."""
        self._now = to.astimezone(UTC)
        return self._now


Clock: TypeAlias = DatabaseClock | ManualClock


def host_now() -> datetime:
    """Return this host's wall clock: the database time of SQLite, and one side of the clock
    drift.
    """
    return from_micros(time.time_ns() // 1000)
