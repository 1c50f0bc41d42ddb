"""The basic schedules: Daily, Every, FixedDelay, Once, Disabled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule, located
from slotwise.model.durations import format_duration, parse_duration
from slotwise.schedules.base import EPOCH, MICROSECOND, SECOND, Schedule, an_instant, floor_second, in_utc, instant_text
from slotwise.schedules.days import EVERY_DAY, days_of
from slotwise.schedules.local_time import Fold, Gap, LocalPattern, LocalSchedule
from slotwise.schedules.timeline import DAY, Grid, Line, Window, zone_named

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
        pattern = LocalPattern(days_of(EVERY_DAY), map(_seconds, listed))
        self._prepare(pattern, zone_named(tz), gap, fold, fixed=True)
        text = ",".join(value.isoformat("seconds").removesuffix(":00") for value in listed)
        self._set(times=tuple(listed), _text=f"DAILY|{text}|{self.zone.key}{self._options()}")


def _time_of_day(value: str | time) -> time:
    if isinstance(value, str) and (match := _TIME.fullmatch(value.strip())):
        return time(int(match[1]), int(match[2]), int(match[3] or 0))
    if not isinstance(value, time):
        raise InvalidSchedule(f"a time of day must be 00:00–23:59, with seconds as 02:00:30, got {value!r:.40}")
    if value.tzinfo is not None or value.microsecond:
        raise InvalidSchedule(f"time of day {value!r}: whole seconds, and the zone goes into tz=")
    return value.replace(fold=0)


def _seconds(value: time) -> int:
    return value.hour * 3600 + value.minute * 60 + value.second


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
    with located(kind, InvalidSchedule):
        duration = parse_duration(parts if value is None else value)
    if not duration:
        raise InvalidSchedule(f"{kind}: {format_duration(duration)} is too short; it must be above zero")
    return duration


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
        return self.at

    @property
    def line(self) -> Line:
        if (self.at - EPOCH) % SECOND:
            return super().line
        at = floor_second(self.at)
        return Window(Grid(at, DAY), at, at + 1)


class Disabled(Schedule):
    """No slot at all: the job keeps its row and does not run. Its text is `-`."""

    __slots__ = ()

    def __init__(self) -> None:
        self._set(_text="-")

    def next_after(self, t: datetime) -> datetime | None:
        return None

    def latest_before(self, t: datetime, *, floor: datetime | None = None) -> datetime | None:
        return None

    def count_between(self, a: datetime, b: datetime) -> int:
        return 0
