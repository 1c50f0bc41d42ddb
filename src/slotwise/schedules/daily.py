"""At named times of every day."""

from __future__ import annotations

import re
from datetime import time
from typing import Final
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.schedules.days import EVERY_DAY, days_of
from slotwise.schedules.local_time import LocalSchedule
from slotwise.schedules.times_of_day import ListedTimes
from slotwise.schedules.walker import Fold, Gap, LocalPattern
from slotwise.schedules.zones import zone_named

_TIME: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_MOST_TIMES: Final = 1440


class Daily(LocalSchedule):
    """At these local times of every day: `"02:00"`, `"02:00:30"` or `datetime.time`. Default zone UTC.

    In a night of clock change each fires once, by `gap` (`end`: right after it, `shift`: later by its length,
    `skip`: not at all) and `fold` (`first`, `second`, `both`). Raises InvalidSchedule.
    """

    __slots__ = ("times",)
    times: tuple[time, ...]

    def __init__(self, *times: str | time, tz: str | ZoneInfo = "UTC", gap: Gap = "end", fold: Fold = "first") -> None:
        if not 1 <= len(times) <= _MOST_TIMES:
            raise InvalidSchedule(f'Daily with {len(times)} times: 1–{_MOST_TIMES}, as Daily("02:00", "14:30")')
        listed = sorted({_time_of_day(value) for value in times})
        pattern = LocalPattern(days_of(EVERY_DAY), ListedTimes([_seconds(value) for value in listed]))
        self._prepare(pattern, zone_named(tz), gap, fold, fixed=True)
        text = ",".join(value.isoformat("seconds").removesuffix(":00") for value in listed)
        self._set(times=tuple(listed), _text=f"DAILY|{text}|{self.zone.key}{self._options()}")


def _time_of_day(value: str | time) -> time:
    if isinstance(value, str) and (match := _TIME.fullmatch(value.strip())):
        return time(int(match[1]), int(match[2]), int(match[3] or 0))
    if not isinstance(value, time):
        raise InvalidSchedule(f"time of day {value!r:.40}: 00:00–23:59, with seconds as 02:00:30")
    if value.tzinfo is not None or value.microsecond:
        raise InvalidSchedule(f"time of day {value!r}: whole seconds, and the zone goes into tz=")
    return value.replace(fold=0)


def _seconds(value: time) -> int:
    return value.hour * 3600 + value.minute * 60 + value.second
