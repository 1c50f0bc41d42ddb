"""At one instant."""

from __future__ import annotations

from datetime import datetime

from slotwise.schedules.base import Schedule
from slotwise.schedules.instants import EPOCH, SECOND, an_instant, floor_second, instant_text
from slotwise.schedules.timeline import Grid, Line, Window
from slotwise.schedules.zones import DAY


class Once(Schedule):
    """One slot: an aware datetime, or its ISO 8601 text with an offset.

    A job that is planned for the first time after that instant runs at once, unless the ledger knows the slot.
    Raises InvalidSchedule.
    """

    __slots__ = ("at",)
    at: datetime

    def __init__(self, at: datetime | str) -> None:
        self._set(at=an_instant(at))
        self._set(_text=f"ONCE|{instant_text(self.at)}")

    def next_after(self, t: datetime) -> datetime | None:
        return self.at if self.at > t else None

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        return self.at if self.at < t and (floor is None or self.at > floor) else None

    def count_between(self, a: datetime, b: datetime) -> int:
        return int(a < self.at <= b)

    def first_after(self, t: datetime) -> datetime | None:
        del t
        return self.at

    @property
    def line(self) -> Line:
        if (self.at - EPOCH) % SECOND:
            return super().line
        at = floor_second(self.at)
        return Window(Grid(at, DAY), at, at + 1)
