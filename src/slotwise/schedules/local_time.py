"""Schedules that name local times in a zone: what Cron and Daily have in common."""

from __future__ import annotations

from abc import ABC
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, get_args
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.schedules.base import Schedule
from slotwise.schedules.business.business_days import Roll
from slotwise.schedules.business.calendar import Calendar
from slotwise.schedules.instants import EPOCH, SECOND
from slotwise.schedules.timeline import LineSchedule, Unbound
from slotwise.schedules.walker import Fold, Gap, LocalPattern, Walk
from slotwise.schedules.zones import DAY

_SAMPLE_START: Final = (datetime(2024, 1, 1, tzinfo=UTC) - EPOCH) // SECOND
_SAMPLE_END: Final = _SAMPLE_START + 40 * 366 * DAY  # in which even 29 February meets every weekday


class LocalSchedule(LineSchedule, ABC):
    """Slots at whole seconds of a zone's local time.

    `gap` and `fold` say what becomes of fixed times when clocks change. Slots lie in the years 1900 to 8999.
    """

    __slots__ = ("fixed", "fold", "gap", "zone")
    zone: ZoneInfo
    gap: Gap
    fold: Fold
    fixed: bool
    _line: Walk | Unbound

    @property
    def local_zone(self) -> ZoneInfo | None:
        return self.zone

    @property
    def walk(self) -> Walk | Unbound:
        """Its line, in which days can be told from times of day."""
        return self._line

    def excluding(self, *calendars: str | Calendar, roll: Roll = "skip") -> Schedule:
        from slotwise.schedules.business.arranged import Excluding

        return Excluding(self, calendars, roll)

    def nth_business_day(self, n: int, *calendars: str | Calendar) -> Schedule:
        from slotwise.schedules.business.arranged import BusinessDay

        return BusinessDay(self, n, calendars)

    def _prepare(self, pattern: LocalPattern | Unbound, zone: ZoneInfo, gap: Gap, fold: Fold, *, fixed: bool) -> None:
        """Fill a new instance. Raises InvalidSchedule if a rule is unknown or no slot can ever come."""
        one_of("gap", gap, Gap)
        one_of("fold", fold, Fold)
        line = pattern if isinstance(pattern, Unbound) else Walk(pattern, zone, fixed, gap, fold)
        self._set(zone=zone, gap=gap, fold=fold, fixed=fixed, _line=line)
        if isinstance(line, Walk) and gap == "skip" and line.first(_SAMPLE_START, _SAMPLE_END) is None:
            raise InvalidSchedule(f'never fires: its times never exist in {zone.key}; use gap="end" or "shift"')

    def _options(self) -> str:
        """What the text form adds for rules that are not the default."""
        given = (("gap", self.gap, "end"), ("fold", self.fold, "first"))
        return "".join(f"|{name}={value}" for name, value, default in given if value != default)


def one_of(name: str, value: object, choice: Any) -> None:
    """Raise InvalidSchedule unless the value is one of a Literal's."""
    allowed = get_args(choice)
    if value not in allowed:
        near = get_close_matches(str(value)[:20], allowed, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InvalidSchedule(f"{name} {value!r:.40}: one of {', '.join(allowed)}{hint}")
