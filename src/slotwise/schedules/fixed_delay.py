"""At a fixed delay after the end of the run before."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from slotwise.model.durations import format_duration
from slotwise.schedules.base import Schedule
from slotwise.schedules.every import positive_duration
from slotwise.schedules.instants import in_utc


class FixedDelay(Schedule):
    """The end of a run plus a delay: `FixedDelay("2m")`, `FixedDelay(minutes=2)` or a timedelta.

    `next_after(t)` takes the end of the run. Until the next run has ended there is one slot ahead
    and no more, so never more than one is counted. Raises InvalidSchedule.
    """

    __slots__ = ("delay",)
    from_end = True
    delay: timedelta

    def __init__(
        self,
        delay: timedelta | str | None = None,
        *,
        days: int = 0,
        hours: int = 0,
        minutes: int = 0,
        seconds: float = 0,
    ) -> None:
        parts = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._set(delay=positive_duration("FixedDelay", delay, parts))
        self._set(_text=f"FIXED_DELAY|{format_duration(self.delay)}")

    def next_after(self, t: datetime) -> datetime | None:
        try:
            return in_utc(t) + self.delay
        except OverflowError:
            return None

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        slot = None if floor is None else self.next_after(floor)
        return slot if slot is not None and slot < t else None

    def count_between(self, a: datetime, b: datetime) -> int:
        return sum(1 for _ in self.slots(a, b))

    def slots(self, a: datetime, b: datetime) -> Iterator[datetime]:
        slot = self.next_after(a)
        if slot is not None and slot <= b:
            yield slot

    def first_after(self, t: datetime) -> datetime | None:
        return in_utc(t)
