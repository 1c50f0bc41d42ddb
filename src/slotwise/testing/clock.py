"""Time that a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


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
