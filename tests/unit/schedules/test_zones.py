"""Spans of constant offset: the ground on which local patterns are laid."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.records import from_micros, to_micros
from tests.kit.times import BEGINNING, DAY, END, SECOND, changes_between, span_at

from slotwise.spi import zone_named

ZONES = [
    "Europe/Vienna",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/Recife",
    "Asia/Gaza",
    "Africa/Casablanca",
]


def offset(zone: ZoneInfo, instant: int) -> int:
    found = from_micros(instant).astimezone(zone).utcoffset()
    assert found is not None
    return round(found.total_seconds() * SECOND)


@given(st.sampled_from(ZONES).map(ZoneInfo), st.integers(BEGINNING, END - 1))
def test_a_span_has_one_offset_and_knows_its_neighbours(
    zone: ZoneInfo, instant: int
) -> None:
    """At both ends and within, the offset is the span's; just outside, it is what the span
    says.
    """
    span = span_at(zone, instant)
    assert span.start <= instant < span.end
    for inside in (span.start, instant, (span.start + instant) // 2, span.end - 1):
        assert offset(zone, inside) == span.offset
    assert offset(zone, span.start - 1) == span.before
    assert offset(zone, span.end) == span.after


@given(st.sampled_from(ZONES).map(ZoneInfo), st.integers(0, 2**32 * SECOND))
def test_ends_are_changes_or_far_from_every_change(
    zone: ZoneInfo, instant: int
) -> None:
    """Where nothing changes at the end of a span, nothing changes for two days on either side."""
    span = span_at(zone, instant)
    for edge, outside in ((span.start, span.before), (span.end, span.after)):
        if outside == span.offset:
            hours = range(edge - 2 * DAY, edge + 2 * DAY, 3600 * SECOND)
            assert {offset(zone, hour) for hour in hours} == {span.offset}


def test_a_week_of_summer_is_not_missed() -> None:
    """The shortest span of the tz database since 1970: Recife, a week in October 2000."""
    zone, day = ZoneInfo("America/Recife"), datetime(2000, 10, 12, tzinfo=UTC)
    span = span_at(zone, to_micros(day))
    assert timedelta(microseconds=span.end - span.start) == timedelta(days=6, hours=23)


@pytest.mark.parametrize("name", ["UTC", "Etc/GMT+5"])
def test_a_zone_without_changes_is_one_span(name: str) -> None:
    """So that counting over decades is one step."""
    assert span_at(ZoneInfo(name), 0)[:2] == (BEGINNING, END)


@pytest.mark.parametrize(
    "name", ["Asia/Kathmandu", "Europe/Vienna", "Australia/Lord_Howe"]
)
def test_each_change_comes_once(name: str) -> None:
    """Also the one after which nothing changes for longer than a piece of a span."""
    starts = [
        span.start for span in changes_between(ZoneInfo(name), 0, 2**31 * SECOND)
    ]
    assert starts
    assert starts == sorted(set(starts))


def test_zones_are_taken_by_name() -> None:
    """A text, a ZoneInfo and the UTC of the standard library."""
    assert zone_named("Europe/Vienna") is zone_named(
        ZoneInfo.no_cache("Europe/Vienna")
    )
    assert zone_named(UTC) is ZoneInfo("UTC")
