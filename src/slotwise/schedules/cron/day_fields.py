"""The two day fields of a cron expression, which may say more: `L`, `L-3`, `LW`, `15W`; `5L`, `MON#2`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from slotwise.schedules.cron.fields import DAY, WEEKDAY
from slotwise.schedules.days import LAST

DayRule = Literal["or", "and", "vixie"]

_EVERY: Final = ("*", "?", "*/1")
_FROM_END: Final = re.compile(r"L(?:-([0-9]+))?")
_NEAREST: Final = re.compile(r"([0-9]+)W")
_LAST_WEEKDAY: Final = re.compile(r"([0-7]|[A-Z]{3})L|L([0-7])")
_NTH_WEEKDAY: Final = re.compile(r"([0-9]+|[A-Z]{3})#(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthDays:
    """A day-of-month field taken apart; `plain` is the rest that is only numbers, empty if there is none."""

    plain: str
    from_end: frozenset[int]
    nearest: frozenset[int]
    last_working_day: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekDays:
    """A day-of-week field taken apart; `nth` pairs a weekday with its number in the month."""

    plain: str
    nth: frozenset[tuple[int, int]]


def month_days(text: str) -> MonthDays:
    """Read a day-of-month field. Raises InvalidSchedule."""
    plain, from_end, nearest, last_working_day = [], set(), set(), False
    for item in _items(text):
        if match := _FROM_END.fullmatch(item):
            from_end.add(_distance(item, match[1] or "0"))
        elif match := _NEAREST.fullmatch(item):
            nearest.add(DAY.value(match[1]))
        elif item == "LW":
            last_working_day = True
        else:
            plain.append(DAY.plain(item))
    return MonthDays(
        plain=",".join(plain),
        from_end=frozenset(from_end),
        nearest=frozenset(nearest),
        last_working_day=last_working_day,
    )


def week_days(text: str) -> WeekDays:
    """Read a day-of-week field. Raises InvalidSchedule."""
    plain, nth = [], set()
    for item in _items(text):
        if match := _LAST_WEEKDAY.fullmatch(item):
            nth.add((WEEKDAY.value(match[1] or match[2]), LAST))
        elif match := _NTH_WEEKDAY.fullmatch(item):
            nth.add((WEEKDAY.value(match[1]), _number(item, match[2])))
        else:
            plain.append(WEEKDAY.plain(item))
    return WeekDays(plain=",".join(plain), nth=frozenset(nth))


def both_needed(rule: DayRule, day: str, weekday: str) -> bool:
    """Whether a date must satisfy both day fields. An unrestricted one is always satisfied."""
    if rule == "or":
        return day in _EVERY or weekday in _EVERY
    return rule == "and" or day[0] in "*?" or weekday[0] in "*?"


def _items(text: str) -> list[str]:
    return ["*"] if text == "?" else text.split(",")


def _distance(item: str, distance: str) -> int:
    if len(distance) > 2 or int(distance) > 30:
        DAY.refuse(item, "L-1 to L-30")
    return int(distance)


def _number(item: str, number: str) -> int:
    if number == "L":
        return LAST
    if number not in ("1", "2", "3", "4", "5"):
        WEEKDAY.refuse(item, "#1 to #5")
    return int(number)
