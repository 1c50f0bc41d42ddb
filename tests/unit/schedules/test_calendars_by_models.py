"""Slots around business calendars and of combined schedules, against models that compute
nothing.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.schedules.models import (
    DAY,
    FIRST_YEAR,
    LAST_YEAR,
    MINUTE,
    NEAR_CHANGES,
    RULES,
    SPECS,
    Spec,
    changes,
    examples,
    modelled,
    zones_that_change,
)

from slotwise import AnyOf, Calendar, Cron, InvalidSchedule, Schedule

TICK = timedelta(microseconds=1)
ROLLS = ["skip", "drop", "following", "preceding", "modified_following"]


# The model: days looked at one by one.
# --------------------------------------------------------------------------


def around(day: date, reach: int = 45) -> list[date]:
    return [day + n * DAY for n in range(-reach, reach + 1)]


def rolled(day: date, roll: str, calendar: Calendar) -> date | None:
    """Where the slots of a day come to be."""
    if calendar.is_business_day(day):
        return day
    later = next(
        found
        for found in (day + n * DAY for n in range(1, 500))
        if calendar.is_business_day(found)
    )
    earlier = next(
        found
        for found in (day - n * DAY for n in range(1, 500))
        if calendar.is_business_day(found)
    )
    return {
        "drop": None,
        "following": later,
        "preceding": earlier,
        "modified_following": later if later.month == day.month else earlier,
    }[roll]


def rolled_dates(
    spec: Spec, near: date, roll: str, calendar: Calendar, reach: int = 45
) -> set[date | None]:
    named = [
        day
        for day in around(near, reach)
        if spec.date_matches(datetime(day.year, day.month, day.day))  # noqa: DTZ001
    ]
    return {rolled(day, roll, calendar) for day in named}


def numbered_dates(spec: Spec, near: date, n: int, calendar: Calendar) -> set[date]:
    found = set()
    for year, month in {(day.year, day.month) for day in around(near)}:
        days = [
            date(year, month, day + 1) for day in range(monthrange(year, month)[1])
        ]
        business = [day for day in days if calendar.is_business_day(day)]
        if len(business) >= abs(n):
            found.add(business[n - 1 if n > 0 else n])
    return {
        day
        for day in found
        if spec.date_matches(datetime(day.year, day.month, day.day))  # noqa: DTZ001
    }


# What is drawn: calendars with days about the change of the clocks, and blocks that cross months.
# ----------------


def calendars(near: date) -> st.SearchStrategy[Calendar]:
    single = st.integers(-20, 20).map(lambda n: {near + n * DAY})
    block = st.tuples(st.integers(-20, 10), st.integers(2, 12)).map(
        lambda b: {near + n * DAY for n in range(b[0], b[0] + b[1])}
    )
    days = st.lists(st.one_of(single, block), max_size=5).map(
        lambda sets: frozenset[date]().union(*sets)
    )
    weekends = st.sampled_from(
        [frozenset({0, 6}), frozenset({5, 6}), frozenset({0}), frozenset[int]()]
    )
    return st.builds(
        lambda weekend, days, worked: Calendar(
            name="AT", weekend=weekend, days=days, worked=worked - days
        ),
        weekends,
        days,
        days,
    )


def check(
    schedule: Schedule, expected: list[datetime], begin: datetime, end: datetime
) -> None:
    assert list(schedule.slots(begin, end)) == expected
    assert schedule.count_between(begin, end) == len(expected)
    assert schedule.latest_before(end + TICK, floor=begin) == max(
        expected, default=None
    )
    for earlier, later in pairwise(expected[-5:]):
        assert schedule.latest_before(later) == earlier


def made(make: Callable[[], Schedule]) -> Schedule | None:
    """None if nothing is left of it."""
    try:
        return make()
    except InvalidSchedule as refusal:
        if "never fires" in str(refusal):
            return None
        raise


def check_roll(
    spec: Spec,
    near: tuple[str, datetime, int],
    gap: str,
    fold: str,
    roll: str,
    calendar: Calendar,
) -> None:
    zone, change, minutes_off = near
    begin = change + minutes_off * MINUTE
    end = begin + 2 * DAY
    base = Cron(spec.text, tz=zone, day_rule=spec.rule, gap=gap, fold=fold)  # type: ignore[arg-type]
    schedule = made(lambda: base.excluding(calendar, roll=roll))  # type: ignore[arg-type]
    if schedule is None:
        return
    dates = rolled_dates(
        spec, change.date(), "drop" if roll == "skip" else roll, calendar
    )
    expected = modelled(spec, ZoneInfo(zone), gap, fold, begin, end, dates)  # type: ignore[arg-type]
    if roll != "skip":
        check(schedule, expected, begin, end)
        return
    everything = modelled(spec, ZoneInfo(zone), gap, fold, begin, end)
    check(schedule, everything, begin, end)
    check(schedule.running, expected, begin, end)
    assert [slot for slot in everything if schedule.runs(slot)] == expected
    passed_over = sorted({*everything} - {*expected})
    assert schedule.skipped_after(begin, end) == min(passed_over, default=None)
    for earlier, later in pairwise(passed_over[:5]):
        assert schedule.skipped_after(earlier, end) == later


def check_number(
    spec: Spec,
    near: tuple[str, datetime, int],
    gap: str,
    fold: str,
    n: int,
    calendar: Calendar,
) -> None:
    zone, change, minutes_off = near
    begin = change + minutes_off * MINUTE
    base = Cron(spec.text, tz=zone, day_rule=spec.rule, gap=gap, fold=fold)  # type: ignore[arg-type]
    schedule = made(lambda: base.nth_business_day(n, calendar))
    if schedule is not None:
        dates = numbered_dates(spec, change.date(), n, calendar)
        check(
            schedule,
            modelled(spec, ZoneInfo(zone), gap, fold, begin, begin + 2 * DAY, dates),
            begin,
            begin + 2 * DAY,
        )


def check_union(
    specs: list[Spec],
    zones: list[str],
    change: datetime,
    minutes_off: int,
    gap: str,
    fold: str,
) -> None:
    begin = change + minutes_off * MINUTE
    end = begin + 2 * DAY
    parts = [
        Cron(spec.text, tz=zone, day_rule=spec.rule, gap=gap, fold=fold)  # type: ignore[arg-type]
        for spec, zone in zip(specs, zones, strict=False)
    ]
    expected = {
        slot
        for spec, zone in zip(specs, zones, strict=False)
        for slot in modelled(spec, ZoneInfo(zone), gap, fold, begin, end)
    }
    check(AnyOf(*parts), sorted(expected), begin, end)
    low, high = begin + 9 * MINUTE, end - 7 * MINUTE
    if any(low <= slot < high for slot in expected):
        check(
            AnyOf(*parts).between(low, high),
            [s for s in sorted(expected) if low <= s < high],
            begin,
            end,
        )


# The laws.
# --------------------------------------------------------------------------------------------------------


@given(
    data=st.data(), spec=SPECS, near=NEAR_CHANGES, roll=st.sampled_from(ROLLS), **RULES
)
@examples(100)
def test_rolls_are_those_of_the_days_walked(
    data: st.DataObject,
    spec: Spec,
    near: tuple[str, datetime, int],
    roll: str,
    gap: str,
    fold: str,
) -> None:
    """Around holidays, weekends and changes of the clocks at once, slots are where a patient
    observer puts them.
    """
    check_roll(spec, near, gap, fold, roll, data.draw(calendars(near[1].date())))


@given(
    data=st.data(),
    spec=SPECS,
    near=NEAR_CHANGES,
    n=st.integers(-23, 23).filter(bool),
    **RULES,
)
@examples(100)
def test_numbered_business_days_are_those_of_the_days_walked(
    data: st.DataObject,
    spec: Spec,
    near: tuple[str, datetime, int],
    n: int,
    gap: str,
    fold: str,
) -> None:
    """The n-th business day of a month, whatever is closed in it."""
    check_number(spec, near, gap, fold, n, data.draw(calendars(near[1].date())))


PLACES = st.dates(date(FIRST_YEAR, 1, 1), date(LAST_YEAR, 12, 31))


@given(data=st.data(), spec=SPECS, near=PLACES, roll=st.sampled_from(ROLLS[1:]))
@examples(100)
def test_rolled_days_are_those_walked(
    data: st.DataObject, spec: Spec, near: date, roll: str
) -> None:
    """The days alone, over seven weeks about closed weeks and ends of months."""
    calendar = data.draw(calendars(near))
    base = Cron(f"0 12 {spec.day[0]} * {spec.weekday[0]}", day_rule=spec.rule)  # type: ignore[arg-type]
    schedule = made(lambda: base.excluding(calendar, roll=roll))  # type: ignore[arg-type]
    if schedule is None:
        return
    begin = datetime(near.year, near.month, near.day, tzinfo=UTC) - 24 * DAY
    expected = {
        day
        for day in rolled_dates(spec, near, roll, calendar, reach=70)
        if day is not None
    }
    found = [slot.date() for slot in schedule.slots(begin, begin + 48 * DAY)]
    assert found == sorted(
        day for day in expected if begin.date() <= day < begin.date() + 48 * DAY
    )
    assert schedule.count_between(begin, begin + 48 * DAY) == len(found)


DENSE = st.sampled_from(
    ["3-59/4 0-23", "5-55/10 0-23", "7,27 0-12", "11-50/13 0-9", "*/7 *"]
)


@given(near=NEAR_CHANGES, times=st.lists(DENSE, min_size=2, max_size=3), **RULES)
@examples(40)
def test_dense_unions_are_counted_as_they_are_walked(
    near: tuple[str, datetime, int], times: list[str], gap: str, fold: str
) -> None:
    """Where days are compared as a whole, changes of the clocks are in them."""
    zone, change, minutes_off = near
    begin = change + minutes_off * MINUTE
    union = AnyOf(*(Cron(f"{time} * * *", zone, gap=gap, fold=fold) for time in times))  # type: ignore[arg-type]
    for end in (begin + DAY, begin + 2 * DAY):
        assert union.count_between(begin, end) == len(list(union.slots(begin, end)))


UNIONS = {
    "specs": st.lists(SPECS, min_size=2, max_size=4),
    "zones": st.lists(
        st.sampled_from(["UTC", "Europe/Vienna", "Australia/Lord_Howe"]),
        min_size=4,
        max_size=4,
    ),
}


@pytest.mark.extended
@given(near=NEAR_CHANGES, **UNIONS, **RULES)
@examples(60)
def test_unions_are_those_of_the_minutes_walked(
    near: tuple[str, datetime, int],
    specs: list[Spec],
    zones: list[str],
    gap: str,
    fold: str,
) -> None:
    """Several schedules in several zones: each instant once, counted exactly, also within
    bounds.
    """
    check_union(specs, [near[0], *zones], near[1], near[2], gap, fold)


@pytest.mark.extended
@given(
    data=st.data(),
    zone=st.sampled_from(["UTC", "Asia/Tokyo", "America/Bogota"]),
    specs=UNIONS["specs"],
)
@examples(40)
def test_unions_without_holidays_are_cronsims(
    data: st.DataObject, zone: str, specs: list[Spec]
) -> None:
    """What cronsim names, one by one, less the days of a calendar."""
    begin = datetime(data.draw(st.integers(FIRST_YEAR, LAST_YEAR)), 12, 20, tzinfo=UTC)
    end, info = begin + 9 * DAY, ZoneInfo(zone)
    calendar = data.draw(calendars(begin.date()))
    expected = set()
    for spec in specs:
        for slot in CronSim(spec.text, begin.astimezone(info)):
            if slot > end:
                break
            if calendar.is_business_day(slot.date()):
                expected.add(slot.astimezone(UTC))
    union = made(
        lambda: AnyOf(
            *(Cron(spec.text, zone, day_rule="vixie") for spec in specs)
        ).excluding(calendar)
    )
    if union is not None:
        check(union.running, sorted(expected), begin, end)


# The same at length.
# ----------------------------------------------------------------------------------------------


def near_changes_of_all_zones() -> st.SearchStrategy[tuple[str, datetime, int]]:
    return st.sampled_from(zones_that_change()).flatmap(
        lambda zone: st.tuples(
            st.just(zone),
            st.sampled_from(changes(zone)),
            st.integers(-2 * 24 * 60, 60),
        )
    )


EVERYWHERE = st.deferred(near_changes_of_all_zones)


@pytest.mark.slow
@given(
    data=st.data(), spec=SPECS, near=EVERYWHERE, roll=st.sampled_from(ROLLS), **RULES
)
@examples(3000)
def test_rolls_in_all_zones(
    data: st.DataObject,
    spec: Spec,
    near: tuple[str, datetime, int],
    roll: str,
    gap: str,
    fold: str,
) -> None:
    """As above, over every zone that has transitions."""
    check_roll(spec, near, gap, fold, roll, data.draw(calendars(near[1].date())))


@pytest.mark.slow
@given(
    data=st.data(),
    spec=SPECS,
    near=EVERYWHERE,
    n=st.integers(-23, 23).filter(bool),
    **RULES,
)
@examples(2000)
def test_numbered_business_days_in_all_zones(
    data: st.DataObject,
    spec: Spec,
    near: tuple[str, datetime, int],
    n: int,
    gap: str,
    fold: str,
) -> None:
    """As above, over every zone that has transitions."""
    check_number(spec, near, gap, fold, n, data.draw(calendars(near[1].date())))


@pytest.mark.slow
@given(near=EVERYWHERE, **UNIONS, **RULES)
@examples(1500)
def test_unions_in_all_zones(
    near: tuple[str, datetime, int],
    specs: list[Spec],
    zones: list[str],
    gap: str,
    fold: str,
) -> None:
    """As above, over every zone that has transitions."""
    check_union(specs, [near[0], *zones], near[1], near[2], gap, fold)
