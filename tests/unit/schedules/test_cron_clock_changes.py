"""What becomes of slots when the clocks change: tables of worked nights."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from slotwise import Cron, Daily, InvalidSchedule


def local_slots(schedule: Cron | Daily, day: str, *, days: int = 1) -> list[str]:
    """The slots whose UTC instant lies within the local day, in local time with the offset's sign
    and hours.
    """
    start = datetime.fromisoformat(day).replace(tzinfo=schedule.zone)
    end = (datetime.fromisoformat(day) + timedelta(days=days)).replace(
        tzinfo=schedule.zone
    )
    begin, end = (
        instant.astimezone(UTC) - timedelta(seconds=1) for instant in (start, end)
    )
    slots = list(schedule.slots(begin, end))
    assert schedule.count_between(begin, end) == len(slots)
    return [f"{slot.astimezone(schedule.zone):%d %H:%M%z}" for slot in slots]


VIENNA, NEW_YORK, LORD_HOWE = (
    "Europe/Vienna",
    "America/New_York",
    "Australia/Lord_Howe",
)
CAIRO = "Africa/Cairo"
BEIRUT = "Asia/Beirut"
SAO_PAULO = "America/Sao_Paulo"
APIA = "Pacific/Apia"

FIXED = [
    # zone, day, expression, options, slots
    (VIENNA, "2026-03-29", "30 2 * * *", {}, ["29 03:00+0200"]),
    (VIENNA, "2026-03-29", "30 2 * * *", {"gap": "shift"}, ["29 03:30+0200"]),
    (VIENNA, "2026-03-29", "30 2 * * *", {"gap": "skip"}, []),
    (VIENNA, "2026-03-29", "0 2 * * *", {}, ["29 03:00+0200"]),
    (VIENNA, "2026-03-29", "0 2 * * *", {"gap": "shift"}, ["29 03:00+0200"]),
    (VIENNA, "2026-03-29", "0,20,40 2 * * *", {}, ["29 03:00+0200"]),
    (
        VIENNA,
        "2026-03-29",
        "0,20,40 2 * * *",
        {"gap": "shift"},
        ["29 03:00+0200", "29 03:20+0200", "29 03:40+0200"],
    ),
    (VIENNA, "2026-03-29", "0,30 2-3 * * *", {}, ["29 03:00+0200", "29 03:30+0200"]),
    (
        VIENNA,
        "2026-03-29",
        "0,30 2,3 * * *",
        {"gap": "shift"},
        ["29 03:00+0200", "29 03:30+0200"],
    ),
    (VIENNA, "2026-03-29", "15 2,3 * * *", {"gap": "shift"}, ["29 03:15+0200"]),
    (VIENNA, "2026-03-29", "0 3 * * *", {}, ["29 03:00+0200"]),
    (VIENNA, "2026-10-25", "30 2 * * *", {}, ["25 02:30+0200"]),
    (VIENNA, "2026-10-25", "30 2 * * *", {"fold": "second"}, ["25 02:30+0100"]),
    (
        VIENNA,
        "2026-10-25",
        "30 2 * * *",
        {"fold": "both"},
        ["25 02:30+0200", "25 02:30+0100"],
    ),
    (VIENNA, "2026-10-25", "0 2 * * *", {}, ["25 02:00+0200"]),
    (VIENNA, "2026-10-25", "0 3 * * *", {}, ["25 03:00+0100"]),
    (NEW_YORK, "2026-03-08", "30 2 * * *", {}, ["08 03:00-0400"]),
    (NEW_YORK, "2026-11-01", "30 1 * * *", {}, ["01 01:30-0400"]),
    (LORD_HOWE, "2026-10-04", "15 2 * * *", {}, ["04 02:30+1100"]),
    (LORD_HOWE, "2026-10-04", "15 2 * * *", {"gap": "shift"}, ["04 02:45+1100"]),
    (LORD_HOWE, "2026-10-04", "45 2 * * *", {}, ["04 02:45+1100"]),
    (LORD_HOWE, "2026-04-05", "45 1 * * *", {}, ["05 01:45+1100"]),
    (LORD_HOWE, "2026-04-05", "45 1 * * *", {"fold": "second"}, ["05 01:45+1030"]),
    (LORD_HOWE, "2026-04-05", "15 1 * * *", {"fold": "both"}, ["05 01:15+1100"]),
    (CAIRO, "2026-04-24", "30 0 * * *", {}, ["24 01:00+0300"]),
    (CAIRO, "2026-04-24", "0 0 * * *", {"gap": "skip"}, []),
    (CAIRO, "2026-10-29", "30 23 * * *", {}, ["29 23:30+0300"]),
    (CAIRO, "2026-10-29", "30 23 * * *", {"fold": "second"}, ["29 23:30+0200"]),
    (BEIRUT, "2026-03-29", "0 0 * * *", {}, ["29 01:00+0300"]),
    (SAO_PAULO, "2018-11-04", "0 0 * * *", {}, ["04 01:00-0200"]),
    (
        SAO_PAULO,
        "2018-02-17",
        "30 23 * * *",
        {"fold": "both"},
        ["17 23:30-0200", "17 23:30-0300"],
    ),
]

INTERVALS = [
    (
        VIENNA,
        "2026-03-29",
        "*/30 1-3 * * *",
        ["29 01:00+0100", "29 01:30+0100", "29 03:00+0200", "29 03:30+0200"],
    ),
    (VIENNA, "2026-03-29", "*/30 2 * * *", []),
    (
        VIENNA,
        "2026-03-29",
        "30 */2 * * *",
        [f"29 {h:02}:30+0{1 if h < 2 else 2}00" for h in range(0, 24, 2) if h != 2],
    ),
    (
        VIENNA,
        "2026-10-25",
        "*/30 2 * * *",
        ["25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100"],
    ),
    (VIENNA, "2026-10-25", "30 */12 * * *", ["25 00:30+0200", "25 12:30+0100"]),
    (
        LORD_HOWE,
        "2026-04-05",
        "*/20 1 * * *",
        ["05 01:00+1100", "05 01:20+1100", "05 01:40+1100", "05 01:40+1030"],
    ),
    (LORD_HOWE, "2026-10-04", "*/20 2 * * *", ["04 02:40+1100"]),
]


@pytest.mark.parametrize(
    ("zone", "day", "expression", "options", "slots"), FIXED, ids=str
)
def test_fixed_times_fire_once_by_the_rules(
    zone: str, day: str, expression: str, options: dict[str, str], slots: list[str]
) -> None:
    """A fixed time in a gap fires once, by `gap`; in a fold once, by `fold`; slots on one instant
    are one.
    """
    assert local_slots(Cron(expression, tz=zone, **options), day) == slots  # type: ignore[arg-type]


@pytest.mark.parametrize(("zone", "day", "expression", "slots"), INTERVALS, ids=str)
@pytest.mark.parametrize("gap", ["end", "shift", "skip"])
@pytest.mark.parametrize("fold", ["first", "second", "both"])
def test_intervals_follow_real_time(
    zone: str, day: str, expression: str, slots: list[str], gap: str, fold: str
) -> None:
    """An interval fires in both passes of a fold and not in a gap, whatever the rules for fixed
    times.
    """
    assert local_slots(Cron(expression, tz=zone, gap=gap, fold=fold), day) == slots  # type: ignore[arg-type]


def test_every_minute_is_every_minute_of_real_time() -> None:
    """Through both changes of a year, `* * * * *` has no hole and no repeat."""
    schedule = Cron("* * * * *", tz=VIENNA)
    begin, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    assert schedule.count_between(begin, end) == 365 * 24 * 60


@pytest.mark.parametrize(
    ("gap", "slots"),
    [
        ("end", ["29 02:00-1000", "31 00:00+1400", "31 02:00+1400", "01 02:00+1400"]),
        ("shift", ["29 02:00-1000", "31 02:00+1400", "01 02:00+1400"]),
        ("skip", ["29 02:00-1000", "31 02:00+1400", "01 02:00+1400"]),
    ],
)
def test_a_day_that_never_was(gap: str, slots: list[str]) -> None:
    """Samoa went from 29 to 31 December 2011: what was due on the 30th goes by the gap rule as
    ever.
    """
    for schedule in (
        Cron("0 2 * * *", tz=APIA, gap=gap),
        Daily("02:00", tz=APIA, gap=gap),
    ):  # type: ignore[arg-type]
        assert local_slots(schedule, "2011-12-29", days=4) == slots


def test_daily_follows_the_same_rules() -> None:
    """Daily names fixed times, so it is a cron expression with several."""
    daily, cron = Daily("02:30", "14:30", tz=VIENNA), Cron("30 2,14 * * *", tz=VIENNA)
    begin, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    assert list(daily.slots(begin, end)) == list(cron.slots(begin, end))


def test_a_time_that_never_exists_is_refused() -> None:
    """With `skip`, half past two on the last Sunday of March has no instant in Vienna, in any
    year.
    """
    with pytest.raises(
        InvalidSchedule, match="never fires: its times never exist in Europe/Vienna"
    ):
        Cron("30 2 * 3 SUNL", tz=VIENNA, gap="skip")


def test_default_zone_is_utc_and_not_the_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The zone of the machine plays no part."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert Cron("0 2 * * *").zone == ZoneInfo("UTC")
    assert Cron("0 2 * * *").next_after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(
        2026, 1, 1, 2, tzinfo=UTC
    )
