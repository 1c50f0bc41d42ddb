"""What excludes an instant from a schedule is named: a field, a time of day, a calendar or a
bound.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from slotwise import Calendar, Cron, Daily, Disabled, Every, Schedule
from slotwise.explain.no_slot import why_no_slot

VIENNA = "Europe/Vienna"
START, END = datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 5, tzinfo=UTC)
HOLIDAY = Calendar(name="AT", days=frozenset({date(2026, 12, 8)}))


@pytest.mark.parametrize(
    ("schedule", "instant", "words"),
    [
        (
            Cron("0 2 * * MON-FRI", tz=VIENNA),
            "2026-11-28T02:00+01:00",
            "Its day-of-week MON-FRI excludes Saturday",
        ),
        (
            Cron("0 2 13 * FRI", tz=VIENNA),
            "2026-11-26T02:00+01:00",
            "Its day-of-month 13 or day-of-week FRI excludes",
        ),
        (
            Cron("0 2 * 6 *", tz=VIENNA),
            "2026-11-26T02:00+01:00",
            "Its month field 6 excludes 11.",
        ),
        (
            Cron("0 2 * * *", tz=VIENNA),
            "2026-11-26T03:17+01:00",
            "Its minute field 0 excludes 17. Its hour field 2 excludes 3.",
        ),
        (Every("5m"), "2026-11-26T01:02Z", "It is 2m after a multiple of 5m."),
        (
            Daily("02:00", "14:00", tz=VIENNA),
            "2026-11-26T02:02+01:00",
            "02:02:00, and the schedule has 02:00",
        ),
        (
            Daily("02:00").between(START, END),
            "2026-11-30T02:00Z",
            "The schedule begins at 2026-12-01T00:00:00Z.",
        ),
        (
            Daily("02:00").between(START, END),
            "2026-12-05T02:00Z",
            "The schedule ended before 2026-12-05T00:00:00Z.",
        ),
        (
            Daily("02:00").between(START, END),
            "2026-12-02T03:00Z",
            "The time of day is 03:00:00",
        ),
        (
            Daily("02:00").excluding(HOLIDAY, roll="following"),
            "2026-12-08T02:00Z",
            "Tuesday 2026-12-08 is a day off, by the calendar AT.",
        ),
        (
            Daily("02:00").excluding(HOLIDAY, roll="following"),
            "2026-12-09T03:00Z",
            "The time of day is 03:00:00",
        ),
        (
            Daily("02:00").last_business_day(HOLIDAY),
            "2026-12-30T02:00Z",
            "Wednesday 2026-12-30 is not the wanted business day of the month, by the calendar AT.",
        ),
    ],
    ids=str,
)
def test_what_excludes_an_instant_is_named(
    schedule: Schedule, instant: str, words: str
) -> None:
    """The instant is none of its slots, and the sentences say why."""
    at = datetime.fromisoformat(instant)
    assert at not in list(schedule.slots(at.replace(hour=0), at))
    assert words in " ".join(why_no_slot(schedule, at))


def test_what_has_no_simple_reason_has_none() -> None:
    """Nothing is invented."""
    assert list(why_no_slot(Disabled(), START)) == []
