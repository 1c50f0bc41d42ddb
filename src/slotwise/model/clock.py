"""Who says what time it is: the database, or a test. The only file that may read this machine's clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)

#: Seconds on a clock that never steps; only differences mean anything.
Stopwatch: TypeAlias = Callable[[], float]


class Clock(Protocol):
    """What time it is for a process: instants are the database's, spans its own."""

    def override(self) -> datetime | None:
        """What a statement puts in for "now"; None lets the database say it."""

    def elapsed(self) -> float:
        """Seconds on a clock that never steps."""


class DatabaseClock:
    """The one clock of the contract: every statement asks the database itself."""

    def override(self) -> datetime | None:
        return None

    def elapsed(self) -> float:
        return elapsed()


class ManualClock:
    """A clock that moves only when told to; for tests and simulations. Safe to share between workers.

    ``tick`` lets time pass for all workers. ``set`` steps the database's clock: measured durations do not change with
    it.

    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> clock.tick(timedelta(hours=2))
    datetime.datetime(2026, 1, 1, 2, 0, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError(f"ManualClock({start!r}): expected an aware datetime, e.g. datetime(…, tzinfo=UTC)")
        self._now = start.astimezone(UTC)
        self._elapsed = 0.0

    def override(self) -> datetime:
        return self._now

    def now(self) -> datetime:
        return self._now

    def elapsed(self) -> float:
        return self._elapsed

    def tick(self, by: timedelta) -> datetime:
        """Let time pass and return the new time. Raises ValueError for a negative ``by``: that is a ``set``."""
        if by < timedelta(0):
            raise ValueError(f"tick({by}): time does not pass backwards; step the clock with set(now() - …)")
        self._elapsed += by.total_seconds()
        self._now += by
        return self._now

    def set(self, to: datetime) -> datetime:
        """Step to ``to``, either way, and return it."""
        self._now = to.astimezone(UTC)
        return self._now


def host_now() -> datetime:
    """This host's wall clock: SQLite's "database time", and the other end of the skew measurement. Nothing else."""
    return _EPOCH + timedelta(microseconds=time.time_ns() // 1000)


def elapsed() -> float:
    """Seconds on a clock that never steps and, where the system has one, goes on while the machine sleeps.

    A worker measures what is left of its leases with it: a suspended laptop must not believe in old claims.
    """
    return time.clock_gettime(_BOOT) if _BOOT is not None else time.monotonic()
