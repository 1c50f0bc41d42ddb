"""The text forms of schedules: stored in the row, accepted everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, TypeAlias

from slotwise.errors import InvalidSchedule
from slotwise.schedules.base import Disabled, Every, FixedDelay, Once, Schedule, in_utc
from slotwise.schedules.calendars import Calendar, parse_calendar
from slotwise.schedules.combinators import MOST_PARTS, AnyOf, Spread, Succession
from slotwise.schedules.cron import Cron
from slotwise.schedules.cron_fields import quoted
from slotwise.schedules.hints import hinted
from slotwise.schedules.local_time import Daily

LONGEST_TEXT: Final = 65_536
DEEPEST: Final = 8
ARROW: Final = ">>"
_MOST_SPLIT: Final = 1000  # more than any combinator takes

Reader: TypeAlias = Callable[..., Schedule]
_COMBINED: Final = re.compile(r"([A-Za-z_]{2,})\s*\((.*)\)", re.DOTALL)


@lru_cache(maxsize=4096)
def parse_schedule(text: str) -> Schedule:
    """The schedule of a text form; that of every schedule gives an equal one. Raises
    InvalidSchedule.

    0 2 * * *                                     a cron expression, in UTC
    CRON|0 2 * * *|Europe/Vienna|gap=skip         … in a zone, with options
    DAILY|02:00,14:30|Europe/Vienna
    EVERY|90s    EVERY|90s|2026-11-21T02:00:00Z   with an anchor
    FIXED_DELAY|2m
    ONCE|2026-11-21T02:00:00Z
    -                                             disabled
    ANY(A; B)                                     the slots of all of them
    BETWEEN(A; 2026-01-01T00:00:00Z; -)           from an instant on, before another one
    EXCLUDING(A; AT; following)                   around business calendars
    BUSINESS_DAY(A; -1; AT)                       on the n-th business day of a month
    SPREAD(A; 73s)                                each run due so long after its slot
    OLD >> 2026-11-21T02:00:00Z >> NEW            one up to the instant, then the other
    """
    if not isinstance(text, str):
        raise InvalidSchedule(f"{text!r:.60} is not the text of a schedule")
    parts = text.split(ARROW)
    if (length := max(map(len, parts))) > LONGEST_TEXT:
        raise InvalidSchedule(
            f"a schedule of {length} characters ({quoted(text[:20])}…); at most {LONGEST_TEXT}"
        )
    if len(parts) not in (1, 3):
        raise InvalidSchedule(
            f"{quoted(text)}: write SCHEDULE {ARROW} INSTANT {ARROW} SCHEDULE"
        )
    found = [
        _parse_one(part) for part in parts[::2] for part in _split(part, ARROW)
    ]  # which checks its brackets
    return (
        Succession(found[0], in_utc(parts[1]), found[1])
        if len(found) > 1
        else found[0]
    )


def readable(text: str | None) -> Schedule | None:
    """The schedule of a text; None if there is none, or if this release cannot read it."""
    try:
        return parse_schedule(text) if text else None
    except InvalidSchedule:
        return None


def stored_text(schedule: Schedule, row: str) -> str:
    """The text of a schedule for this row. Raises InvalidSchedule if it is too long to be read
    again.
    """
    text = str(schedule)
    if len(str(schedule.last)) > LONGEST_TEXT:
        raise InvalidSchedule(
            f"{row}: a schedule of {len(text)} characters; at most {LONGEST_TEXT}; make it shorter"
        )
    return text


def _split(text: str, separator: str) -> list[str]:
    """The text in parts, at separators outside all brackets."""
    parts = []
    depth = 0
    start = 0
    for mark in re.finditer(rf"[()\[\]]|{separator}", text):
        if mark[0] in "([])":
            depth += 1 if mark[0] in "([" else -1
        elif depth == 0:
            parts.append(text[start : mark.start()])
            start = mark.end()
        if depth < 0:
            break
        if depth > DEEPEST + 1:  # a calendar's own brackets are the innermost
            raise InvalidSchedule(f"{quoted(text)}: nested more than {DEEPEST} deep")
        if len(parts) > _MOST_SPLIT:
            raise InvalidSchedule(f"{quoted(text)}: more than {_MOST_SPLIT} parts")
    if depth:
        raise InvalidSchedule(f"{quoted(text)}: its brackets do not match")
    return [*parts, text[start:]]


def _parse_one(text: str, depth: int = 0) -> Schedule:
    text = text.strip()
    if text == "-":
        return Disabled()
    if match := _COMBINED.fullmatch(text):
        return _combined(text, match[1].upper(), match[2], depth + 1)
    return _plain(text) if "|" in text else Cron(text)


def _plain(text: str) -> Schedule:
    """A kind, values, and options in any place."""
    kind, *given = (part.strip() for part in text.split("|"))
    if kind.upper() not in _KINDS:
        raise _unknown(kind)
    read, most, allowed = _KINDS[kind.upper()]
    values = [part for part in given if "=" not in part]
    if not 1 <= len(values) <= most:
        raise InvalidSchedule(
            f"{quoted(text)}: 1 to {most} values after {kind.upper()}, options apart"
        )
    options = dict(
        re.split(r"\s*=\s*", part, maxsplit=1) for part in given if "=" in part
    )
    for name, value in options.items():
        if name not in allowed:
            raise InvalidSchedule(
                f"option {quoted(f'{name}={value}')}: {' or '.join(allowed) or 'none'} allowed here"
            )
    return read(*values, **options)


def _combined(text: str, kind: str, inner: str, depth: int) -> Schedule:
    if depth > DEEPEST:
        raise InvalidSchedule(f"{quoted(text)}: nested more than {DEEPEST} deep")
    if kind not in _COMBINATORS:
        raise hinted(_unknown(text.partition("(")[0].strip()), text, "UTC")
    read, counts, form = _COMBINATORS[kind]
    parts = [part.strip() for part in _split(inner, ";")]
    if len(parts) - 1 not in counts:
        raise InvalidSchedule(f"{quoted(kind)} with {len(parts)} parts: write {form}")
    if kind == "ANY":
        return AnyOf(*(_parse_one(part, depth) for part in parts))
    return read(_parse_one(parts[0], depth), *parts[1:])


def _unknown(kind: str) -> InvalidSchedule:
    kinds = [*_KINDS, *_COMBINATORS]
    near = get_close_matches(kind.upper()[:20], kinds, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    error = InvalidSchedule(
        f"{quoted(kind)} is not a kind of schedule{hint}; there are {', '.join(kinds)}"
    )
    error.may_be_newer = True
    return error


def _daily(times: str, tz: str = "UTC", **options: Any) -> Schedule:
    return Daily(*times.split(","), tz=tz, **options)


#: Each kind with its constructor, how many values it takes, and its options.
_KINDS: Final[dict[str, tuple[Reader, int, tuple[str, ...]]]] = {
    "CRON": (Cron, 2, ("day_rule", "gap", "fold")),
    "DAILY": (_daily, 2, ("gap", "fold")),
    "EVERY": (Every, 2, ()),
    "FIXED_DELAY": (FixedDelay, 1, ()),
    "ONCE": (Once, 1, ()),
}


def _between(schedule: Schedule, start: str, end: str) -> Schedule:
    return schedule.between(
        *(None if bound == "-" else bound for bound in (start, end))
    )


def _excluding(
    schedule: Schedule, calendars: str, roll: Any = "skip"
) -> Schedule:  # the schedule validates it
    return schedule.excluding(*_calendars(calendars), roll=roll)


def _business_day(schedule: Schedule, n: str, calendars: str = "") -> Schedule:
    if not re.fullmatch(r"-?[0-9]{1,2}", n):
        raise InvalidSchedule(
            f"business day {quoted(n)}: 1–23, or -1 to -23 from the month's end"
        )
    return schedule.nth_business_day(int(n), *_calendars(calendars))


def _calendars(text: str) -> list[Calendar | str]:
    return [parse_calendar(part) for part in _split(text, ",")] if text else []


_COMBINATORS: Final[dict[str, tuple[Reader, range, str]]] = {
    "ANY": (AnyOf, range(MOST_PARTS), f"ANY(A; B; …), at most {MOST_PARTS} parts"),
    "BETWEEN": (
        _between,
        range(2, 3),
        "BETWEEN(A; 2026-01-01T00:00:00Z; -), with - for no bound",
    ),
    "EXCLUDING": (_excluding, range(1, 3), "EXCLUDING(A; AT; following)"),
    "SPREAD": (Spread, range(1, 2), "SPREAD(A; 73s)"),
    "BUSINESS_DAY": (_business_day, range(1, 3), "BUSINESS_DAY(A; -1; AT)"),
}
