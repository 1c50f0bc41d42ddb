"""Schedules in local time: Daily, what it shares with Cron, and the walker that finds their slots.

Within a span of constant offset, local time and real time run alike, so finding and counting are
arithmetic on ranks. The gap and fold rules add or remove slots at the ends of a span only. Local
instants count as if the clock showed UTC.
"""

from __future__ import annotations

import re
from abc import ABC
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from difflib import get_close_matches
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.model.records import to_micros
from slotwise.schedules.base import DAY, SECOND, Schedule, Unbound
from slotwise.schedules.calendars import Arrangement, Calendar
from slotwise.schedules.days import EVERY_DAY, Days, days_of
from slotwise.schedules.words import listed, time_text
from slotwise.schedules.zones import Span, span_at, zone_named

Gap = Literal["end", "shift", "skip"]
Fold = Literal["first", "second", "both"]

HORIZON: Final = 100 * 366 * DAY
"""The rarest date, 29 February on a given weekday, comes back within 40 years."""


class LocalPattern:
    """Times of day (sorted, since midnight) on certain days; `rank` counts those before a local
    time.
    """

    def __init__(self, days: Days, times: Iterable[int]) -> None:
        self.days = days
        self.times = array("q", times)

    def rank(self, local: int) -> int:
        day, time = divmod(local, DAY)
        days_before = self.days.rank(day)
        rank = days_before * len(self.times)
        return (
            rank + bisect_left(self.times, time)
            if self.days.rank(day + 1) > days_before
            else rank
        )

    def at(self, rank: int) -> int:
        day, time = divmod(rank, len(self.times))
        return self.days.at(day) * DAY + self.times[time]

    def between(self, low: int, high: int) -> range:
        """The ranks of the local times with `low <= local < high`."""
        return range(self.rank(low), self.rank(high))

    def within(self, low: int, high: int) -> list[int]:
        """The local times with `low <= local < high`."""
        days = self.days.within(low // DAY, (high - 1) // DAY)
        found = [day * DAY + time for day in days for time in self.times]
        return found[bisect_left(found, low) : bisect_left(found, high)]


@dataclass(frozen=True, slots=True)
class Walk:
    """A local pattern in a zone.

    `fixed` patterns fire once whatever the clocks do, by the gap and fold rules. The others follow
    real time.
    """

    pattern: LocalPattern
    zone: ZoneInfo
    fixed: bool
    gap: Gap
    fold: Fold

    def on(self, days: Days) -> Walk:
        """The same times, zone and rules on other days."""
        return replace(self, pattern=LocalPattern(days, self.pattern.times))

    def first(self, low: int, high: int) -> int | None:
        high = min(high, low + HORIZON)
        while low < high:
            span = span_at(self.zone, low)
            found = min(self._ends(span, low, span.end, 0), default=None)
            if found is not None:
                return found if found < high else None
            # Offsets and gap rules shift a slot by at most three days.
            low = max(
                span.end, self.pattern.at(self.pattern.rank(span.end - DAY)) - 3 * DAY
            )
        return None

    def last(self, low: int, high: int) -> int | None:
        low = max(low, high - HORIZON)
        while low < high:
            span = span_at(self.zone, high - 1)
            found = max(self._ends(span, span.start, high, -1), default=None)
            if found is not None:
                return found if found >= low else None
            high = min(
                span.start,
                self.pattern.at(self.pattern.rank(span.start + DAY) - 1) + DAY + 1,
            )
        return None

    def count(self, low: int, high: int) -> int:
        return sum(
            len(self._ranks(*piece)) + len(self._moved(*piece))
            for piece in self._pieces(low, high)
        )

    def within(self, low: int, high: int) -> list[int]:
        found: list[int] = []
        for span, begin, end in self._pieces(low, high):
            found += [
                local - span.offset
                for local in self.pattern.within(*self._own(span, begin, end))
            ]
            found += self._moved(span, begin, end)
        return found

    def _pieces(self, low: int, high: int) -> Iterator[tuple[Span, int, int]]:
        """The spans from `low` up to before `high`, each with the part of it that lies within."""
        while low < high:
            span = span_at(self.zone, low)
            yield span, low, min(high, span.end)
            low = span.end

    def swallowed(self, span: Span) -> list[int]:
        """The local times that the gap before a span swallows, if the pattern is fixed."""
        ranks = self.pattern.between(
            span.start + span.before, span.start + span.offset
        )
        return [self.pattern.at(rank) for rank in ranks] if self.fixed else []

    def moved_to(self, slot: int) -> list[int]:
        """The local times that do not exist and have this slot instead."""
        span = span_at(self.zone, slot)
        if self.gap == "end":
            return self.swallowed(span) if slot == span.start else []
        return [
            local
            for local in self.swallowed(span)
            if self.gap == "shift" and local - span.before == slot
        ]

    def _ends(self, span: Span, low: int, high: int, end: int) -> list[int]:
        """The first (0) or the last (-1) slot in a part of a span, of those that are moved and of
        the others.
        """
        ranks = self._ranks(span, low, high)
        moved = self._moved(span, low, high)
        found = [self.pattern.at(ranks[end]) - span.offset] if ranks else []
        return [*found, moved[end]] if moved else found

    def _ranks(self, span: Span, low: int, high: int) -> range:
        """The ranks of the local times that fire at their own time within the span."""
        return self.pattern.between(*self._own(span, low, high))

    def _own(self, span: Span, low: int, high: int) -> tuple[int, int]:
        """The local times, from the first up to before the second, that fire at their own time
        within the span.
        """
        low = max(low, span.start)
        high = min(high, span.end)
        if (
            self.fixed and self.fold == "first"
        ):  # the span's beginning may repeat local times of the one before
            low = max(low, span.start + span.before - span.offset)
        if (
            self.fixed and self.fold == "second"
        ):  # its end may be repeated by the one after
            high = min(high, span.end - (span.offset - span.after))
        return low + span.offset, max(low, high) + span.offset

    def _moved(self, span: Span, low: int, high: int) -> list[int]:
        """The slots that the gap before the span swallowed and the gap rule puts where no other
        is.
        """
        width = span.offset - span.before
        if (
            not self.fixed
            or self.gap == "skip"
            or width <= 0
            or low >= span.start + width
        ):
            return []
        swallowed = self.swallowed(span)
        if self.gap == "end":
            moved = [span.start] if swallowed else []
        else:
            moved = [local - span.before for local in swallowed]
        return [
            slot
            for slot in moved
            if low <= slot < high and not self._ranks(span, slot, slot + 1)
        ]


_SAMPLE_START: Final = to_micros(datetime(2024, 1, 1, tzinfo=UTC))
_SAMPLE_END: Final = (
    _SAMPLE_START + 40 * 366 * DAY
)  # in which even 29 February meets every weekday


class LocalSchedule(Schedule, ABC):
    """Slots at whole seconds of a zone's local time.

    `gap` and `fold` say what becomes of fixed times when clocks change. Slots lie in the years
    1900 to 8999.
    """

    __slots__ = ("fixed", "fold", "gap", "zone")
    zone: ZoneInfo
    gap: Gap
    fold: Fold
    fixed: bool
    line: Walk | Unbound
    combines = True

    @property
    def local_zone(self) -> ZoneInfo | None:
        return self.zone

    def _arranged(
        self, how: Arrangement, calendars: Sequence[Calendar | str]
    ) -> Schedule:
        from slotwise.schedules.combinators import Arranged

        return Arranged(self, how, calendars)

    def _prepare(
        self,
        pattern: LocalPattern | Unbound,
        zone: ZoneInfo,
        gap: Gap,
        fold: Fold,
        *,
        fixed: bool,
    ) -> None:
        """Fill a new instance. Raises InvalidSchedule if a rule is unknown or no slot can ever
        come.
        """
        one_of("gap", gap, Gap)
        one_of("fold", fold, Fold)
        line = (
            pattern
            if isinstance(pattern, Unbound)
            else Walk(pattern, zone, fixed, gap, fold)
        )
        self._set(zone=zone, gap=gap, fold=fold, fixed=fixed, line=line)
        if (
            isinstance(line, Walk)
            and gap == "skip"
            and line.first(_SAMPLE_START, _SAMPLE_END) is None
        ):
            raise InvalidSchedule(
                f'never fires: its times never exist in {zone.key}; use gap="end" or "shift"'
            )

    def _by_clocks(self, words: str) -> list[str]:
        """The sentence of these words, and one about changes of the clocks where there are any."""
        first = f"{words}, by the clocks of {self.zone.key}."
        if self.zone.utcoffset(None) is not None:
            return [first]
        if not self.fixed:
            return [
                first,
                "When clocks change, real time continues: it fires in both passes of a "
                "repeated hour, and not in an hour that does not exist.",
            ]
        return [
            first,
            f"When clocks change, a time that does not exist {_GAP[self.gap]}, and "
            f"one that exists twice {_FOLD[self.fold]}.",
        ]

    def _options(self) -> str:
        given = (("gap", self.gap, "end"), ("fold", self.fold, "first"))
        return "".join(
            f"|{name}={value}" for name, value, default in given if value != default
        )


_GAP: Final = {
    "end": "comes right after the gap",
    "shift": "comes later by the length of the gap",
    "skip": "does not come",
}
_FOLD: Final = {
    "first": "comes the first time",
    "second": "comes the second time",
    "both": "comes both times",
}


def one_of(name: str, value: object, choice: object) -> None:
    """Raise InvalidSchedule unless the value is one of a Literal's."""
    allowed = get_args(choice)
    if value not in allowed:
        near = get_close_matches(str(value)[:20], allowed, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InvalidSchedule(
            f"{name} {value!r:.40}: one of {', '.join(allowed)}{hint}"
        )


def since_midnight(hour: int, minute: int, second: int) -> int:
    """A time of day as a local pattern has it."""
    return ((hour * 60 + minute) * 60 + second) * SECOND


_TIME: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_MOST_TIMES: Final = 1440


class Daily(LocalSchedule):
    """At these local times of every day: `"02:00"`, `"02:00:30"` or `datetime.time`. Default zone
    UTC.

    In a night of clock change each fires once, by `gap` (`end`: right after it, `shift`: later by
    its length, `skip`: not at all) and `fold` (`first`, `second`, `both`). Raises InvalidSchedule.
    """

    __slots__ = ("times",)
    times: tuple[time, ...]

    def __init__(
        self,
        *times: str | time,
        tz: str | ZoneInfo = "UTC",
        gap: Gap = "end",
        fold: Fold = "first",
    ) -> None:
        if not 1 <= len(times) <= _MOST_TIMES:
            raise InvalidSchedule(
                f'Daily with {len(times)} times: 1–{_MOST_TIMES}, as Daily("02:00", "14:30")'
            )
        found = sorted({_time_of_day(value) for value in times})
        pattern = LocalPattern(
            days_of(EVERY_DAY),
            [since_midnight(one.hour, one.minute, one.second) for one in found],
        )
        self._prepare(pattern, zone_named(tz), gap, fold, fixed=True)
        text = ",".join(map(time_text, found))
        self._set(
            times=tuple(found), _text=f"DAILY|{text}|{self.zone.key}{self._options()}"
        )

    def in_words(self) -> str:
        return f"{', '.join(map(time_text, self.times))} {self.zone.key}"

    def sentences(self) -> list[str]:
        times = listed([time_text(one) for one in self.times])
        return self._by_clocks(f"At {times} every day")


def _time_of_day(value: str | time) -> time:
    if isinstance(value, str) and (match := _TIME.fullmatch(value.strip())):
        return time(int(match[1]), int(match[2]), int(match[3] or 0))
    if not isinstance(value, time):
        raise InvalidSchedule(
            f"a time of day must be 00:00–23:59, with seconds as 02:00:30, got {value!r:.40}"
        )
    if value.tzinfo is not None or value.microsecond:
        raise InvalidSchedule(
            f"time of day {value!r}: whole seconds, and the zone goes into tz="
        )
    return value.replace(fold=0)
