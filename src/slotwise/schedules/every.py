"""At a fixed rate."""

from __future__ import annotations

from datetime import datetime, timedelta

from slotwise.errors import InvalidSchedule, InvalidSetting
from slotwise.model.durations import format_duration, parse_duration
from slotwise.schedules.base import Schedule
from slotwise.schedules.instants import EPOCH, MICROSECOND, SECOND, floor_second, in_utc, instant_text
from slotwise.schedules.timeline import Grid, Line


class Every(Schedule):
    """A fixed rate: `Every("5m")`, `Every(minutes=5)` or a timedelta. A grid runs both ways from its anchor.

    Without an anchor the grid counts from 1970-01-01T00:00Z. Real time: changes of the clocks do not matter.
    Raises InvalidSchedule.
    """

    __slots__ = ("anchor", "interval")
    interval: timedelta
    anchor: datetime

    def __init__(
        self,
        interval: timedelta | str | None = None,
        *,
        anchor: datetime = EPOCH,
        days: int = 0,
        hours: int = 0,
        minutes: int = 0,
        seconds: float = 0,
    ) -> None:
        parts = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._set(interval=positive_duration("Every", interval, parts), anchor=in_utc(anchor))
        self._set(_text=f"EVERY|{format_duration(self.interval)}|{instant_text(self.anchor)}")

    def next_after(self, t: datetime) -> datetime | None:
        return self._slot(self._number(t) + 1)

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        slot = self._slot(self._number(t - MICROSECOND))
        return slot if slot is not None and (floor is None or slot > floor) else None

    def count_between(self, a: datetime, b: datetime) -> int:
        return max(0, self._number(b) - self._number(a))

    @property
    def line(self) -> Line:
        if self.interval % SECOND or (self.anchor - EPOCH) % SECOND:
            return super().line
        return Grid(floor_second(self.anchor), self.interval // SECOND)

    def _number(self, t: datetime) -> int:
        """The number on the grid of the newest slot at or before `t`."""
        return (t - self.anchor) // self.interval

    def _slot(self, number: int) -> datetime | None:
        try:
            return self.anchor + number * self.interval
        except OverflowError:
            return None


def positive_duration(kind: str, value: timedelta | str | None, parts: timedelta) -> timedelta:
    """The one duration that a constructor was given, as a value or in parts. Raises InvalidSchedule."""
    if (value is None) == (not parts):
        raise InvalidSchedule(f'{kind} takes one duration, as {kind}("5m") or {kind}(minutes=5)')
    try:
        duration = parse_duration(parts if value is None else value)
    except InvalidSetting as error:
        raise InvalidSchedule(f"{kind}: {error}") from None
    if not duration:
        raise InvalidSchedule(f"{kind}: {format_duration(duration)} is too short; it must be above zero")
    return duration
