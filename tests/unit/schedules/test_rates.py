"""Fixed rate, fixed delay, times of day, and never."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, timezone

import pytest

from slotwise import (
    AnyOf,
    Cron,
    Daily,
    Disabled,
    Every,
    FixedDelay,
    InvalidSchedule,
    Once,
    Schedule,
)

T = datetime(2026, 6, 1, 12, 0, 30, 250_000, tzinfo=UTC)
HOUR, MICROSECOND = timedelta(hours=1), timedelta(microseconds=1)


@pytest.mark.parametrize(
    "schedule",
    [Every("5m"), Every(minutes=5), Every(timedelta(minutes=5)), Every("PT5M")],
    ids=repr,
)
def test_every_counts_from_1970_without_an_anchor(schedule: Every) -> None:
    """Five minutes, however they are written, fall on whole five minutes of UTC."""
    assert schedule.next_after(T) == datetime(2026, 6, 1, 12, 5, tzinfo=UTC)
    assert str(schedule) == "EVERY|5m|1970-01-01T00:00:00Z"


def test_every_counts_from_its_anchor_both_ways() -> None:
    """The anchor is a slot, and the grid runs before it as well as after; its offset does not
    matter.
    """
    anchor = datetime(2026, 6, 1, 14, 7, tzinfo=timezone(timedelta(hours=2)))
    schedule = Every("1h", anchor=anchor)
    assert [f"{slot:%H:%M}" for slot in schedule.slots(T - HOUR, T + HOUR)] == [
        "11:07",
        "12:07",
    ]
    assert str(schedule) == "EVERY|1h|2026-06-01T12:07:00Z"


def test_every_is_exact_to_the_microsecond() -> None:
    """A slot is not after itself, and is after the microsecond before."""
    slot = datetime(2026, 6, 1, 12, 5, tzinfo=UTC)
    assert Every("5m").next_after(slot) == slot + timedelta(minutes=5)
    assert Every("5m").next_after(slot - MICROSECOND) == slot
    assert Every("5m").latest_before(slot) == slot - timedelta(minutes=5)
    assert Every("5m").latest_before(slot + MICROSECOND) == slot
    assert Every("7us").count_between(slot, slot + timedelta(microseconds=700)) == 100


def test_every_ends_with_the_calendar() -> None:
    """Beyond the last instant that a datetime can hold there is no slot."""
    assert Every("300d").next_after(datetime(9999, 12, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Every(),
            'Every takes one duration, as Every("5m") or Every(minutes=5)',
        ),
        (lambda: Every("5m", minutes=5), "Every takes one duration"),
        (lambda: Every("0s"), "Every: 0s is too short; it must be above zero"),
        (lambda: Every(minutes=-5), "Every: -5m is negative"),
        (lambda: Every("5 parsecs"), "Every: '5 parsecs' is not a duration"),
        (lambda: Every(300), "Every: 300 has no unit"),  # type: ignore[arg-type]
        (lambda: Every("5m", anchor=datetime(2026, 1, 1)), "is not an aware datetime"),  # noqa: DTZ001
        (lambda: FixedDelay("0s"), "FixedDelay: 0s is too short"),
        (lambda: FixedDelay(), "FixedDelay takes one duration"),
        (lambda: Daily(), 'Daily with 0 times: 1–1440, as Daily("02:00", "14:30")'),
        (
            lambda: Daily("24:00"),
            "a time of day must be 00:00–23:59, with seconds as 02:00:30, got '24:00'",
        ),
        (lambda: Daily("2"), "got '2'"),
        (lambda: Daily(2), "02:00:30, got 2"),  # type: ignore[arg-type]
        (lambda: Daily(time(2, tzinfo=UTC)), "the zone goes into tz="),
        (lambda: Daily(time(2, 0, 0, 1)), "whole seconds"),
        (
            lambda: Daily("02:00", tz="Mars/Olympus"),
            "unknown time zone 'Mars/Olympus'",
        ),
        (lambda: Daily("02:00", gap="hop"), "gap 'hop': one of end, shift, skip"),  # type: ignore[arg-type]
    ],
)
def test_refusals_say_what_is_wrong(make: object, message: str) -> None:
    """One line with the value and the cure."""
    assert callable(make)
    with pytest.raises(InvalidSchedule) as refusal:
        make()
    assert message in str(refusal.value)


def test_fixed_delay_counts_from_the_end_of_the_run() -> None:
    """The next slot is the end plus the delay; the first one is at once; there is never more than
    one ahead.
    """
    schedule = FixedDelay("2m")
    assert FixedDelay.from_end
    assert schedule.next_after(T) == T + timedelta(minutes=2)
    assert schedule.first_after(T) == T
    assert list(schedule.slots(T, T + HOUR)) == [T + timedelta(minutes=2)]
    assert schedule.count_between(T, T + HOUR) == 1
    assert schedule.count_between(T, T + timedelta(minutes=1)) == 0
    assert schedule.latest_before(T + HOUR, floor=T) == T + timedelta(minutes=2)
    assert schedule.latest_before(T + timedelta(minutes=2), floor=T) is None
    assert schedule.latest_before(T) is None


def test_disabled_has_no_slot() -> None:
    """Not ahead, not behind, none to count."""
    schedule = Disabled()
    assert schedule.next_after(T) is None
    assert schedule.first_after(T) is None
    assert schedule.latest_before(T) is None
    assert schedule.count_between(T, T + HOUR) == 0
    assert list(schedule.slots(T, T + HOUR)) == []


def test_daily_takes_text_and_times() -> None:
    """Times in any order and form are the same schedule, each once."""
    schedule = Daily("14:30", time(2), "02:00", "2:00:05", tz="Europe/Vienna")
    assert str(schedule) == "DAILY|02:00,02:00:05,14:30|Europe/Vienna"
    assert [
        f"{slot:%H:%M:%S}" for slot in schedule.slots(T, T + timedelta(days=1))
    ] == [
        "12:30:00",
        "00:00:00",
        "00:00:05",
    ]


@pytest.mark.parametrize(
    "schedule",
    [Every("1h"), Daily("02:00"), Disabled(), FixedDelay("1h")],
    ids=lambda s: str(s),
)
def test_settled_and_last_are_the_schedule_itself(schedule: Schedule) -> None:
    """Only a succession has something to settle."""
    assert schedule.settled(T) is schedule
    assert schedule.last is schedule


@pytest.mark.parametrize(
    "schedule",
    [
        Every("5m"),
        Cron("0 2 * * *"),
        Daily("02:00"),
        Once("2026-11-21T02:00:00Z"),
        FixedDelay("5m"),
        Disabled(),
        AnyOf(Daily("02:00"), Daily("03:00")),
        Daily("02:00").between("2026-01-01T00:00Z", "2027-01-01T00:00Z"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_naive_datetime_is_no_instant(schedule: Schedule) -> None:
    """Each method says so, with the cure."""
    aware = datetime(2026, 1, 1, tzinfo=UTC)
    naive = aware.replace(tzinfo=None)
    for ask in (
        lambda: schedule.next_after(naive),
        lambda: schedule.latest_before(naive),
        lambda: schedule.latest_before(aware, floor=naive),
        lambda: schedule.count_between(naive, aware),
        lambda: schedule.count_between(aware, naive),
        lambda: list(schedule.slots(naive, aware)),
        lambda: list(schedule.slots(aware, naive)),
        lambda: schedule.runs(naive),
    ):
        with pytest.raises(
            InvalidSchedule, match=r"not an aware datetime; give it a tz"
        ):
            ask()
