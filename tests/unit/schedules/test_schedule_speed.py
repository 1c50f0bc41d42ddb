"""Schedules are fast: bounds some times above what was measured, so that only a change of kind breaks them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from time import process_time

import pytest

from slotwise.cli.speed import HOSTILE, readings
from slotwise.errors import InvalidSchedule
from slotwise.schedules import AnyOf, Calendar, Cron, Daily, Every, Schedule, parse_schedule
from slotwise.schedules import zones as zones_module

T = datetime(2026, 6, 1, 12, 0, 30, tzinfo=UTC)
YEAR = timedelta(days=365)
SECONDS = Cron("* * * * * *", tz="Europe/Vienna")
CALENDAR = Calendar(
    name="CO", days=frozenset(date(year, month, 1 + month) for year in range(2024, 2031) for month in range(1, 13))
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


def fastest(call: Callable[[], object], *, repeat: int = 20, times: int = 100) -> timedelta:
    """The least time of one call: what the code costs when the machine does nothing else."""
    seconds = []
    for _ in range(repeat):
        started = process_time()
        for _ in range(times):
            call()
        seconds.append(process_time() - started)
    return timedelta(seconds=min(seconds) / times)


@pytest.mark.parametrize("schedule", COMMON, ids=str)
def test_the_next_slot_costs_microseconds(schedule: Schedule) -> None:
    """At most 50 µs for common schedules (measured: 5 µs)."""
    assert fastest(lambda: schedule.next_after(T)) < timedelta(microseconds=50)


@pytest.mark.parametrize("gap", ["end", "shift"])
@pytest.mark.parametrize("ahead", [True, False], ids=["next", "latest"])
def test_the_sparsest_expression_costs_milliseconds_even_the_first_time(gap: str, ahead: bool) -> None:
    """Between 29 February 2072, a Monday, and the next one lie forty years of a zone never looked at before."""
    zones = iter(["Europe/Oslo", "Europe/Rome", "Europe/Riga", "Europe/Kyiv", "Europe/Sofia"])
    before, after = datetime(2072, 3, 1, tzinfo=UTC), datetime(2112, 2, 28, tzinfo=UTC)

    def find() -> None:
        schedule = Cron("0 2 29 2 MON", tz=next(zones), day_rule="and", gap=gap)  # type: ignore[arg-type]
        slot = schedule.next_after(before) if ahead else schedule.latest_before(after)
        assert slot is not None

    zones_module._spans.cache_clear()
    zones_module._changes.cache_clear()
    assert fastest(find, repeat=5, times=1) < timedelta(milliseconds=3)


def test_an_outage_of_a_year_of_seconds_is_counted_at_once() -> None:
    """31,536,000 slots, counted exactly, and the newest of them found (measured: 20 µs)."""
    assert SECONDS.count_between(T - YEAR, T) == 31_536_000
    assert fastest(lambda: SECONDS.count_between(T - YEAR, T)) < timedelta(milliseconds=2)
    assert fastest(lambda: SECONDS.latest_before(T, floor=T - YEAR)) < timedelta(milliseconds=2)


def test_combined_and_rolled_seconds_are_counted_in_milliseconds() -> None:
    """A year of seconds: around a calendar (measured: 15 µs), and laid over others (measured: 2 ms)."""
    skipping = SECONDS.excluding(CALENDAR)
    assert skipping.count_between(T - YEAR, T) == 31_536_000
    assert 0 < skipping.running.count_between(T - YEAR, T) < 31_536_000
    assert fastest(lambda: skipping.running.count_between(T - YEAR, T)) < timedelta(milliseconds=2)
    dense = AnyOf(SECONDS, Every("7s"), OFFICE)
    assert dense.count_between(T - YEAR, T) == 31_536_000
    assert fastest(lambda: dense.count_between(T - YEAR, T), repeat=3, times=1) < timedelta(milliseconds=20)


def test_passed_over_slots_are_found_without_walking() -> None:
    """The first second of the next weekend, from a year of seconds (measured: 0.4 ms)."""
    skipping = SECONDS.excluding(CALENDAR)
    assert fastest(lambda: skipping.skipped_after(T, T + YEAR), times=3) < timedelta(milliseconds=20)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: f"{text[:12]}-{len(text)}")
def test_hostile_texts_are_refused_at_once(text: str) -> None:
    """However deep or long, a text costs at most 5 ms, and its message is short."""
    with pytest.raises(InvalidSchedule) as refusal:
        parse_schedule(text)
    assert len(str(refusal.value)) < 250

    def refused() -> None:
        with pytest.raises(InvalidSchedule):
            parse_schedule(text)

    assert fastest(refused, repeat=5, times=1) < timedelta(milliseconds=5)


def test_the_command_keeps_what_is_promised() -> None:
    """`slotwise schedule speed` measures next slots, counts, rare ones and refusals; none is beyond its limit."""
    found = [one for one in readings() if one.took > one.limit]
    again = {one.schedule: one for one in readings()} if found else {}
    assert [one for one in found if again[one.schedule].took > one.limit] == []


def test_a_century_of_fixed_times_is_counted_at_once() -> None:
    """All gap and fold rules applied, 200 changes of the clocks."""
    schedule = Cron("30 2 * * *", tz="Europe/Vienna", gap="shift", fold="both")
    assert schedule.count_between(T, T + 10 * YEAR) == 3650 + 10
    assert fastest(lambda: schedule.count_between(T, T + 100 * YEAR), times=1) < timedelta(milliseconds=50)


def test_looking_for_what_is_not_there_ends() -> None:
    """Before 1900 and after 8999 there are no slots, and nobody searches for long."""
    schedule = Cron("0 0 29 2 *", tz="Europe/Vienna")
    assert schedule.next_after(datetime(8997, 1, 1, tzinfo=UTC)) is None
    assert schedule.latest_before(datetime(1903, 1, 1, tzinfo=UTC)) is None
    assert schedule.next_after(datetime(1, 1, 1, tzinfo=UTC)) == datetime(1904, 2, 28, 23, tzinfo=UTC)
    assert schedule.latest_before(datetime(9999, 1, 1, tzinfo=UTC)) == datetime(8996, 2, 28, 23, tzinfo=UTC)
