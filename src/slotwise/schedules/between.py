"""A schedule within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.schedules.base import Schedule
from slotwise.schedules.business.business_days import Roll
from slotwise.schedules.business.calendar import Calendar
from slotwise.schedules.instants import MICROSECOND, an_instant, ceiling_second, instant_text
from slotwise.schedules.timeline import Line, Window
from slotwise.schedules.zones import BEGINNING, END

_EVER: Final = datetime.min.replace(tzinfo=UTC)


class Between(Schedule):
    """The slots of a schedule from `start` on and before `end`; made by `schedule.between(start, end)`.

    Calendars are applied within: the bounds hold for the slots as they come out of a roll.
    Raises InvalidSchedule, also where no slot lies within them that is to run.
    """

    __slots__ = ("_running", "end", "from_end", "schedule", "start")
    schedule: Schedule
    _running: Schedule
    start: datetime | None
    end: datetime | None

    def __init__(self, schedule: Schedule, start: datetime | str | None, end: datetime | str | None) -> None:
        start = None if start is None else an_instant(start)
        end = None if end is None else an_instant(end)
        bounds = [instant_text(bound) if bound else "-" for bound in (start, end)]
        if start is None and end is None:
            raise InvalidSchedule("between takes a start, an end or both")
        if start is not None and end is not None and start >= end:
            raise InvalidSchedule(f"between {bounds[0]} and {bounds[1]} there is nothing; the start comes first")
        self._set(schedule=schedule, start=start, end=end, from_end=schedule.from_end)
        self._set(_text=f"BETWEEN({schedule}; {bounds[0]}; {bounds[1]})")
        if not schedule.from_end and self._is_empty():
            told = [f"from {bounds[0]} on"] * bool(start) + [f"before {bounds[1]}"] * bool(end)
            raise InvalidSchedule(f"{schedule} has no slot {' and '.join(told)}; choose other bounds, or - for none")
        running = schedule.running
        self._set(_running=self if running is schedule else Between(running, start, end))

    def next_after(self, t: datetime) -> datetime | None:
        return self._within(self.schedule.next_after(self._opening(t)))

    def first_after(self, t: datetime) -> datetime | None:
        return self._within(self.schedule.first_after(self._opening(t)))

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        low = self.start - MICROSECOND if floor is None and self.start else floor and self._opening(floor)
        high = t if self.end is None else min(t, self.end)
        return self.schedule.latest_before(high, floor=low) if low is None or low < high else None

    def count_between(self, a: datetime, b: datetime) -> int:
        low, high = self._opening(a), b if self.end is None else min(b, self.end - MICROSECOND)
        return self.schedule.count_between(low, high) if low < high else 0

    @property
    def running(self) -> Schedule:
        return self._running

    @property
    def calendars(self) -> Mapping[str, Calendar | None]:
        return self.schedule.calendars

    def bind(self, name: str, calendars: Mapping[str, Calendar] | None = None) -> Schedule:
        return Between(self.schedule.bind(name, calendars), self.start, self.end)

    def excluding(self, *calendars: str | Calendar, roll: Roll = "skip") -> Schedule:
        return Between(self.schedule.excluding(*calendars, roll=roll), self.start, self.end)

    def nth_business_day(self, n: int, *calendars: str | Calendar) -> Schedule:
        return Between(self.schedule.nth_business_day(n, *calendars), self.start, self.end)

    @property
    def line(self) -> Line:
        start = BEGINNING if self.start is None else ceiling_second(self.start)
        return Window(self.schedule.line, start, END if self.end is None else ceiling_second(self.end))

    @property
    def local_zone(self) -> ZoneInfo | None:
        return self.schedule.local_zone

    def _is_empty(self) -> bool:
        """Whether it never fires. What lacks something to be asked is looked at once it is bound."""
        try:
            return self.next_after(_EVER) is None
        except InvalidSchedule:
            return False

    def _opening(self, t: datetime) -> datetime:
        """The instant after which the slots after `t` are to be looked for."""
        return t if self.start is None else max(t, self.start - MICROSECOND)

    def _within(self, slot: datetime | None) -> datetime | None:
        if slot is None or (self.end is not None and slot >= self.end):
            return None
        if self.start is None or slot >= self.start:
            return slot
        return self.start if self.from_end else None
