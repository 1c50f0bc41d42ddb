"""Who says what time it is: the database, or a test. The only file that may read this machine's clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """What a statement puts in for "now": None lets the database say it, a value overrides it."""

    def override(self) -> datetime | None: ...


class DatabaseClock:
    """The one clock of the contract: every statement asks the database itself."""

    def override(self) -> datetime | None:
        return None


class ManualClock:
    """A clock that moves only when told; for tests and simulations.

    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> clock.tick(timedelta(hours=2))
    datetime.datetime(2026, 1, 1, 2, 0, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError(f"ManualClock({start!r}): expected an aware datetime, e.g. datetime(…, tzinfo=UTC)")
        self._now = start.astimezone(UTC)

    def override(self) -> datetime:
        return self._now

    def now(self) -> datetime:
        return self._now

    def tick(self, by: timedelta) -> datetime:
        """Move on (or, with a negative ``by``, back) and return the new time."""
        self._now += by
        return self._now

    def set(self, to: datetime) -> None:
        """Jump to ``to``."""
        self._now = to.astimezone(UTC)


def host_now() -> datetime:
    """This host's wall clock: SQLite's "database time", and the other end of the skew measurement. Nothing else."""
    return _EPOCH + timedelta(microseconds=time.time_ns() // 1000)


def elapsed() -> float:
    """Seconds on a clock that never steps and, where the system has one, goes on while the machine sleeps.

    A worker measures what is left of its leases with it: a suspended laptop must not believe in old claims.
    """
    return time.clock_gettime(_BOOT) if _BOOT is not None else time.monotonic()
