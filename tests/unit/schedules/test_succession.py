"""A changed schedule: the old one up to and including the activation, then the new one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.kit.times import succeed

from slotwise import Cron, Disabled, Every, FixedDelay, InvalidSchedule, parse_schedule

AT, JANUARY = (
    datetime(2026, 11, 21, 2, 0, tzinfo=UTC),
    datetime(2026, 1, 3, tzinfo=UTC),
)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
NIGHTLY, OFTEN = Cron("0 2 * * *"), Every("90s")
MINUTES = [f"{number // 60:02}:{number % 60:02}" for number in range(1440)]
ZONES = [
    "UTC",
    "Europe/Vienna",
    "Asia/Tokyo",
    "Asia/Kolkata",
    "Africa/Cairo",
    "America/Lima",
]


def test_slots_before_the_activation_are_the_old_ones_and_later_ones_the_new() -> None:
    """A slot on the very instant of the activation belongs to the old schedule."""
    changed = succeed(NIGHTLY, AT, OFTEN)
    slots = [
        f"{slot:%d %H:%M:%S}"
        for slot in changed.slots(AT - 48 * HOUR, AT + 180 * SECOND)
    ]
    assert slots == ["20 02:00:00", "21 02:00:00", "21 02:01:30", "21 02:03:00"]


def test_a_long_silence_of_the_old_schedule_ends_at_the_activation() -> None:
    """When the old schedule has nothing up to the activation, the new one's first slot after it is
    next.
    """
    changed = succeed(Cron("0 0 1 1 *"), AT, OFTEN)
    assert changed.next_after(AT - 48 * HOUR) == AT + 90 * SECOND
    assert changed.next_after(AT + HOUR) == AT + HOUR + 90 * SECOND


def test_text_reads_back() -> None:
    """Parts and instants, joined by arrows."""
    changed = succeed(NIGHTLY, AT, OFTEN)
    assert (
        str(changed)
        == "CRON|0 2 * * *|UTC >> 2026-11-21T02:00:00Z >> EVERY|90s|1970-01-01T00:00:00Z"
    )
    assert parse_schedule(str(changed)) == changed
    assert parse_schedule("@daily >> 2026-01-03T00:00:00Z >> -") == succeed(
        Cron("@daily"), JANUARY, Disabled()
    )


def test_a_text_names_one_predecessor() -> None:
    """Two do not read back: a row remembers one."""
    with pytest.raises(
        InvalidSchedule, match=r"write SCHEDULE >> INSTANT >> SCHEDULE$"
    ):
        parse_schedule(
            str(succeed(succeed(NIGHTLY, AT, OFTEN), AT + HOUR, Disabled()))
        )


def test_each_of_both_may_be_as_long_as_one() -> None:
    """A change of a schedule with long calendars fits into the row, whatever came before."""
    many = (
        "ANY(" + "; ".join(f"DAILY|{','.join(MINUTES)}|{zone}" for zone in ZONES) + ")"
    )
    long, other = parse_schedule(many), parse_schedule(many.replace("00:00,", ""))
    assert len(str(long)) > 50_000
    changed = succeed(long, AT, other)
    assert parse_schedule(str(changed)) == changed


def test_settling_drops_what_is_past() -> None:
    """A part whose activation has been reached is gone; with the last one, the plain schedule is
    left.
    """
    twice = succeed(succeed(NIGHTLY, AT, OFTEN), AT + HOUR, Cron("@hourly"))
    assert twice.settled(AT - SECOND) == twice
    assert twice.settled(AT) == succeed(OFTEN, AT + HOUR, Cron("@hourly"))
    assert twice.settled(AT + HOUR) == Cron("@hourly")
    assert twice.last == Cron("@hourly")


def test_a_successor_that_never_came_into_force_is_dropped() -> None:
    """An activation at or before an earlier one supersedes it, and parts nest into one row."""
    pending = succeed(NIGHTLY, AT, OFTEN)
    assert succeed(pending, AT, Disabled()) == succeed(NIGHTLY, AT, Disabled())
    assert succeed(pending, AT - HOUR, Disabled()) == succeed(
        NIGHTLY, AT - HOUR, Disabled()
    )
    assert succeed(Disabled(), AT - HOUR, pending) == succeed(
        succeed(Disabled(), AT - HOUR, NIGHTLY), AT, OFTEN
    )
    assert succeed(Disabled(), AT + HOUR, pending) == succeed(
        Disabled(), AT + HOUR, OFTEN
    )


def test_disabling_and_enabling_are_successions_too() -> None:
    """Disabled works as the old part and as the new one."""
    assert succeed(Disabled(), AT, OFTEN).next_after(AT - HOUR) == AT + 90 * SECOND
    stopped = succeed(NIGHTLY, AT, Disabled())
    assert stopped.next_after(AT - HOUR) == AT
    assert stopped.next_after(AT) is None
    assert stopped.latest_before(AT + HOUR) == AT


def test_the_last_part_says_whether_ends_of_runs_count() -> None:
    """With a fixed delay to come, `from_end` holds; with one that goes, it does not."""
    assert succeed(NIGHTLY, AT, FixedDelay("2m")).from_end
    assert not succeed(FixedDelay("2m"), AT, NIGHTLY).from_end
    assert (
        succeed(Disabled(), AT, FixedDelay("2m")).next_after(AT - HOUR)
        == AT + 120 * SECOND
    )
    assert succeed(NIGHTLY, AT - HOUR, FixedDelay("2m")).first_after(AT) == AT
    assert succeed(NIGHTLY, AT, FixedDelay("2m")).first_after(AT - HOUR) == AT


def test_looking_back_over_an_activation() -> None:
    """The newest slot is looked for in the new part, then in the old one, never below the
    floor.
    """
    changed = succeed(NIGHTLY, AT, OFTEN)
    assert changed.latest_before(AT + 120 * SECOND) == AT + 90 * SECOND
    assert changed.latest_before(AT + 90 * SECOND) == AT
    assert changed.latest_before(AT) == AT - 24 * HOUR
    assert changed.latest_before(AT + 90 * SECOND, floor=AT) is None
    assert changed.count_between(AT - 25 * HOUR, AT + HOUR) == 2 + 40
