"""What the slots should be, said independently of the code: every minute of local time looked at,
nothing computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import settings
from hypothesis import strategies as st

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


# The model.
# -----------------------------------------------------------------------------------------------------


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
        of_month, of_week = (
            day.day in self.day[1],
            day.isoweekday() % 7 in self.weekday[1],
        )
        both = {
            "and": True,
            "vixie": self.day[0].startswith("*") or self.weekday[0].startswith("*"),
            "or": "*" in (self.day[0], self.weekday[0]),
        }[self.rule]
        return of_month and of_week if both else of_month or of_week

    def time_matches(self, local: datetime) -> bool:
        return local.minute in self.minute[1] and local.hour in self.hour[1]


def modelled(
    spec: Spec,
    zone: ZoneInfo,
    gap: str,
    fold: str,
    begin: datetime,
    end: datetime,
    dates: Collection[date] | None = None,
) -> list[datetime]:
    """The slots with begin < slot <= end, by walking every minute; on these dates, else on the
    spec's own.
    """

    def matches(local: datetime) -> bool:
        return spec.time_matches(local) and (
            spec.date_matches(local) if dates is None else local.date() in dates
        )

    if not spec.fixed:
        found = [
            m for m in minutes(begin - 2 * MINUTE, end) if matches(m.astimezone(zone))
        ]
    else:
        days = (
            begin.replace(tzinfo=None) - 3 * DAY,
            end.replace(tzinfo=None) + 3 * DAY,
        )
        named = [local for local in minutes(*days) if matches(local)]
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
            return [
                next(
                    m
                    for m in minutes(second, second + 3 * DAY)
                    if m.astimezone(zone).utcoffset() != before
                )
            ]
        return [first] if gap == "shift" else []
    return {"first": [first], "second": [second], "both": [first, second]}[fold]


@cache
def changes(zone: str) -> list[datetime]:
    """The minutes at which a zone changes its offset, in the years tried."""
    info = ZoneInfo(zone)
    days = [
        datetime(FIRST_YEAR, 1, 2, tzinfo=UTC) + n * DAY
        for n in range(366 * (LAST_YEAR - FIRST_YEAR + 1))
    ]
    offsets = [day.astimezone(info).utcoffset() for day in days]
    return [
        next(m for m in minutes(low, high) if m.astimezone(info).utcoffset() != old)
        for (low, high), (old, new) in zip(
            pairwise(days), pairwise(offsets), strict=True
        )
        if old != new
    ]


# What is drawn.
# -------------------------------------------------------------------------------------------------


def fields(
    low: int, high: int, *, stars: int
) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A field's text with its values. Weekdays are drawn without `1/2`, which to cronsim goes up
    to 7.
    """
    whole = frozenset(range(low, high + 1))
    value = st.integers(low, high)
    step = st.integers(2, (high - low + 1) // 2)
    opened = st.tuples(value, step).map(
        lambda p: (f"{p[0]}/{p[1]}", frozenset(range(p[0], high + 1, p[1])))
    )
    return st.one_of(
        *[st.just(("*", whole))] * stars,
        step.map(lambda n: (f"*/{n}", frozenset(range(low, high + 1, n)))),
        value.map(lambda n: (str(n), frozenset({n}))),
        st.frozensets(value, min_size=1, max_size=4).map(
            lambda s: (",".join(map(str, s)), s)
        ),
        st.tuples(value, value)
        .map(sorted)
        .map(lambda p: (f"{p[0]}-{p[1]}", frozenset(range(p[0], p[1] + 1)))),
        *[opened] * (high != 6),
    )


HOURS = st.one_of(
    fields(0, 23, stars=1),
    st.sampled_from([(str(h), frozenset({h})) for h in (0, 1, 2, 3, 23)]),
)
SPECS = st.builds(
    Spec,
    minute=fields(0, 59, stars=1),
    hour=HOURS,
    day=fields(1, 31, stars=6),
    weekday=fields(0, 6, stars=6),
    rule=st.sampled_from(["or", "and", "vixie"]),
)
NEAR_CHANGES = st.sampled_from(ZONES).flatmap(
    lambda zone: st.tuples(
        st.just(zone), st.sampled_from(changes(zone)), st.integers(-2 * 24 * 60, 60)
    )
)


@cache
def zones_that_change() -> list[str]:
    return [
        zone
        for zone in sorted(available_timezones())
        if zone != "localtime" and changes(zone)
    ]


@cache
def every_change() -> list[tuple[str, datetime]]:
    """Each change of clocks in the years tried; of zones that change together, by the same, one is
    looked at.
    """
    found: dict[object, tuple[str, datetime]] = {}
    for zone in zones_that_change():
        info = ZoneInfo(zone)
        for change in changes(zone):
            offsets = (
                (change - MINUTE).astimezone(info).utcoffset(),
                change.astimezone(info).utcoffset(),
            )
            found.setdefault((change, *offsets), (zone, change))
    return list(found.values())


def examples(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Settings for so many examples with ``dev.py test --all``, else for half of them."""
    return settings(
        max_examples=count if "TESTS_ALL" in os.environ else count // 2, deadline=None
    )


RULES = {
    "gap": st.sampled_from(["end", "shift"]),
    "fold": st.sampled_from(["first", "second", "both"]),
}
