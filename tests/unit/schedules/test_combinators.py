"""Once, AnyOf, between, H: what each means, on worked dates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from slotwise import (
    AnyOf,
    Calendar,
    Cron,
    Daily,
    Disabled,
    Every,
    FixedDelay,
    InvalidSchedule,
    Once,
    Schedule,
    parse_schedule,
)

T = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def clocks(schedule: Schedule, a: datetime, b: datetime) -> list[str]:
    return [f"{slot:%d %H:%M}" for slot in schedule.slots(a, b)]


# Once.
# ------------------------------------------------------------------------------------------------------------


def test_once_has_one_slot() -> None:
    """Before it, it is the next; from it on, there is none."""
    once = Once("2026-06-01T14:00:00+02:00")
    assert once.at == T
    assert once.next_after(T - TICK) == T
    assert once.next_after(T) is None
    assert once.latest_before(T + TICK) == T
    assert once.latest_before(T) is None
    assert once.latest_before(T + TICK, floor=T) is None
    assert (once.count_between(T - TICK, T), once.count_between(T, T + DAY)) == (1, 0)


def test_once_in_the_past_is_the_first_slot_of_a_new_job() -> None:
    """Planned too late, it still runs; combined with others, it is past like any other slot."""
    assert Once(T).first_after(T + DAY) == T
    assert AnyOf(Once(T), Daily("12:00")).first_after(T + HOUR) == T + DAY
    assert Once(T).between(end=T + TICK).first_after(T + DAY) == T
    assert Once(T).between(T).first_after(T + DAY) == T


def test_once_needs_an_instant() -> None:
    """A local time without a zone is not one."""
    with pytest.raises(InvalidSchedule, match="is not an aware datetime"):
        Once(datetime(2026, 6, 1))  # noqa: DTZ001
    with pytest.raises(InvalidSchedule, match="write ISO 8601 with an offset"):
        Once("2026-06-01T12:00")


# AnyOf.
# -----------------------------------------------------------------------------------------------------------


def test_any_of_has_the_slots_of_all() -> None:
    """Those that coincide are one slot, and counted once."""
    office = AnyOf(Cron("0 9,17 * * MON-FRI"), Cron("0 12 * * SAT"), Daily("17:00"))
    slots = ["05 09:00", "05 17:00", "06 12:00", "06 17:00", "07 17:00", "08 09:00"]
    assert clocks(office, T + 3.5 * DAY, T + 7 * DAY) == slots
    assert office.count_between(T + 3.5 * DAY, T + 7 * DAY) == 6


def test_any_of_flattens_and_forgets_twins() -> None:
    """Nested ones are one level, equal parts are one; the order is kept."""
    flat = AnyOf(AnyOf(Daily("09:00"), Daily("10:00")), Daily("09:00"), Every("1h"))
    assert flat == AnyOf(Daily("09:00"), Daily("10:00"), Every("1h"))


REFUSED = [
    (lambda: AnyOf(), "AnyOf of 0 schedules: 1–32"),
    (
        lambda: AnyOf(*(Every(seconds=n) for n in range(1, 34))),
        "AnyOf of 33 schedules: 1–32",
    ),
    (
        lambda: AnyOf(Daily("09:00"), FixedDelay("1m")),
        "FIXED_DELAY|1m cannot be combined",
    ),
    (lambda: AnyOf(Daily("09:00"), Disabled()), "- cannot be combined"),
    (lambda: AnyOf(Daily("09:00"), Every("250ms")), "only slots at whole seconds"),
    (lambda: AnyOf(Once(T + TICK)), "only slots at whole seconds"),
    (lambda: AnyOf("0 9 * * *"), "AnyOf takes schedules, not '0 9 * * *'"),
    (lambda: Daily("09:00").between(), "between takes a start, an end or both"),
    (
        lambda: Daily("09:00").between(T, T),
        "there are no slots: the start must be before the end",
    ),
    (lambda: Daily("09:00").between("soon"), "'soon' is not an instant"),
]


@pytest.mark.parametrize(
    ("make", "message"), REFUSED, ids=[message for _, message in REFUSED]
)
def test_refusals_say_what_fits(make: object, message: str) -> None:
    """One line: what was given, and what can be."""
    with pytest.raises(InvalidSchedule) as refusal:
        make()  # type: ignore[operator]
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


# between.
# ---------------------------------------------------------------------------------------------------------


def test_bounds_take_in_the_start_and_leave_out_the_end() -> None:
    """As ranges do; either may be open."""
    daily = Daily("12:00")
    assert clocks(daily.between(T, T + 2 * DAY), T - 9 * DAY, T + 9 * DAY) == [
        "01 12:00",
        "02 12:00",
    ]
    assert daily.between(T + TICK).next_after(T - 9 * DAY) == T + DAY
    assert daily.between(end=T).next_after(T - DAY) is None
    assert daily.between(end=T + TICK).next_after(T - DAY) == T
    assert daily.between(T).latest_before(T) is None
    assert daily.between(T).latest_before(T + 9 * DAY) == T + 8 * DAY
    assert daily.between(end=T).latest_before(T + 9 * DAY) == T - DAY
    assert daily.between(T, T + DAY).latest_before(T + 9 * DAY, floor=T) is None


def test_bounds_that_hold_no_slot_are_refused_once_the_slots_are_known() -> None:
    """At once, or where a name or a calendar decides: when it is bound. A weekend that is passed
    over is no slot.
    """
    with pytest.raises(
        InvalidSchedule,
        match="has no slot from 2026-06-01T12:00:00Z on and before 2026-06-02",
    ):
        Cron("0 0 29 2 *").between(T, T + DAY)
    later = Cron("H(0-10) 12 * * *").between(T + 0.25 * HOUR, T + HOUR)
    with pytest.raises(InvalidSchedule, match="has no slot from 2026-06-01T12:15:00Z"):
        later.bind("job")
    weekend = Daily("12:00").excluding("CO").between(T + 5 * DAY, T + 6 * DAY)
    with pytest.raises(
        InvalidSchedule, match=r"drop\) has no slot from 2026-06-06T12:00:00Z on"
    ):
        weekend.bind("job", {"CO": Calendar(name="CO")})
    assert (
        weekend.bind(
            "job", {"CO": Calendar(name="CO", weekend=frozenset())}
        ).next_after(T)
        == T + 5 * DAY
    )


def test_a_fixed_delay_keeps_to_its_bounds() -> None:
    """It begins at the start, not before, and no run begins from the end on."""
    loop = FixedDelay("2m").between(T, T + HOUR)
    assert loop.from_end
    assert loop.first_after(T - DAY) == T
    assert loop.first_after(T + SECOND) == T + SECOND
    assert loop.next_after(T + 30 * SECOND) == T + 150 * SECOND
    assert loop.next_after(T + HOUR - 2 * 60 * SECOND) is None


# H.
# ---------------------------------------------------------------------------------------------------------------


def test_each_job_has_its_own_h_and_always_the_same() -> None:
    """The number comes from the name, so it holds on every node and after every restart."""
    bound = Cron("H 2 * * *", "Europe/Vienna", fold="both").bind("nightly-report")
    assert str(bound) == "CRON|41 2 * * *|Europe/Vienna|fold=both"
    assert len({str(Cron("H H * * *").bind(f"job-{n}")) for n in range(500)}) > 400
    assert bound.bind("another") == bound


HASHED = [
    ("H", range(60), 1),
    ("H(10-19)", range(10, 20), 1),
    ("H/15", range(15), 4),
    ("H(30-59)/10", range(30, 40), 3),
    ("H(5-7)/10", range(5, 8), 1),
    ("3,H(40-41)", range(3, 4), 2),
]


@pytest.mark.parametrize(
    ("field", "first", "count"), HASHED, ids=[field for field, _, _ in HASHED]
)
def test_h_keeps_to_its_range_and_steps(field: str, first: range, count: int) -> None:
    """`H(a-b)` is one value of the range, `H/n` every n from a hashed beginning."""
    beginnings = set()
    for n in range(300):
        slots = list(Cron(f"{field} 5 * * *").bind(f"job-{n}").slots(T, T + DAY))
        assert len(slots) == count
        beginnings.add(slots[0].minute)
    assert beginnings == set(first)


def test_h_in_the_day_field_is_a_day_that_every_month_has() -> None:
    """1 to 28; names of months and days that contain an H are names."""
    days = {
        next(Cron("0 0 H * *").bind(f"job-{n}").slots(T, T + 40 * DAY)).day
        for n in range(500)
    }
    assert days == set(range(1, 29))
    assert str(Cron("0 0 * MAR-APR THU").bind("x")) == "CRON|0 0 * MAR-APR THU|UTC"


def test_what_is_not_bound_has_no_slots_to_ask_for() -> None:
    """The error says what lacks; combined, too."""
    for schedule in (
        Cron("H 2 * * *"),
        AnyOf(Daily("09:00"), Cron("H 2 * * *")),
        Cron("H 2 * * *").between(T),
    ):
        with pytest.raises(InvalidSchedule, match='"H 2 \\* \\* \\*" has an H'):
            schedule.next_after(T)
        with pytest.raises(InvalidSchedule, match="has an H"):
            schedule.count_between(T, T + DAY)
        bound = schedule.bind("job")
        assert bound.next_after(T) is not None
        assert "H" not in str(bound).replace("BETWEEN", "")
        assert bound == parse_schedule(str(schedule)).bind("job")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("H(50-70) * * * *", 'minute field "H(50-70)": H(0-59) is the widest'),
        ("H(9-5) * * * *", 'minute field "H(9-5)": H(0-59) is the widest'),
        ("0 0 H(1-31) * *", 'day-of-month field "H(1-31)": H(1-28) is the widest'),
        ("H/0 * * * *", 'minute field "H/0": the step must be 1–60'),
        ("H-5 * * * *", 'minute must be 0–59, got "H-5"'),
        ("H(x) * * * *", 'minute field "H(X)": write H, H(9-17), H/15 or 0–59'),
        ("H * * * H * *", "has 7 fields"),
    ],
)
def test_h_is_checked_before_it_is_bound(expression: str, message: str) -> None:
    """A range that does not fit is refused where the schedule is written."""
    with pytest.raises(InvalidSchedule) as refusal:
        Cron(expression)
    assert message in str(refusal.value)
