"""Which days a cron expression picks."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta
from itertools import islice

import pytest
from croniter import croniter

from slotwise import Cron

BEGIN, END = (
    datetime(2023, 12, 31, 23, 59, tzinfo=UTC),
    datetime(2029, 12, 31, tzinfo=UTC),
)
LONGER_END = datetime(2132, 12, 31, tzinfo=UTC)


def shown(value: object) -> str | None:
    """A readable id; None leaves a function to pytest, whose number is the same in every test
    process.
    """
    return value if isinstance(value, str) else None


def picked(expression: str, *, end: datetime = END, **options: str) -> list[date]:
    schedule = Cron(f"0 0 {expression}", **options)  # type: ignore[arg-type]
    return [slot.date() for slot in schedule.slots(BEGIN, end)]


def days(end: datetime = END) -> list[date]:
    first = BEGIN.date() + timedelta(days=1)
    return [first + timedelta(days=n) for n in range((end.date() - first).days + 1)]


def length(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


@pytest.mark.parametrize(
    ("rule", "expression", "meant"),
    [
        ("or", "13 * FRI", lambda d: d.day == 13 or d.weekday() == 4),
        ("and", "13 * FRI", lambda d: d.day == 13 and d.weekday() == 4),
        ("vixie", "13 * FRI", lambda d: d.day == 13 or d.weekday() == 4),
        ("or", "*/2 * FRI", lambda d: d.day % 2 == 1 or d.weekday() == 4),
        ("vixie", "*/2 * FRI", lambda d: d.day % 2 == 1 and d.weekday() == 4),
        (
            "vixie",
            "13 * */2",
            lambda d: d.day == 13 and d.isoweekday() % 7 in (0, 2, 4, 6),
        ),
        ("or", "13 * *", lambda d: d.day == 13),
        ("or", "13 * ?", lambda d: d.day == 13),
        ("or", "? * FRI", lambda d: d.weekday() == 4),
        ("or", "*/1 * FRI", lambda d: d.weekday() == 4),
        ("or", "1-31 * FRI", lambda d: True),
        ("and", "* * *", lambda d: True),
        (
            "or",
            "1-7 2-3 1",
            lambda d: d.month in (2, 3) and (d.day <= 7 or d.weekday() == 0),
        ),
        ("and", "29 FEB MON", lambda d: (d.month, d.day, d.weekday()) == (2, 29, 0)),
    ],
    ids=shown,
)
def test_day_rules(rule: str, expression: str, meant: object) -> None:
    """Where both day fields restrict: one is enough (`or`), both must hold (`and`), or what
    Debian's cron does.
    """
    assert callable(meant)
    assert picked(expression, day_rule=rule, end=LONGER_END) == [
        d for d in days(LONGER_END) if meant(d)
    ]


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("L * *", lambda d: d.day == length(d)),
        ("L-3 * *", lambda d: d.day == length(d) - 3),
        ("L-30 * *", lambda d: length(d) == 31 and d.day == 1),
        ("1,L * *", lambda d: d.day in (1, length(d))),
        (
            "LW * *",
            lambda d: (
                d.weekday() < 5 and length(d) - d.day < {4: 3}.get(d.weekday(), 1)
            ),
        ),
        ("* * 5L", lambda d: d.weekday() == 4 and d.day + 7 > length(d)),
        ("* * FRIL", lambda d: d.weekday() == 4 and d.day + 7 > length(d)),
        ("* * 7L", lambda d: d.weekday() == 6 and d.day + 7 > length(d)),
        ("* * TUE#2", lambda d: d.weekday() == 1 and 8 <= d.day <= 14),
        ("* * 0#5", lambda d: d.weekday() == 6 and d.day >= 29),
        (
            "* * MON,FRI#1",
            lambda d: d.weekday() == 0 or (d.weekday() == 4 and d.day <= 7),
        ),
    ],
    ids=shown,
)
def test_days_relative_to_the_month(expression: str, meant: object) -> None:
    """`L`, `L-n`, `LW`, `nL` and `n#k` against the calendar."""
    assert callable(meant)
    assert picked(expression) == [d for d in days() if meant(d)]


@pytest.mark.parametrize(
    "expression",
    [
        "15W * *",
        "1W * *",
        "31W * *",
        "L * *",
        "* * L5",
        "* * 2#3",
        "29 2 *",
        "31 */2 *",
        "* 4-1 *",
        "* * 5-1",
    ],
)
def test_croniter_picks_the_same_days(expression: str) -> None:
    """Where its reading is sound, croniter agrees, in UTC."""
    oracle = croniter(f"0 0 {expression}", BEGIN, ret_type=datetime)
    expected = [
        slot.date() for slot in islice(iter(oracle.get_next, None), 60) if slot <= END
    ]
    assert picked(expression)[:60] == expected


def test_the_rarest_day_is_found_at_once_both_ways() -> None:
    """29 February on a Monday, 2016 and 2044; around 2100, which is no leap year, 40 years lie
    between two.
    """
    rare = Cron("0 0 29 2 MON", day_rule="and")
    assert rare.next_after(datetime(2025, 1, 1, tzinfo=UTC)) == datetime(
        2044, 2, 29, tzinfo=UTC
    )
    assert rare.latest_before(datetime(2044, 2, 29, tzinfo=UTC)) == datetime(
        2016, 2, 29, tzinfo=UTC
    )
    assert rare.next_after(datetime(2072, 2, 29, tzinfo=UTC)) == datetime(
        2112, 2, 29, tzinfo=UTC
    )
    assert (
        rare.count_between(
            datetime(2000, 1, 1, tzinfo=UTC), datetime(2400, 1, 1, tzinfo=UTC)
        )
        == 15
    )
