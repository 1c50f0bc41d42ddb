"""Runs that are due a while after their slots, so that not everything starts at midnight."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.kit.times import spread_out, succeed

from slotwise import Cron, Daily, Every, FixedDelay, InvalidSchedule, parse_schedule

DAY = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_how_much_follows_from_the_name() -> None:
    """The same in every process, on every host; this very figure, so that no release moves it."""
    assert (
        str(spread_out(Every("1h"), "report", HOUR))
        == "SPREAD(EVERY|1h|1970-01-01T00:00:00Z; 2497564ms)"
    )


def test_names_are_spread_evenly() -> None:
    """A thousand names within an hour: each tenth of it has about a hundred."""
    waits = [
        spread_out(Every("1h"), f"job-{number}", HOUR).wait(DAY)
        for number in range(1000)
    ]
    assert all(timedelta(0) <= wait < HOUR for wait in waits)
    tenths = [int(wait / (HOUR / 10)) for wait in waits]
    assert all(70 < tenths.count(tenth) < 130 for tenth in range(10))


def test_slots_keep_their_identity() -> None:
    """Only the due time is later."""
    plain = Cron("*/7 * * * *")
    spread = spread_out(plain, "report", HOUR)
    assert list(spread.slots(DAY, DAY + HOUR)) == list(plain.slots(DAY, DAY + HOUR))
    assert spread.next_after(DAY) == plain.next_after(DAY)
    assert spread.latest_before(DAY) == plain.latest_before(DAY)
    assert spread.count_between(DAY, DAY + HOUR) == plain.count_between(
        DAY, DAY + HOUR
    )


def test_the_text_is_complete() -> None:
    """Whoever reads the row needs neither the name nor the code."""
    spread = spread_out(Daily("02:00", tz="Europe/Vienna"), "report", HOUR)
    again = parse_schedule(str(spread))
    assert again == spread
    assert again.wait(DAY) == spread.wait(DAY) > timedelta(0)


def test_each_part_of_a_succession_has_its_own() -> None:
    """A deploy that changes the spread changes the due times of later slots only."""
    changed = succeed(Every("1h"), DAY, parse_schedule("SPREAD(EVERY|1h; 5m)"))
    assert changed.wait(DAY) == timedelta(0)
    assert changed.wait(DAY + HOUR) == timedelta(minutes=5)


def test_calendars_are_bound_within() -> None:
    """Slots that a calendar passes over are passed over, spread or not."""
    spread = spread_out(Daily("02:00").excluding("AT"), "report", HOUR)
    assert list(spread.calendars) == ["AT"]
    assert str(spread).startswith("SPREAD(EXCLUDING(DAILY|02:00|UTC; AT; skip); ")


@pytest.mark.parametrize(
    "text", ["SPREAD(FIXED_DELAY|2m; 5m)", "SPREAD(EVERY|1h; 0s)", "SPREAD(EVERY|1h)"]
)
def test_what_cannot_be_spread(text: str) -> None:
    """A delay after the end of a run, and nothing."""
    with pytest.raises(InvalidSchedule):
        parse_schedule(text)


def test_a_fixed_delay_cannot_be_spread() -> None:
    """Its runs are apart already."""
    with pytest.raises(InvalidSchedule, match="there is nothing to spread"):
        spread_out(FixedDelay("2m"), "report", HOUR)
