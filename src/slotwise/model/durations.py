"""Durations: read `10s`, `1h30m` and `PT10S`, write the short form."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import pairwise
from typing import Final

from slotwise.errors import InvalidSetting

FORMS: Final = (
    'a timedelta, "250ms", "10s", "5m", "1h30m", "2d" or ISO 8601 as "PT10S"'
)
LONGEST_TEXT: Final = 64
_MILLISECOND: Final = timedelta(milliseconds=1)

#: A century: the present plus or minus this lies within the years of schedules.
LONGEST_DURATION: Final = timedelta(days=36_500)

_NUMBER = r"[0-9]{1,20}"
_LETTERS: Final = {
    "weeks": "w",
    "days": "d",
    "hours": "h",
    "minutes": "m",
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
}
_SHORT = re.compile(
    r"\s*".join(
        rf"(?:(?P<{unit}>{_NUMBER})\s*{short}(?!s))?"
        for unit, short in _LETTERS.items()
    )
)
_ISO = re.compile(
    rf"P(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?=[0-9])(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?"
    rf"(?:(?P<seconds>{_NUMBER})(?:[.,](?P<fraction>[0-9]{{1,6}}))?S)?)?"
)
#: What durations are written in: from days on.
_UNITS: Final = [
    (short, timedelta(**{unit: 1}))
    for unit, short in _LETTERS.items()
    if unit != "weeks"
]


def parse_duration(value: object) -> timedelta:
    """Return the duration of a timedelta, a short string (`1h30m`) or an ISO 8601 string
    (`PT1H30M`).

    Raise InvalidSetting for a number, which has no unit, for a negative duration, and above 36,500
    days.
    """
    if not isinstance(value, timedelta | str):
        raise InvalidSetting(f"{value!r:.40} has no unit; write {FORMS}")
    found = value if isinstance(value, timedelta) else _read(value)
    if found < timedelta(0):
        raise InvalidSetting(
            f"{format_duration(found)} is negative; write a duration of zero or more"
        )
    if found > LONGEST_DURATION:
        raise _too_long(value if isinstance(value, str) else format_duration(value))
    return found


def format_duration(value: timedelta) -> str:
    """Return the short form, a whole number of the largest unit that fits (`90s`); `-3s` is for
    display only.
    """
    if value < timedelta(0):
        return "-" + format_duration(-value)
    if not value:
        return "0s"
    return next(
        f"{value // unit}{letters}" for letters, unit in _UNITS if not value % unit
    )


def short_duration(span: timedelta | None) -> str:
    """Return a duration for display, in its two largest units: `250ms`, `3.4s`, `1m25s`, `18d10h`;
    a dash for None.
    """
    if span is None:
        return "–"
    if span < timedelta(0):
        return f"-{short_duration(-span)}"
    if span < timedelta(seconds=1):
        return format_duration(timedelta(milliseconds=round(span / _MILLISECOND)))
    if span < timedelta(seconds=10):
        return f"{span.total_seconds():.1f}".removesuffix(".0") + "s"
    return _in_two_units(timedelta(seconds=round(span.total_seconds())))


def _in_two_units(span: timedelta) -> str:
    for (_, unit), (_, smaller) in pairwise(_UNITS[:4]):
        if span >= unit:
            rest = span % unit // smaller * smaller
            return format_duration(span - span % unit) + (
                format_duration(rest) if rest else ""
            )
    return format_duration(span)


def _read(text: str) -> timedelta:
    if len(text) > LONGEST_TEXT:
        raise InvalidSetting(
            f"a duration of {len(text)} characters ({text[:20]!r}…); write {FORMS}"
        )
    match = _ISO.fullmatch(text.strip()) or _SHORT.fullmatch(text.strip())
    given = (
        {unit: number for unit, number in match.groupdict().items() if number}
        if match
        else {}
    )
    if not given and text.strip().startswith("-"):
        raise InvalidSetting(f"{text!r}: a duration is never negative; write {FORMS}")
    if not given:
        raise InvalidSetting(f"{text!r} is not a duration; write {FORMS}")
    microseconds = int(given.pop("fraction", "").ljust(6, "0"))
    try:
        whole = timedelta(**{unit: int(number) for unit, number in given.items()})
        return whole + timedelta(microseconds=microseconds)
    except OverflowError:
        raise _too_long(text) from None


def _too_long(text: str) -> InvalidSetting:
    return InvalidSetting(f"{text!r} is longer than {LONGEST_DURATION.days} days")
