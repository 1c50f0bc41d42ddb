"""Time zones: their names, and spans with one offset, in microseconds since 1970."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, timezone
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from slotwise.errors import InvalidSchedule
from slotwise.model.records import TICK, from_micros
from slotwise.schedules.base import BEGINNING, DAY, END

_LONGEST_NAME: Final = 64
_MACHINE_DEPENDENT: Final = frozenset({"localtime", "posixrules", "Factory"})
_CHUNK: Final = 45  # a chunk of the time line is 2**45 microseconds, about 407 days
_PROBE: Final = (
    2 * DAY
)  # the shortest span in the whole tz database is just under 7 days
_MARGIN: Final = 3 * DAY  # no change of offset is felt further away than two days


class Span(NamedTuple):
    """UTC from `start` to before `end` with one `offset`; `before` and `after` are its neighbours'
    offsets.
    """

    start: int
    end: int
    offset: int
    before: int
    after: int


def zone_named(tz: str | ZoneInfo | timezone) -> ZoneInfo:
    """Return the zone of an IANA name. Raise InvalidSchedule with near matches."""
    name = tz.key if isinstance(tz, ZoneInfo) else "UTC" if tz is UTC else tz
    if not isinstance(name, str) or (
        not name and name is not tz
    ):  # the text form has only the name
        raise InvalidSchedule(
            f'{tz!r:.60} is not a time zone with a name; write tz="Europe/Vienna" or a ZoneInfo'
        )
    if len(name) > _LONGEST_NAME:
        raise InvalidSchedule(
            f"a time zone name of {len(name)} characters ({name[:20]!r}…); names "
            "are like Europe/Vienna"
        )
    if name not in _MACHINE_DEPENDENT:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    raise InvalidSchedule(
        f"unknown time zone {name!r}{_near(name)}; names are like Europe/Vienna or UTC"
    )


def span_at(zone: ZoneInfo, instant: int) -> Span:
    """The span that holds an instant. A long one may come in pieces, cut well away from every
    change.
    """
    for span in _spans(zone, instant >> _CHUNK):
        if instant < span.end:
            return span
    raise AssertionError(f"no span of {zone.key} holds {instant}")


def changes_between(zone: ZoneInfo, low: int, high: int) -> Iterator[Span]:
    """The spans that begin with another offset than the one before, with `low <= start < high`."""
    span = span_at(zone, low)
    while span.start < high:
        if span.start >= low and span.offset != span.before:
            yield span
            low = (
                span.start + 1
            )  # the next piece of a long span may begin with the same change
        if span.end >= END:
            return
        span = span_at(zone, span.end)


def _near(name: str) -> str:
    known = {
        zone.lower(): zone
        for zone in sorted(available_timezones() - _MACHINE_DEPENDENT)
    }
    cities = {zone.rsplit("/", 1)[-1]: known[zone] for zone in known}
    near = [
        known[match]
        for match in difflib.get_close_matches(name.lower(), known, cutoff=0.75)
    ]
    near += [
        cities[match]
        for match in difflib.get_close_matches(name.lower(), cities, cutoff=0.8)
    ]
    return f" (did you mean {' or '.join(dict.fromkeys(near[:3]))}?)" if near else ""


@lru_cache(maxsize=8192)
def _spans(zone: ZoneInfo, chunk: int) -> tuple[Span, ...]:
    """The spans that meet a chunk, in order; each begins and ends at a change, or well outside the
    chunk.
    """
    fixed = zone.utcoffset(None)
    if fixed is not None:
        offset = fixed // TICK
        return (Span(BEGINNING, END, offset, offset, offset),)
    changes = [
        change
        for near in (chunk - 1, chunk, chunk + 1)
        for change in _changes(zone, near)
    ]
    start = (chunk - 1 << _CHUNK) + _MARGIN
    end = (chunk + 2 << _CHUNK) - _MARGIN
    return tuple(
        Span(
            low,
            high,
            _offset(zone, low),
            before=_offset(zone, low - 1),
            after=_offset(zone, high),
        )
        for low, high in pairwise([start, *changes, end])
        if low < high and high > chunk << _CHUNK and low < chunk + 1 << _CHUNK
    )


@lru_cache(maxsize=8192)
def _changes(zone: ZoneInfo, chunk: int) -> tuple[int, ...]:
    probes = [
        *range(chunk << _CHUNK, chunk + 1 << _CHUNK, _PROBE),
        chunk + 1 << _CHUNK,
    ]
    offsets = [_offset(zone, probe) for probe in probes]
    found = zip(pairwise(probes), pairwise(offsets), strict=True)
    return tuple(
        low
        + bisect_left(
            range(low, high), True, key=lambda instant: _offset(zone, instant) != old
        )
        for (low, high), (old, new) in found
        if old != new
    )


def _offset(zone: ZoneInfo, instant: int) -> int:
    offset = from_micros(instant).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // TICK
