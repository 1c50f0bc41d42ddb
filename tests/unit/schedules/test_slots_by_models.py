"""Slots against two independent models: minutes of local time walked one by one, and cronsim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slotwise.schedules import Cron, Daily, Every, Schedule, parse_schedule, succeed

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
FIRST_YEAR, LAST_YEAR = 2024, 2036

ZONES = (
    "Africa/Cairo",  # changes at midnight, north
    "Africa/Casablanca",  # twice a year around Ramadan
    "America/Havana",  # midnight gap
    "America/New_York",
    "America/Santiago",  # midnight, south
    "Antarctica/Troll",  # by two hours
    "Asia/Beirut",  # midnight
    "Australia/Lord_Howe",  # by half an hour, south
    "Australia/Sydney",
    "Europe/Dublin",  # winter time is the exception
    "Europe/Vienna",
    "Pacific/Chatham",  # +12:45
)


# The model: every minute looked at, nothing computed. ---------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Spec:
    """An expression with what each field means, said independently of the parser."""

    minute: tuple[str, frozenset[int]]
    hour: tuple[str, frozenset[int]]
    day: tuple[str, frozenset[int]]
    weekday: tuple[str, frozenset[int]]
    rule: str = "vixie"

    @property
    def text(self) -> str:
        return f"{self.minute[0]} {self.hour[0]} {self.day[0]} * {self.weekday[0]}"

    def __repr__(self) -> str:
        return f"<{self.text}, {self.rule}>"

    @property
    def fixed(self) -> bool:
        return not (self.minute[0].startswith("*") or self.hour[0].startswith("*"))

    def date_matches(self, day: datetime) -> bool:
        of_month, of_week = day.day in self.day[1], day.isoweekday() % 7 in self.weekday[1]
        both = {
            "and": True,
            "vixie": self.day[0].startswith("*") or self.weekday[0].startswith("*"),
            "or": "*" in (self.day[0], self.weekday[0]),
        }[self.rule]
        return of_month and of_week if both else of_month or of_week

    def matches(self, local: datetime) -> bool:
        return local.minute in self.minute[1] and local.hour in self.hour[1] and self.date_matches(local)


def modelled(spec: Spec, zone: ZoneInfo, gap: str, fold: str, begin: datetime, end: datetime) -> list[datetime]:
    """The slots with begin < slot <= end, by walking every minute."""
    if not spec.fixed:
        found = [m for m in minutes(begin - 2 * MINUTE, end) if spec.matches(m.astimezone(zone))]
    else:
        days = (begin.replace(tzinfo=None) - 3 * DAY, end.replace(tzinfo=None) + 3 * DAY)
        named = [local for local in minutes(*days) if spec.matches(local)]
        found = [slot for local in named for slot in instants(local, zone, gap, fold)]
    return sorted({slot for slot in found if begin < slot <= end})


def minutes(begin: datetime, end: datetime) -> Iterator[datetime]:
    minute = begin.replace(second=0, microsecond=0)
    while minute <= end:
        yield minute
        minute += MINUTE


def instants(local: datetime, zone: ZoneInfo, gap: str, fold: str) -> list[datetime]:
    """What a fixed local time comes to."""
    first = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    second = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) != local:  # in a gap
        if gap == "end":
            before = second.astimezone(zone).utcoffset()
            return [next(m for m in minutes(second, second + 3 * DAY) if m.astimezone(zone).utcoffset() != before)]
        return [first] if gap == "shift" else []
    return {"first": [first], "second": [second], "both": [first, second]}[fold]


@cache
def changes(zone: str) -> list[datetime]:
    """The minutes at which a zone changes its offset, in the years tried."""
    info = ZoneInfo(zone)
    days = [datetime(FIRST_YEAR, 1, 2, tzinfo=UTC) + n * DAY for n in range(366 * (LAST_YEAR - FIRST_YEAR + 1))]
    offsets = [day.astimezone(info).utcoffset() for day in days]
    return [
        next(m for m in minutes(low, high) if m.astimezone(info).utcoffset() != old)
        for (low, high), (old, new) in zip(pairwise(days), pairwise(offsets), strict=True)
        if old != new
    ]


# What is drawn. -------------------------------------------------------------------------------------------------


def fields(low: int, high: int, *, stars: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A field's text with its values. Weekdays are drawn without `1/2`, which to cronsim goes up to 7."""
    whole = frozenset(range(low, high + 1))
    value = st.integers(low, high)
    step = st.integers(2, (high - low + 1) // 2)
    opened = st.tuples(value, step).map(lambda p: (f"{p[0]}/{p[1]}", frozenset(range(p[0], high + 1, p[1]))))
    return st.one_of(
        *[st.just(("*", whole))] * stars,
        step.map(lambda n: (f"*/{n}", frozenset(range(low, high + 1, n)))),
        value.map(lambda n: (str(n), frozenset({n}))),
        st.frozensets(value, min_size=1, max_size=4).map(lambda s: (",".join(map(str, s)), s)),
        st.tuples(value, value).map(sorted).map(lambda p: (f"{p[0]}-{p[1]}", frozenset(range(p[0], p[1] + 1)))),
        *[opened] * (high != 6),
    )


HOURS = st.one_of(fields(0, 23, stars=1), st.sampled_from([(str(h), frozenset({h})) for h in (0, 1, 2, 3, 23)]))
SPECS = st.builds(
    Spec,
    minute=fields(0, 59, stars=1),
    hour=HOURS,
    day=fields(1, 31, stars=6),
    weekday=fields(0, 6, stars=6),
    rule=st.sampled_from(["or", "and", "vixie"]),
)
VIXIE_SPECS = SPECS.map(lambda spec: Spec(spec.minute, spec.hour, spec.day, spec.weekday))
NEAR_CHANGES = st.sampled_from(ZONES).flatmap(
    lambda zone: st.tuples(st.just(zone), st.sampled_from(changes(zone)), st.integers(-2 * 24 * 60, 60))
)
INSTANTS = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
CRONS = st.builds(
    lambda spec, zone, gap, fold: Cron(spec.text, tz=zone, day_rule=spec.rule, gap=gap, fold=fold),
    spec=SPECS,
    zone=st.sampled_from(ZONES),
    gap=st.sampled_from(["end", "shift"]),
    fold=st.sampled_from(["first", "second", "both"]),
)
DAILIES = st.builds(
    lambda times, zone: Daily(*times, tz=zone),
    times=st.lists(st.times().map(lambda t: t.replace(microsecond=0)), min_size=1, max_size=5),
    zone=st.sampled_from(ZONES),
)
EVERIES = st.builds(
    lambda delta, anchor: Every(delta, anchor=anchor),
    delta=st.timedeltas(timedelta(seconds=1), timedelta(days=400)),
    anchor=INSTANTS,
)
GRIDS = st.one_of(CRONS, DAILIES, EVERIES)
SUCCESSIONS = st.builds(succeed, GRIDS, INSTANTS, GRIDS)
SCHEDULES = st.one_of(GRIDS, SUCCESSIONS)


# The laws. --------------------------------------------------------------------------------------------------------


def examples(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(max_examples=count, deadline=None)


def check_against_model(spec: Spec, near: tuple[str, datetime, int], gap: str, fold: str) -> None:
    zone, change, minutes_off = near
    begin = change + minutes_off * MINUTE
    end = begin + 2 * DAY
    schedule = Cron(spec.text, tz=zone, day_rule=spec.rule, gap=gap, fold=fold)  # type: ignore[arg-type]
    expected = modelled(spec, ZoneInfo(zone), gap, fold, begin, end)
    assert list(schedule.slots(begin, end)) == expected
    assert schedule.count_between(begin, end) == len(expected)
    newest = schedule.latest_before(end + timedelta(microseconds=1), floor=begin)
    assert newest == max(expected, default=None)


RULES = {"gap": st.sampled_from(["end", "shift"]), "fold": st.sampled_from(["first", "second", "both"])}


@given(spec=SPECS, near=NEAR_CHANGES, **RULES)
@examples(200)
def test_slots_are_those_of_the_minutes_walked(
    spec: Spec, near: tuple[str, datetime, int], gap: str, fold: str
) -> None:
    """Around every change of offset, the slots are exactly the minutes that a patient observer would name."""
    check_against_model(spec, near, gap, fold)


@given(spec=VIXIE_SPECS, near=NEAR_CHANGES)
@examples(200)
def test_slots_are_cronsims(spec: Spec, near: tuple[str, datetime, int]) -> None:
    """By the rules of Debian's cron, cronsim names the same slots."""
    check_against_cronsim(spec, *near)


def check_against_cronsim(spec: Spec, zone: str, change: datetime, minutes_off: int) -> None:
    assume(spec.fixed or changes_by_whole_hours(zone))
    begin = change + minutes_off * MINUTE - DAY  # cronsim must not be started within a fold
    end = begin + 3 * DAY
    schedule = Cron(spec.text, tz=zone, day_rule="vixie")
    assert list(schedule.slots(begin, end)) == simulated(spec.text, ZoneInfo(zone), begin, end)


@cache
def changes_by_whole_hours(name: str) -> bool:
    """Whether cronsim follows intervals through a zone's changes.

    It steps by hours of real time, so it passes over slots where local hours begin at another minute afterwards,
    and where a date begins in a gap it can look for its first minute for ever.
    """
    zone = ZoneInfo(name)
    after = [change.astimezone(zone) for change in changes(name)]
    before = [(change - MINUTE).astimezone(zone) for change in changes(name)]
    midnights = [local.replace(hour=0, minute=0).astimezone(UTC).astimezone(zone) for local in after]
    return all(
        (old.minute, new.minute, midnight.time()) == (59, 0, time(0))
        for old, new, midnight in zip(before, after, midnights, strict=True)
    )


def simulated(expression: str, zone: ZoneInfo, begin: datetime, end: datetime) -> list[datetime]:
    found = set()
    for slot in CronSim(expression, begin.astimezone(zone)):
        instant = slot.astimezone(UTC)
        if instant > end:
            break
        found.add(instant)
    return sorted(found)


@given(SCHEDULES, INSTANTS, st.floats(0, 1))
@examples(200)
def test_slots_rise_and_do_not_depend_on_the_start(schedule: Schedule, t: datetime, fraction: float) -> None:
    """From any instant between two slots, the next one is the same; and each is later than the one before."""
    for _ in range(5):
        slot = schedule.next_after(t)
        if slot is None:
            return
        assert slot > t
        assert slot.tzinfo is UTC
        between = t + (slot - t) * fraction
        assert schedule.next_after(min(between, slot - timedelta(microseconds=1))) == slot
        assert schedule.latest_before(slot + timedelta(microseconds=1)) == slot
        t = slot


@given(SCHEDULES, INSTANTS, st.timedeltas(timedelta(0), timedelta(days=40)))
@examples(200)
def test_walking_back_and_counting_agree_with_walking_on(schedule: Schedule, a: datetime, span: timedelta) -> None:
    """`slots`, `count_between` and `latest_before` say what repeated `next_after` says."""
    walked: list[datetime] = []
    t = a
    while len(walked) < 50 and (slot := schedule.next_after(t)) is not None and slot <= a + span:
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


@given(SCHEDULES, INSTANTS, st.timedeltas(timedelta(0), timedelta(days=4000)), st.floats(0, 1))
@examples(100)
def test_counts_add_up(schedule: Schedule, a: datetime, span: timedelta, cut: float) -> None:
    """A count over years is the sum of the counts over its parts."""
    middle = a + span * cut
    whole = schedule.count_between(a, a + span)
    assert whole == schedule.count_between(a, middle) + schedule.count_between(middle, a + span)


@given(SCHEDULES)
@examples(100)
def test_text_is_complete(schedule: Schedule) -> None:
    """The text of a schedule makes an equal one."""
    assert parse_schedule(str(schedule)) == schedule
    assert str(parse_schedule(str(schedule))) == str(schedule)


# The same at length. ----------------------------------------------------------------------------------------------


@cache
def zones_that_change() -> list[str]:
    return [zone for zone in sorted(available_timezones()) if zone != "localtime" and changes(zone)]


@pytest.mark.slow
@given(data=st.data(), spec=SPECS, **RULES)
@examples(4000)
def test_all_zones_by_minutes_walked(data: st.DataObject, spec: Spec, gap: str, fold: str) -> None:
    """As above, over every zone that has transitions."""
    zone = data.draw(st.sampled_from(zones_that_change()))
    change = data.draw(st.sampled_from(changes(zone)))
    check_against_model(spec, (zone, change, data.draw(st.integers(-2 * 24 * 60, 60))), gap, fold)


@pytest.mark.slow
@given(data=st.data(), spec=VIXIE_SPECS)
@examples(4000)
def test_all_zones_by_cronsim(data: st.DataObject, spec: Spec) -> None:
    """As above, over every zone that has transitions."""
    zone = data.draw(st.sampled_from(zones_that_change()))
    change = data.draw(st.sampled_from(changes(zone)))
    check_against_cronsim(spec, zone, change, data.draw(st.integers(-2 * 24 * 60, 60)))


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["Europe/Vienna", "Australia/Lord_Howe", "America/Santiago"])
def test_years_of_quarter_hours_by_minutes_walked(zone: str) -> None:
    """Over thirteen years without a break, intervals and fixed times are those of the model."""
    quarters, whole = frozenset(range(0, 60, 15)), frozenset(range(32))
    begin, end = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(LAST_YEAR, 12, 31, tzinfo=UTC)
    for minute in ("*/15", "0,15,30,45"):
        spec = Spec((minute, quarters), ("0-3", frozenset(range(4))), ("*", whole), ("*", whole))
        expected = modelled(spec, ZoneInfo(zone), "end", "first", begin, end)
        assert list(Cron(spec.text, tz=zone).slots(begin, end)) == expected


def test_the_model_knows_a_worked_night() -> None:
    """The model itself, on the night of 29 March 2026 in Vienna."""
    spec = Spec(("30", frozenset({30})), ("2", frozenset({2})), ("*", frozenset(range(32))), ("*", frozenset(range(7))))
    begin, end = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 29, 12, tzinfo=UTC)
    zone = ZoneInfo("Europe/Vienna")
    assert [s.time() for s in modelled(spec, zone, "end", "first", begin, end)] == [time(1, 0)]
    assert [s.time() for s in modelled(spec, zone, "shift", "first", begin, end)] == [time(1, 30)]
    assert modelled(spec, zone, "skip", "first", begin, end) == []
