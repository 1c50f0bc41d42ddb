"""When a CronJob fires for a job: as often as the job has slots, or refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from slotwise import (
    AnyOf,
    Calendar,
    ConfigurationError,
    Cron,
    Daily,
    Disabled,
    Every,
    FixedDelay,
    Once,
    Schedule,
)
from slotwise.contrib.kubernetes import firing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VIENNA = "Europe/Vienna"


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Cron("0 2 * * *"), "0 2 * * *"),
        (Cron("*/5 * * * *", VIENNA), "*/5 * * * *"),
        (Cron("@daily"), "0 0 * * *"),
        (Cron("0 9-17/2 * JAN-MAR MON-FRI"), "0 9,11,13,15,17 * 1-3 1-5"),
        (Cron("0 22-2 * * 7"), "0 0-2,22,23 * * 0"),
        (Cron("0 2 ? * 5-7"), "0 2 * * 0,5,6"),
        (Cron("0 0 2 13 * 5"), "0 2 13 * 5"),
        (Daily("02:00", tz=VIENNA, gap="skip"), "0 2 * * *"),
        (Daily("02:00", "14:00"), "0 2,14 * * *"),
        (Every("15m"), "*/15 * * * *"),
        (Every("6h"), "0 */6 * * *"),
        (Every("1d"), "0 0 * * *"),
        (Every("1m"), "* * * * *"),
    ],
)
def test_exact(schedule: Schedule, expected: str) -> None:
    """Five fields say the same, in the spelling of Kubernetes, and there is nothing to note."""
    found = firing("job", schedule, now=NOW)
    assert (found.schedule, found.notes, found.lead) == (expected, (), timedelta(0))
    assert found.zone == (
        VIENNA
        if schedule.local_zone and schedule.local_zone.key == VIENNA
        else "Etc/UTC"
    )


@pytest.mark.parametrize(
    ("schedule", "expected", "words"),
    [
        (Cron("H H * * *"), None, "H became"),
        (Cron("30 0 2 * * *"), "0 2 * * *", "waits 30 s"),
        (Cron("0 6 L * *"), "0 6 * * *", "L, W and # became every day"),
        (Cron("0 6 15W * *"), "0 6 * * *", "L, W and # became every day"),
        (Cron("0 6 LW * MON"), "0 6 * * *", "L, W and # became every day"),
        (Cron("0 6 * * MON#2"), "0 6 * * *", "L, W and # became every day"),
        (Cron("0 6 1 * 5L"), "0 6 * * *", "L, W and # became every day"),
        (Cron("0 6 13 * 5", day_rule="and"), "0 6 13 * 5", "if both do"),
        (
            Cron("30 2 * * *", VIENNA),
            "30 2 * * *",
            "the clocks go forward over its slot 2026-03-29T01:00:00Z",
        ),
        (Daily("02:00", "14:30"), "*/30 2,14 * * *", "in each of its hours"),
        (Daily("02:00:20"), "0 2 * * *", "waits up to 20 s"),
        (Every("7h", anchor=datetime(2026, 1, 1, tzinfo=UTC)), None, "refused"),
        (
            Every("90m"),
            "*/30 0,1,3,4,6,7,9,10,12,13,15,16,18,19,21,22 * * *",
            "in each of its hours",
        ),
        (
            Cron("0 2 * * *").excluding("AT"),
            "0 2 * * *",
            "on days that the calendar excludes",
        ),
        (
            Cron("0 2 1 * *").excluding("AT", roll="following"),
            "0 2 * * *",
            "on every day",
        ),
        (
            Cron("0 2 * * *").nth_business_day(3),
            "0 2 * * *",
            "on days that the calendar excludes",
        ),
        (
            Cron("0 2 * * *").between("2026-01-01T00:00Z"),
            "0 2 * * *",
            "outside of the schedule's bounds",
        ),
    ],
)
def test_noted(schedule: Schedule, expected: str | None, words: str) -> None:
    """Where a CronJob fires more often, or earlier, or not in a gap of the clocks, a note says
    so.
    """
    if words == "refused":
        with pytest.raises(ConfigurationError, match="repeats within a day"):
            firing("job", schedule, now=NOW)
        return
    found = firing("job", schedule, now=NOW)
    assert expected is None or found.schedule == expected
    assert any(words in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    "schedule",
    [
        Cron("*/10 * * * * *"),
        Cron("0,30 0 2 * * *"),
        Every("1s"),
        Every("7m"),
        Every("90s"),
        FixedDelay("1h"),
        Once("2026-01-01T00:00Z"),
        Disabled(),
        AnyOf(Cron("0 2 * * *"), Cron("30 4 * * *")),
        Daily("02:00", "02:00:30"),
    ],
    ids=str,
)
def test_refused(schedule: Schedule) -> None:
    """What would fire less often than there are slots is refused, in one line with the cure."""
    with pytest.raises(ConfigurationError) as caught:
        firing("tick", schedule, now=NOW)
    told = str(caught.value)
    assert "let a worker run it" in told
    assert str(schedule) in told
    assert "\n" not in told


@pytest.mark.parametrize(
    "schedule",
    [
        Cron("0 9-17/2 * JAN-MAR MON-FRI"),
        Cron("0 22-2 * * 7"),
        Cron("H H(2-4) * * H"),
        Cron("0 6 L-3,15W * *"),
        Cron("15 6 1 * 5L"),
        Cron("15 6 LW * MON"),
        Cron("0 6 13 * 5", day_rule="and"),
        Cron("0 6 */2 * 1"),
        Cron("0 6 */2 * 1", day_rule="vixie"),
        Cron("30 0 2 * * *"),
        Cron("0 1 * * *", VIENNA),
        Cron("5 */3 * * *", "Australia/Lord_Howe"),
        Cron("30 1 * * *", VIENNA, fold="both"),
        Daily("00:10", "12:40:30", tz="America/New_York"),
        Every("90m"),
        Every("4h", anchor=NOW + timedelta(hours=1)),
        Cron("0 2 1 * *").excluding("X", roll="following"),
        Cron("0 2 * * *").nth_business_day(-1),
    ],
    ids=str,
)
def test_never_less_often(schedule: Schedule) -> None:
    """For two years, each slot has a firing in its minute, as a controller computes it."""
    found = firing("job", schedule, now=NOW)
    bound = schedule.bind(
        "job",
        {
            "X": Calendar(
                name="X", days=frozenset({date(2026, 5, 1), date(2026, 6, 1)})
            )
        },
    )
    theirs = Cron(found.schedule, found.zone, gap="skip", fold="both")
    slots = list(bound.running.slots(NOW, NOW + timedelta(days=730)))
    assert slots
    for slot in slots:
        minute = slot.replace(second=0)
        assert theirs.next_after(minute - timedelta(microseconds=1)) == minute, (
            slot,
            found,
        )
        assert slot - minute <= found.lead
