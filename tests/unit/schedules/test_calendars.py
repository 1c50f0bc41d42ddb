"""Schedules around business calendars, on worked dates; and the calendars themselves."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, timedelta

import pytest
from tests.kit.times import succeed

from slotwise import (
    AnyOf,
    Calendar,
    Cron,
    Daily,
    Every,
    FixedDelay,
    InvalidSchedule,
    Once,
    Schedule,
    parse_schedule,
)
from slotwise.schedules.calendars import parse_calendar

DAY, TICK = timedelta(days=1), timedelta(microseconds=1)
#: Thursday 24 December 2026 to Sunday 3 January 2027: three days on which the office is open, 28
#: to 30 December.
CLOSED = [
    date(2026, 12, 24),
    date(2026, 12, 25),
    date(2026, 12, 31),
    date(2027, 1, 1),
    date(2027, 1, 6),
]
OFFICE = Calendar(name="office", revision=3, days=frozenset(CLOSED))
NOON = Daily("12:00", tz="Europe/Vienna")


def days(schedule: Schedule, first: date, last: date) -> list[str]:
    begin = datetime(first.year, first.month, first.day, tzinfo=UTC)
    end = datetime(last.year, last.month, last.day, tzinfo=UTC) + DAY - TICK
    return [f"{slot:%d.%m.}" for slot in schedule.slots(begin - TICK, end)]


FROM, TO = date(2026, 12, 22), date(2027, 1, 7)

ROLLS = [
    (
        "skip",
        "22.12. 23.12. 24.12. 25.12. 26.12. 27.12. 28.12. 29.12. 30.12. 31.12. "
        "01.01. 02.01. 03.01. 04.01. "
        "05.01. 06.01. 07.01.",
    ),
    ("drop", "22.12. 23.12. 28.12. 29.12. 30.12. 04.01. 05.01. 07.01."),
    ("following", "22.12. 23.12. 28.12. 29.12. 30.12. 04.01. 05.01. 07.01."),
]


@pytest.mark.parametrize(("roll", "expected"), ROLLS, ids=[roll for roll, _ in ROLLS])
def test_daily_slots_around_new_year(roll: str, expected: str) -> None:
    """With `skip` the slots of closed days exist; several slots that roll onto one day are one."""
    assert days(NOON.excluding(OFFICE, roll=roll), FROM, TO) == expected.split()  # type: ignore[arg-type]


MONTHLY = [
    ("31", "following", ["04.01."]),
    ("31", "preceding", ["30.12."]),
    ("31", "modified_following", ["30.12."]),
    ("25", "following", ["28.12."]),
    ("25", "modified_following", ["28.12."]),
    ("1", "following", ["04.01."]),
    ("1", "preceding", ["30.12."]),
    ("1", "modified_following", ["04.01."]),
]


@pytest.mark.parametrize(
    ("day", "roll", "expected"),
    MONTHLY,
    ids=[f"{day}-{roll}" for day, roll, _ in MONTHLY],
)
def test_a_day_of_the_month_rolls_to_a_business_day(
    day: str, roll: str, expected: list[str]
) -> None:
    """`modified_following` stays in its month: the last day of a year that is closed rolls
    back.
    """
    schedule = Cron(f"0 12 {day} * *", tz="Europe/Vienna").excluding(OFFICE, roll=roll)  # type: ignore[arg-type]
    assert days(schedule, FROM, TO) == expected


NUMBERED = [
    (1, ["04.01."]),
    (2, ["05.01."]),
    (3, ["07.01."]),
    (-1, ["30.12."]),
    (-2, ["29.12."]),
    (-4, ["23.12."]),
]


@pytest.mark.parametrize(
    ("n", "expected"), NUMBERED, ids=[str(n) for n, _ in NUMBERED]
)
def test_business_days_are_numbered_in_their_month(
    n: int, expected: list[str]
) -> None:
    """From its beginning, or from its end."""
    assert days(NOON.nth_business_day(n, OFFICE), FROM, TO) == expected


def test_without_a_calendar_monday_to_friday_are_business_days() -> None:
    """31 December 2026 is a Thursday."""
    assert days(NOON.last_business_day(), FROM, TO) == ["31.12."]
    assert (
        str(NOON.last_business_day().bind("job"))
        == "BUSINESS_DAY(DAILY|12:00|Europe/Vienna; -1)"
    )


def test_skipped_slots_are_told_from_those_that_run() -> None:
    """`runs` says it of one slot, `running` has all that do, `skipped_after` finds the next that
    does not.
    """
    schedule = NOON.excluding(OFFICE)
    noon = datetime(2026, 12, 23, 11, tzinfo=UTC)
    assert [schedule.runs(noon + n * DAY) for n in range(6)] == [
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    assert schedule.running == NOON.excluding(OFFICE, roll="drop")
    assert schedule.skipped_after(noon, noon + 9 * DAY) == noon + DAY
    assert schedule.skipped_after(noon + 5 * DAY, noon + 7 * DAY) is None
    assert schedule.skipped_after(noon, noon + DAY - TICK) is None
    for other in (
        NOON,
        NOON.excluding(OFFICE, roll="following"),
        Every("1h"),
        FixedDelay("1m"),
    ):
        assert other.running is other
        assert other.runs(noon)
        assert other.skipped_after(noon, noon + 9 * DAY) is None


def test_a_combined_slot_runs_if_any_part_runs_it() -> None:
    """On closed days of one calendar, the slot that another part has at the same instant runs."""
    noon = datetime(2026, 12, 23, 11, tzinfo=UTC)
    both = AnyOf(NOON.excluding(OFFICE), Cron("0 12 25 * *", tz="Europe/Vienna"))
    assert [both.runs(noon + n * DAY) for n in range(4)] == [True, False, True, False]
    assert both.skipped_after(noon + DAY, noon + 9 * DAY) == noon + 3 * DAY
    bounded = both.between(noon, noon + 2 * DAY)
    assert [
        slot.day for slot in bounded.running.slots(noon - DAY, noon + 9 * DAY)
    ] == [23]
    assert bounded.skipped_after(noon, noon + 9 * DAY) == noon + DAY
    changed = succeed(NOON.excluding(OFFICE), noon + DAY, NOON)
    assert [changed.runs(noon + n * DAY) for n in range(4)] == [
        True,
        False,
        True,
        True,
    ]
    assert changed.skipped_after(noon, noon + 9 * DAY) == noon + DAY
    assert changed.skipped_after(noon + DAY, noon + 9 * DAY) is None


# Binding.
# ---------------------------------------------------------------------------------------------------------


def test_a_calendar_that_is_named_is_bound_later() -> None:
    """Until then its slots cannot be asked for; afterwards its days are part of the text."""
    named = (
        Cron("H 12 * * *", tz="Europe/Vienna")
        .excluding("office", roll="following")
        .between("2026-01-01T00:00Z")
    )
    assert named.calendars == {"office": None}
    with pytest.raises(InvalidSchedule, match='"H 12'):
        named.next_after(datetime(2026, 1, 1, tzinfo=UTC))
    bound = named.bind("job", {"office": OFFICE})
    assert bound.calendars == {"office": OFFICE}
    assert "office@3[SAT,SUN 2026:1224,1225,1231 2027:0101,0106]" in str(bound)
    assert parse_schedule(str(bound)) == bound
    assert days(bound, FROM, TO)[2:4] == ["28.12.", "29.12."]


def test_binding_again_takes_the_newer_days() -> None:
    """What is bound follows a calendar that has changed, and keeps one that is not given."""
    newer = Calendar(
        name="office", revision=4, days=OFFICE.days - {date(2026, 12, 24)}
    )
    bound = NOON.excluding("office", "AT").bind(
        "job", {"office": OFFICE, "AT": Calendar(name="AT")}
    )
    again = bound.bind("job", {"office": newer})
    assert again.calendars == {"office": newer, "AT": Calendar(name="AT")}
    assert bound.bind("job") == bound


def test_a_succession_binds_only_what_is_to_come() -> None:
    """Slots before the activation belong to the days that were known then."""
    newer = Calendar(name="office", revision=4)
    at = datetime(2026, 12, 1, tzinfo=UTC)
    changed = succeed(NOON.excluding(OFFICE), at, NOON.excluding("office")).bind(
        "job", {"office": newer}
    )
    assert changed == succeed(NOON.excluding(OFFICE), at, NOON.excluding(newer))


def test_a_calendar_that_is_not_given_is_named() -> None:
    """With those that are."""
    with pytest.raises(
        InvalidSchedule, match="calendar ofice is not among those given: none"
    ):
        NOON.excluding("ofice").bind("job", {})
    with pytest.raises(
        InvalidSchedule, match="calendar ofice is not among those given: office"
    ):
        NOON.excluding("ofice").bind("job", {"office": OFFICE})


LOCAL_ONLY = [Every("5m"), FixedDelay("5m"), Once("2026-01-01T00:00Z")]


@pytest.mark.parametrize("schedule", LOCAL_ONLY, ids=str)
def test_only_local_days_go_by_calendars(schedule: Schedule) -> None:
    """A fixed rate knows no days; the message says what does."""
    for use in (schedule.excluding, schedule.last_business_day):
        with pytest.raises(
            InvalidSchedule,
            match="has no local days, so a calendar cannot apply; write Cron",
        ):
            use("AT")


# Calendars as values.
# ---------------------------------------------------------------------------------------------


def test_a_calendar_is_a_value() -> None:
    """Equal by its contents, hashable, pickled, read back from its text."""
    again = parse_calendar(str(OFFICE))
    assert again == OFFICE
    assert hash(again) == hash(OFFICE)
    assert pickle.loads(pickle.dumps(OFFICE)) == OFFICE  # noqa: S301
    assert OFFICE.is_business_day(date(2026, 12, 28))
    assert not OFFICE.is_business_day(date(2026, 12, 27))
    assert not OFFICE.is_business_day(date(2026, 12, 24))


def test_weekends_that_leave_no_day_are_refused() -> None:
    """Two calendars together may close the whole week."""
    first = Calendar(name="A", weekend=frozenset({0, 1, 2, 3}))
    second = Calendar(name="B", weekend=frozenset({4, 5, 6}))
    for make in (
        lambda: NOON.excluding(first, second, roll="following"),
        lambda: NOON.nth_business_day(1, first, second),
    ):
        with pytest.raises(
            InvalidSchedule, match="never fires: none of its days is left"
        ):
            make()


def test_weekends_are_configurable() -> None:
    """Friday and Saturday, one day, or none."""
    gulf = Calendar(name="gulf", weekend=frozenset({5, 6}))
    assert str(gulf) == "gulf@0[FRI,SAT]"
    assert days(
        NOON.excluding(gulf, roll="drop"), date(2026, 12, 24), date(2026, 12, 27)
    ) == ["24.12.", "27.12."]
    assert str(Calendar(name="none", weekend=frozenset())) == "none@0[-]"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, 'calendar name "": at most 40 letters'),
        ({"name": "a;b"}, 'calendar name "a;b"'),
        (
            {"name": "x" * 41},
            "at most 40 letters, digits, dots, dashes and underscores",
        ),
        ({"name": "AT", "weekend": frozenset(range(7))}, "a week needs a working day"),
        ({"name": "AT", "weekend": frozenset({7})}, "weekdays are 0–6"),
        (
            {"name": "AT", "days": [date(2026, 1, 1) + n * DAY for n in range(1001)]},
            "1001 days, at most 1000",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_a_calendar_is_refused(
    fields: dict[str, object], message: str
) -> None:
    """In one line, with the bounds."""
    with pytest.raises(InvalidSchedule) as refusal:
        Calendar(**fields)  # type: ignore[arg-type]
    assert message in str(refusal.value)


WORKED = Calendar(
    name="CN", days={date(2024, 2, 12)}, worked={date(2024, 2, 4), date(2024, 2, 18)}
)


def test_worked_days_stand_in_the_text() -> None:
    """After the free days; the text makes the same calendar."""
    assert str(WORKED) == "CN@0[SAT,SUN 2024:0212 +2024-02-04 +2024-02-18]"
    assert parse_calendar(str(WORKED)) == WORKED
    assert parse_calendar("CN@1[SAT,SUN +2024-02-04]") == Calendar(
        name="CN", revision=1, worked={date(2024, 2, 4)}
    )
    schedule = Cron("0 9 * * *").excluding(WORKED, roll="following")
    assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize(
    "text",
    [
        "CN@1[SAT,SUN +2024-02-30]",
        "CN@1[SAT,SUN +2024:0204]",
        "CN@1[SAT,SUN 2024:0204 +2024-02-04]",
    ],
)
def test_worked_days_that_cannot_be(text: str) -> None:
    with pytest.raises(InvalidSchedule, match="calendar"):
        parse_calendar(text)


@pytest.mark.parametrize(
    ("schedule", "days"),
    [
        (
            Cron("0 9 * * *").nth_business_day(3, WORKED),
            ["2024-01-03", "2024-02-04", "2024-03-05"],
        ),
        (
            Cron("0 9 * * *").nth_business_day(4, WORKED),
            ["2024-01-04", "2024-02-05", "2024-03-06"],
        ),
        (
            Cron("0 9 4 * *").excluding(WORKED, roll="following"),
            ["2024-01-04", "2024-02-04", "2024-03-04"],
        ),
        (
            Cron("0 9 3 * *").excluding(WORKED, roll="following"),
            ["2024-01-03", "2024-02-04", "2024-03-04"],
        ),
        (
            Cron("0 9 19 * *").excluding(WORKED, roll="preceding"),
            ["2024-01-19", "2024-02-19", "2024-03-19"],
        ),
        (
            Cron("0 9 1-18 2 SUN,MON", day_rule="and").excluding(WORKED),
            ["2024-02-04", "2024-02-05", "2024-02-18"],
        ),
    ],
)
def test_worked_days_are_business_days(schedule: Schedule, days: list[str]) -> None:
    """For rolls, numbers and month-ends, like any working day; only in that year."""
    begin, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 4, 1, tzinfo=UTC)
    found = [f"{slot:%Y-%m-%d}" for slot in schedule.running.slots(begin, end)]
    assert found == days


def test_a_month_can_end_on_a_worked_weekend_day() -> None:
    """31 August 2024 is a Saturday."""
    calendar = Calendar(name="X", worked={date(2024, 8, 31)})
    last = Cron("0 9 * * *").last_business_day(calendar)
    rolled = Cron("0 9 31 * *").excluding(calendar, roll="modified_following")
    for schedule in (last, rolled):
        assert schedule.next_after(datetime(2024, 8, 2, tzinfo=UTC)) == datetime(
            2024, 8, 31, 9, tzinfo=UTC
        )


def test_all_calendars_must_work() -> None:
    """A day that one works on is free if another one does not."""
    usual = Calendar(name="AT")
    schedule = Cron("0 9 * * SUN")
    with pytest.raises(InvalidSchedule, match="never fires"):
        schedule.excluding(WORKED, usual, roll="drop")
