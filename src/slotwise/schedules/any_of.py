"""Several schedules as one."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.schedules.base import Schedule
from slotwise.schedules.business.business_days import Roll
from slotwise.schedules.business.calendar import Calendar
from slotwise.schedules.timeline import LineSchedule, Union

MOST_PARTS = 32


class AnyOf(LineSchedule):
    """The slots of all these schedules; those that coincide are one. Up to 32, with slots at whole seconds.

    A slot runs if it is to run by any of them. Raises InvalidSchedule.
    """

    __slots__ = ("schedules",)
    schedules: tuple[Schedule, ...]

    def __init__(self, *schedules: Schedule) -> None:
        for schedule in schedules:
            if not isinstance(schedule, Schedule):
                raise InvalidSchedule(f"AnyOf takes schedules, not {schedule!r:.60}")
        parts = tuple(dict.fromkeys(part for schedule in schedules for part in _parts(schedule)))
        if not 1 <= len(parts) <= MOST_PARTS:
            raise InvalidSchedule(f"AnyOf of {len(parts)} schedules: 1–{MOST_PARTS}")
        self._set(schedules=parts, _line=Union(tuple(part.line for part in parts)))
        self._set(_text=f"ANY({'; '.join(map(str, parts))})")

    @property
    def running(self) -> Schedule:
        running = tuple(part.running for part in self.schedules)
        return self if running == self.schedules else AnyOf(*running)

    @property
    def calendars(self) -> Mapping[str, Calendar | None]:
        return {name: found for part in self.schedules for name, found in part.calendars.items()}

    def bind(self, name: str, calendars: Mapping[str, Calendar] | None = None) -> Schedule:
        return AnyOf(*(part.bind(name, calendars) for part in self.schedules))

    def excluding(self, *calendars: str | Calendar, roll: Roll = "skip") -> Schedule:
        return AnyOf(*(part.excluding(*calendars, roll=roll) for part in self.schedules))

    def nth_business_day(self, n: int, *calendars: str | Calendar) -> Schedule:
        return AnyOf(*(part.nth_business_day(n, *calendars) for part in self.schedules))

    @property
    def local_zone(self) -> ZoneInfo | None:
        zones = {part.local_zone for part in self.schedules}
        return zones.pop() if len(zones) == 1 else None


def _parts(schedule: Schedule) -> tuple[Schedule, ...]:
    return schedule.schedules if isinstance(schedule, AnyOf) else (schedule,)
