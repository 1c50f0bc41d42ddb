"""Schedules that name local times in a zone: what Cron and Daily have in common."""

from __future__ import annotations

from abc import ABC
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, get_args
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.schedules.base import Schedule
from slotwise.schedules.instants import EPOCH, SECOND
from slotwise.schedules.walk import Fold, Gap, LocalPattern, Walk
from slotwise.schedules.zones import BEGINNING, DAY

_SAMPLE_START: Final = (datetime(2024, 1, 1, tzinfo=UTC) - EPOCH) // SECOND
_SAMPLE_END: Final = _SAMPLE_START + 40 * 366 * DAY  # in which even 29 February meets every weekday


class LocalSchedule(Schedule, ABC):
    """Slots at whole seconds of a zone's local time.

    `gap` and `fold` say what becomes of fixed times when clocks change. Slots lie in the years 1900 to 8999.
    """

    __slots__ = ("_walk", "fold", "gap", "zone")
    zone: ZoneInfo
    gap: Gap
    fold: Fold
    _walk: Walk

    def next_after(self, t: datetime) -> datetime | None:
        return _instant(self._walk.first(_floor(t) + 1))

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        low = BEGINNING if floor is None else _floor(floor) + 1
        return _instant(self._walk.last(low, _ceiling(t)))

    def count_between(self, a: datetime, b: datetime) -> int:
        return self._walk.count(_floor(a) + 1, _floor(b) + 1)

    def _prepare(self, pattern: LocalPattern, zone: ZoneInfo, gap: Gap, fold: Fold, *, fixed: bool) -> None:
        """Fill a new instance. Raises InvalidSchedule if a rule is unknown or no slot can ever come."""
        one_of("gap", gap, Gap)
        one_of("fold", fold, Fold)
        walk = Walk(pattern, zone, fixed, gap, fold)
        self._set(zone=zone, gap=gap, fold=fold, _walk=walk)
        if gap == "skip" and walk.first(_SAMPLE_START, _SAMPLE_END) is None:
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


def _floor(t: datetime) -> int:
    return (t - EPOCH) // SECOND


def _ceiling(t: datetime) -> int:
    return -((EPOCH - t) // SECOND)


def _instant(seconds: int | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)
