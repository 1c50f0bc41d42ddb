"""A schedule whose runs are due a fixed while after their slots: what keeps a thousand jobs off midnight."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule, InvalidSetting
from slotwise.model.durations import format_duration, parse_duration
from slotwise.schedules.base import Schedule
from slotwise.schedules.business.calendar import Calendar
from slotwise.schedules.instants import MICROSECOND

_MILLISECOND = timedelta(milliseconds=1)


class Spread(Schedule):
    """The slots of a schedule, each due `by` later; made by `spread_out`. The slots are those of the schedule.

    Raises InvalidSchedule for a schedule that is defined by the end of its runs, and for nothing to wait.
    """

    __slots__ = ("by", "schedule")
    schedule: Schedule
    by: timedelta

    def __init__(self, schedule: Schedule, by: timedelta | str) -> None:
        try:
            by = parse_duration(by)
        except InvalidSetting as error:
            raise InvalidSchedule(f"{schedule} spread by: {error}") from None
        if schedule.from_end:
            raise InvalidSchedule(f"{schedule} starts after the end of a run; there is nothing to spread")
        if by < MICROSECOND:
            raise InvalidSchedule(f"{schedule} spread by {format_duration(by)}; more than zero is needed")
        self._set(schedule=schedule, by=by, _text=f"SPREAD({schedule}; {format_duration(by)})")

    def wait(self, slot: datetime) -> timedelta:
        return self.by

    def next_after(self, t: datetime) -> datetime | None:
        return self.schedule.next_after(t)

    def first_after(self, t: datetime) -> datetime | None:
        return self.schedule.first_after(t)

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        return self.schedule.latest_before(t, floor=floor)

    def count_between(self, a: datetime, b: datetime) -> int:
        return self.schedule.count_between(a, b)

    def slots(self, a: datetime, b: datetime) -> Iterator[datetime]:
        return self.schedule.slots(a, b)

    @property
    def running(self) -> Schedule:
        running = self.schedule.running
        return self if running is self.schedule else Spread(running, self.by)

    @property
    def calendars(self) -> Mapping[str, Calendar | None]:
        return self.schedule.calendars

    def bind(self, name: str, calendars: Mapping[str, Calendar] | None = None) -> Schedule:
        return Spread(self.schedule.bind(name, calendars), self.by)

    @property
    def local_zone(self) -> ZoneInfo | None:
        return self.schedule.local_zone


def spread_out(schedule: Schedule, name: str, limit: timedelta) -> Schedule:
    """The schedule, each run due later by less than `limit`: how much is the name's own, everywhere and always."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    by = number % max(limit // _MILLISECOND, 1) * _MILLISECOND
    return Spread(schedule, by) if by else schedule
