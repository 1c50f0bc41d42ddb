"""Slots against two independent models: minutes of local time walked one by one, and cronsim."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.kit.times import succeed
from tests.unit.schedules.models import (
    DAY,
    FIRST_YEAR,
    LAST_YEAR,
    MINUTE,
    NEAR_CHANGES,
    RULES,
    SPECS,
    ZONES,
    Spec,
    changes,
    every_change,
    examples,
    modelled,
    zones_that_change,
)

from slotwise import (
    AnyOf,
    Calendar,
    Cron,
    Daily,
    Every,
    InvalidSchedule,
    Once,
    Schedule,
    parse_schedule,
)

SECOND = timedelta(seconds=1)
VIXIE_SPECS = SPECS.map(
    lambda spec: Spec(spec.minute, spec.hour, spec.day, spec.weekday)
)
FIRST = datetime(1971, 1, 1)  # noqa: DTZ001
LAST = datetime(2200, 1, 1)  # noqa: DTZ001
INSTANTS = st.datetimes(FIRST, LAST, timezones=st.just(UTC))
CRONS = st.builds(
    lambda spec, zone, gap, fold: Cron(
        spec.text, tz=zone, day_rule=spec.rule, gap=gap, fold=fold
    ),
    spec=SPECS,
    zone=st.sampled_from(ZONES),
    gap=st.sampled_from(["end", "shift"]),
    fold=st.sampled_from(["first", "second", "both"]),
)
DAILIES = st.builds(
    lambda times, zone: Daily(*times, tz=zone),
    times=st.lists(
        st.times().map(lambda t: t.replace(microsecond=0)), min_size=1, max_size=5
    ),
    zone=st.sampled_from(ZONES),
)
EVERIES = st.builds(
    lambda delta, anchor: Every(delta, anchor=anchor),
    delta=st.timedeltas(timedelta(seconds=1), timedelta(days=400)),
    anchor=INSTANTS,
)
CALENDARS = st.builds(
    lambda weekend, days: Calendar(
        name="CO", weekend=frozenset(weekend), days=frozenset(days)
    ),
    weekend=st.sampled_from([(0, 6), (5,), (), (0, 5, 6)]),
    days=st.sets(st.dates(date(1971, 1, 1), date(2200, 1, 1)), max_size=30),
)
ROLLED = st.builds(
    lambda daily, calendar, roll: daily.excluding(calendar, roll=roll),
    daily=DAILIES,
    calendar=CALENDARS,
    roll=st.sampled_from(
        ["skip", "drop", "following", "preceding", "modified_following"]
    ),
)
NUMBERED = st.builds(
    lambda daily, n, calendar: daily.nth_business_day(n, calendar),
    daily=DAILIES,
    n=st.integers(-9, 9).filter(bool),
    calendar=CALENDARS,
)
LINES = st.one_of(
    CRONS,
    DAILIES,
    ROLLED,
    NUMBERED,
    EVERIES.filter(
        lambda every: not (every.interval % SECOND or every.anchor.microsecond)
    ),
)
UNIONS = st.lists(LINES, min_size=1, max_size=4).map(lambda parts: AnyOf(*parts))


def bounded(schedule: Schedule, start: datetime, span: timedelta) -> Schedule:
    """Between two instants, if there is a slot that runs; else from the first one on."""
    try:
        return schedule.between(start, start + span)
    except InvalidSchedule:
        return schedule.between(start)


BOUNDED = st.builds(
    bounded,
    schedule=st.one_of(LINES, UNIONS),
    start=INSTANTS,
    span=st.timedeltas(timedelta(microseconds=1), timedelta(days=4000)),
)
GRIDS = st.one_of(
    CRONS,
    DAILIES,
    EVERIES,
    ROLLED,
    NUMBERED,
    UNIONS,
    BOUNDED,
    st.builds(Once, INSTANTS),
)
SUCCESSIONS = st.builds(succeed, GRIDS, INSTANTS, GRIDS)
SCHEDULES = st.one_of(GRIDS, SUCCESSIONS)


# The laws.
# --------------------------------------------------------------------------------------------------------


def check_against_model(
    spec: Spec, near: tuple[str, datetime, int], gap: str, fold: str
) -> None:
    zone, change, minutes_off = near
    begin = change + minutes_off * MINUTE
    end = begin + 2 * DAY
    schedule = Cron(spec.text, tz=zone, day_rule=spec.rule, gap=gap, fold=fold)  # type: ignore[arg-type]
    expected = modelled(spec, ZoneInfo(zone), gap, fold, begin, end)
    assert list(schedule.slots(begin, end)) == expected
    assert schedule.count_between(begin, end) == len(expected)
    newest = schedule.latest_before(end + timedelta(microseconds=1), floor=begin)
    assert newest == max(expected, default=None)


@given(spec=SPECS, near=NEAR_CHANGES, **RULES)
@examples(150)
def test_slots_are_those_of_the_minutes_walked(
    spec: Spec, near: tuple[str, datetime, int], gap: str, fold: str
) -> None:
    """Around every change of offset, the slots are exactly the minutes that a patient observer
    would name.
    """
    check_against_model(spec, near, gap, fold)


@given(spec=VIXIE_SPECS, near=NEAR_CHANGES)
@examples(150)
def test_slots_are_cronsims(spec: Spec, near: tuple[str, datetime, int]) -> None:
    """By the rules of Debian's cron, cronsim names the same slots."""
    assume(spec.fixed or changes_by_whole_hours(near[0]))
    check_against_cronsim(spec, *near)


