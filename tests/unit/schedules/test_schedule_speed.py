"""Schedules are fast: the steps of their code are counted."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import partial

import pytest
from tests.kit.times import zones
from tests.unit.schedules.work import within

from slotwise import (
    AnyOf,
    Calendar,
    Cron,
    Daily,
    Every,
    InvalidSchedule,
    Schedule,
    parse_schedule,
)
from slotwise.schedules.days import days_of

T = datetime(2026, 6, 1, 12, 0, 30, tzinfo=UTC)
DAY, YEAR = timedelta(days=1), timedelta(days=365)
SECONDS = Cron("* * * * * *", tz="Europe/Vienna")
CALENDAR = Calendar(
    name="CO",
    days=frozenset(
        date(year, month, 1 + month)
        for year in range(2024, 2031)
        for month in range(1, 13)
    ),
)
OFFICE = Cron("0 9 * * *", tz="Europe/Vienna")
COMMON = [
    Cron("*/5 * * * *"),
    Cron("0 2 * * *", tz="Europe/Vienna"),
    Cron("30 6 * * MON-FRI", tz="America/New_York"),
    Daily("02:00", "14:30", tz="Europe/Vienna"),
    Every("90s"),
    SECONDS,
    OFFICE.excluding(CALENDAR),
    OFFICE.excluding(CALENDAR, roll="modified_following"),
    OFFICE.last_business_day(CALENDAR),
    AnyOf(OFFICE, Every("90s"), SECONDS),
    OFFICE.between("2026-01-01T00:00Z", "2027-01-01T00:00Z"),
]
#: As many parts as there may be, in several zones and on grids.
UNIONS = (
    "ANY("
    + "; ".join(f"{number} {number % 24} * * {number % 7}" for number in range(32))
    + ")",
    "ANY(" + "; ".join(f"{number} {number % 24} * * *" for number in range(32)) + ")",
    "ANY(*/5 * * * *; CRON|7 9-12 * * *|Europe/Vienna; EVERY|7h)",
)
HOSTILE = (
    "0," * 127 + "0 * * * *",
    "*," * 119 + "* * 30 2 *",
    "(" * 60_000,
    "ANY(" * 9_000 + ")" * 9_000,
    "ANY(" + "-;" * 30_000 + "-)",
    "ANY(" + "0 0 30 2 *; " * 5_000 + "-)",
    "EXCLUDING(" + "x, " * 20_000 + ")",
    "EXCLUDING(0 9 * * *; CO@1[- " + "2026:" + "0101," * 12_000 + "]; skip)",
    "CRON|0 2 * * *|" + "Europe/" * 9_000,
    "DAILY|" + "02:00," * 10_000,
    "CRON|0 2 * * *|America/Argentina/ComodRivadaviaXComodRivadaviaXComodRiva",
    "0 0 30 2 *",
    "9" * 255 + " * * * *",
)


@pytest.mark.parametrize("schedule", COMMON, ids=str)
def test_the_next_slot_costs_microseconds(schedule: Schedule) -> None:
    """Some two hundred steps for common schedules, of which none walks through days."""
    schedule.next_after(T)
    assert within(1_000, lambda: schedule.next_after(T)) is not None


@pytest.mark.parametrize("gap", ["end", "shift"])
@pytest.mark.parametrize("ahead", [True, False], ids=["next", "latest"])
def test_the_sparsest_expression_costs_milliseconds_even_the_first_time(
    gap: str, ahead: bool
) -> None:
    """Between 29 February 2072, a Monday, and the next one lie forty years of a zone never looked
    at before.
    """
    before, after = datetime(2072, 3, 1, tzinfo=UTC), datetime(2112, 2, 28, tzinfo=UTC)
    schedule = Cron("0 2 29 2 MON", tz="Europe/Oslo", day_rule="and", gap=gap)  # type: ignore[arg-type]
    for cache in (zones._spans, zones._changes, days_of):
        cache.cache_clear()
    find = (
        partial(schedule.next_after, before)
        if ahead
        else partial(schedule.latest_before, after)
    )
    assert within(40_000, find) is not None  # counted: 10,500


def test_an_outage_of_a_year_of_seconds_is_counted_at_once() -> None:
    """31,536,000 slots, counted exactly, and the newest of them found."""
    assert (
        within(20_000, lambda: SECONDS.count_between(T - YEAR, T)) == 31_536_000
    )  # counted: 5,600
    assert (
        within(8_000, lambda: SECONDS.latest_before(T, floor=T - YEAR)) is not None
    )  # counted: 1,900


def test_combined_and_rolled_seconds_are_counted_in_milliseconds() -> None:
    """A year of seconds around a calendar is never walked through; a union of seconds is, and a
    day of it is quick.
    """
    skipping = SECONDS.excluding(CALENDAR)
    assert skipping.count_between(T - YEAR, T) == 31_536_000
    assert (
        0
        < within(20_000, lambda: skipping.running.count_between(T - YEAR, T))
        < 31_536_000
    )  # counted: 5,600
    dense = AnyOf(
        SECONDS, Every("7s"), OFFICE, Cron("*/2 * * * * *", tz="America/New_York")
    )
    assert within(2_000_000, lambda: dense.count_between(T - DAY, T)) == 86_400


@pytest.mark.parametrize("text", UNIONS, ids=lambda text: f"{text[:12]}-{len(text)}")
def test_unions_are_counted_at_once(text: str) -> None:
    """A year of as many parts as there may be."""
    schedule = parse_schedule(text)
    assert (
        within(2_000_000, lambda: schedule.count_between(T - YEAR, T)) > 0
    )  # counted: at most 620,000


def test_passed_over_slots_are_found_without_walking() -> None:
    """The first second of the next weekend, from a year of seconds."""
    skipping = SECONDS.excluding(CALENDAR)
    assert (
        within(30_000, lambda: skipping.skipped_after(T, T + YEAR)) is not None
    )  # counted: 6,700


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: f"{text[:12]}-{len(text)}")
def test_hostile_texts_are_refused_at_once(text: str) -> None:
    """However deep or long, a text is refused after some 100,000 steps at the most, and its
    message is short.
    """
    days_of.cache_clear()  # as if nobody had ever tried
    with pytest.raises(InvalidSchedule) as refusal:
        within(400_000, lambda: parse_schedule(text))
    assert len(str(refusal.value)) < 250


def test_a_century_of_fixed_times_is_counted_at_once() -> None:
    """All gap and fold rules applied, 200 changes of the clocks."""
    schedule = Cron("30 2 * * *", tz="Europe/Vienna", gap="shift", fold="both")
    assert schedule.count_between(T, T + 10 * YEAR) == 3650 + 10
    within(
        800_000, lambda: schedule.count_between(T, T + 100 * YEAR)
    )  # counted: 204,000


def test_looking_for_what_is_not_there_ends() -> None:
    """Before 1900 and after 8999 there are no slots, and nobody searches for long."""
    schedule = Cron("0 0 29 2 *", tz="Europe/Vienna")
    assert schedule.next_after(datetime(8997, 1, 1, tzinfo=UTC)) is None
    assert schedule.latest_before(datetime(1903, 1, 1, tzinfo=UTC)) is None
    assert schedule.next_after(datetime(1, 1, 1, tzinfo=UTC)) == datetime(
        1904, 2, 28, 23, tzinfo=UTC
    )
    assert schedule.latest_before(datetime(9999, 1, 1, tzinfo=UTC)) == datetime(
        8996, 2, 28, 23, tzinfo=UTC
    )
