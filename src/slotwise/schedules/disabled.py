"""Never."""

from __future__ import annotations

from datetime import datetime

from slotwise.schedules.base import Schedule


class Disabled(Schedule):
    """No slot at all: the job keeps its row and does not run. Its text is `-`."""

    __slots__ = ()

    def __init__(self) -> None:
        self._set(_text="-")

    def next_after(self, t: datetime) -> datetime | None:
        del t
        return None

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        del t, floor
        return None

    def count_between(self, a: datetime, b: datetime) -> int:
        del a, b
        return 0