def check_against_cronsim(
    spec: Spec, zone: str, change: datetime, minutes_off: int
) -> None:
    begin = (
        change + minutes_off * MINUTE - DAY
    )  # cronsim must not be started within a fold
    end = begin + 3 * DAY
    schedule = Cron(spec.text, tz=zone, day_rule="vixie")
    assert list(schedule.slots(begin, end)) == simulated(
        spec.text, ZoneInfo(zone), begin, end
    )


@cache
def changes_by_whole_hours(name: str) -> bool:
    """Whether cronsim follows intervals through a zone's changes.

    It steps by hours of real time, so it passes over slots where local hours begin at another
    minute afterwards, and where a date begins in a gap it can look for its first minute for ever.
    """
    zone = ZoneInfo(name)
    after = [change.astimezone(zone) for change in changes(name)]
    before = [(change - MINUTE).astimezone(zone) for change in changes(name)]
    midnights = [
        local.replace(hour=0, minute=0).astimezone(UTC).astimezone(zone)
        for local in after
    ]
    return all(
        (old.minute, new.minute, midnight.time()) == (59, 0, time(0))
        for old, new, midnight in zip(before, after, midnights, strict=True)
    )


def simulated(
    expression: str, zone: ZoneInfo, begin: datetime, end: datetime
) -> list[datetime]:
    found = set()
    for slot in CronSim(expression, begin.astimezone(zone)):
        instant = slot.astimezone(UTC)
        if instant > end:
            break
        found.add(instant)
    return sorted(found)


@given(SCHEDULES, INSTANTS, st.floats(0, 1))
@examples(150)
def test_slots_rise_and_do_not_depend_on_the_start(
    schedule: Schedule, t: datetime, fraction: float
) -> None:
    """From any instant between two slots, the next one is the same; and each is later than the one
    before.
    """
    for _ in range(5):
        slot = schedule.next_after(t)
        if slot is None:
            return
        assert slot > t
        assert slot.tzinfo is UTC
        between = t + (slot - t) * fraction
        assert (
            schedule.next_after(min(between, slot - timedelta(microseconds=1))) == slot
        )
        assert schedule.latest_before(slot + timedelta(microseconds=1)) == slot
        t = slot


@given(SCHEDULES, INSTANTS, st.timedeltas(timedelta(0), timedelta(days=40)))
@examples(150)
def test_walking_back_and_counting_agree_with_walking_on(
    schedule: Schedule, a: datetime, span: timedelta
) -> None:
    """`slots`, `count_between` and `latest_before` say what repeated `next_after` says."""
    walked: list[datetime] = []
    t = a
    while (
        len(walked) < 50
        and (slot := schedule.next_after(t)) is not None
        and slot <= a + span
    ):
        walked.append(slot)
        t = slot
    b = walked[-1] if len(walked) == 50 else a + span
    assert list(schedule.slots(a, b)) == walked
    assert schedule.count_between(a, b) == len(walked)
    after_b = b + timedelta(microseconds=1)
    assert schedule.latest_before(after_b, floor=a) == (walked[-1] if walked else None)
    for earlier, later in pairwise(walked):
        assert schedule.latest_before(later) == earlier
        assert schedule.latest_before(later, floor=earlier) is None


@given(
    SCHEDULES,
    INSTANTS,
    st.timedeltas(timedelta(0), timedelta(days=4000)),
    st.floats(0, 1),
)
@examples(100)
def test_counts_add_up(
    schedule: Schedule, a: datetime, span: timedelta, cut: float
) -> None:
    """A count over years is the sum of the counts over its parts."""
    middle = a + span * cut
    whole = schedule.count_between(a, a + span)
    assert whole == schedule.count_between(a, middle) + schedule.count_between(
        middle, a + span
    )


@given(SCHEDULES)
@examples(100)
def test_text_is_complete(schedule: Schedule) -> None:
    """The text of a schedule makes an equal one."""
    assert parse_schedule(str(schedule)) == schedule
    assert str(parse_schedule(str(schedule))) == str(schedule)


# The same at length.
# ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(data=st.data(), spec=SPECS, **RULES)
@examples(4000)
def test_all_zones_by_minutes_walked(
    data: st.DataObject, spec: Spec, gap: str, fold: str
) -> None:
    """As above, over every zone that has transitions."""
    zone = data.draw(st.sampled_from(zones_that_change()))
    change = data.draw(st.sampled_from(changes(zone)))
    check_against_model(
        spec, (zone, change, data.draw(st.integers(-2 * 24 * 60, 60))), gap, fold
    )


@pytest.mark.slow
@given(data=st.data(), spec=VIXIE_SPECS)
@examples(4000)
def test_all_zones_by_cronsim(data: st.DataObject, spec: Spec) -> None:
    """As above, over every zone that has transitions."""
    zone = data.draw(st.sampled_from(zones_that_change()))
    assume(spec.fixed or changes_by_whole_hours(zone))
    change = data.draw(st.sampled_from(changes(zone)))
    check_against_cronsim(spec, zone, change, data.draw(st.integers(-2 * 24 * 60, 60)))


WHOLE_DAY = ("*", frozenset(range(32)))
NIGHTLY = [
    Spec(
        ("*/20", frozenset({0, 20, 40})),
        ("0-4", frozenset(range(5))),
        WHOLE_DAY,
        WHOLE_DAY,
    ),
    Spec(
        ("0,30", frozenset({0, 30})),
        ("0-4", frozenset(range(5))),
        WHOLE_DAY,
        WHOLE_DAY,
    ),
    Spec(
        ("15", frozenset({15})),
        ("*/2", frozenset(range(0, 24, 2))),
        WHOLE_DAY,
        WHOLE_DAY,
    ),
    Spec(("30", frozenset({30})), ("2", frozenset({2})), WHOLE_DAY, WHOLE_DAY),
    Spec(
        ("0", frozenset({0})),
        ("0", frozenset({0})),
        WHOLE_DAY,
        ("1-7", frozenset(range(7))),
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gap", ["end", "shift", "skip"])
@pytest.mark.parametrize("fold", ["first", "second", "both"])
def test_every_change_of_every_zone(gap: str, fold: str) -> None:
    """Not drawn but gone through: all that changed clocks from 2024 to 2036, by minutes walked and
    by cronsim.
    """
    found = every_change()
    assert len(found) > 700
    for zone, change in found:
        for spec in NIGHTLY:
            check_against_model(spec, (zone, change, -12 * 60), gap, fold)
            if (gap, fold) == ("end", "first") and (
                spec.fixed or changes_by_whole_hours(zone)
            ):
                check_against_cronsim(spec, zone, change, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "zone", ["Europe/Vienna", "Australia/Lord_Howe", "America/Santiago"]
)
def test_years_of_quarter_hours_by_minutes_walked(zone: str) -> None:
    """Over thirteen years without a break, intervals and fixed times are those of the model."""
    quarters, whole = frozenset(range(0, 60, 15)), frozenset(range(32))
    begin = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
    end = datetime(LAST_YEAR, 12, 31, tzinfo=UTC)
    for minute in ("*/15", "0,15,30,45"):
        spec = Spec(
            (minute, quarters),
            ("0-3", frozenset(range(4))),
            ("*", whole),
            ("*", whole),
        )
        expected = modelled(spec, ZoneInfo(zone), "end", "first", begin, end)
        assert list(Cron(spec.text, tz=zone).slots(begin, end)) == expected


def test_the_model_knows_a_worked_night() -> None:
    """The model itself, on the night of 29 March 2026 in Vienna."""
    spec = Spec(
        ("30", frozenset({30})),
        ("2", frozenset({2})),
        ("*", frozenset(range(32))),
        ("*", frozenset(range(7))),
    )
    begin = datetime(2026, 3, 28, 12, tzinfo=UTC)
    end = datetime(2026, 3, 29, 12, tzinfo=UTC)
    zone = ZoneInfo("Europe/Vienna")
    assert [s.time() for s in modelled(spec, zone, "end", "first", begin, end)] == [
        time(1, 0)
    ]
    assert [s.time() for s in modelled(spec, zone, "shift", "first", begin, end)] == [
        time(1, 30)
    ]
    assert modelled(spec, zone, "skip", "first", begin, end) == []
