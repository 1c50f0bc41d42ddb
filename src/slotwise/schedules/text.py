"""The text forms of schedules: stored in the row, accepted everywhere."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from slotwise.errors import InvalidSchedule
from slotwise.schedules.base import Schedule
from slotwise.schedules.cron import Cron
from slotwise.schedules.daily import Daily
from slotwise.schedules.delay import FixedDelay
from slotwise.schedules.disabled import Disabled
from slotwise.schedules.every import Every
from slotwise.schedules.fields import quoted
from slotwise.schedules.instants import parse_instant
from slotwise.schedules.succession import succeed

LONGEST_TEXT: Final = 16_384
ARROW: Final = ">>"

Reader = Callable[[list[str], dict[str, Any]], Schedule]


@lru_cache(maxsize=4096)
def parse_schedule(text: str) -> Schedule:
    """The schedule of a text form; that of every schedule gives an equal one. Raises InvalidSchedule.

    0 2 * * *                                     a cron expression, in UTC
    CRON|0 2 * * *|Europe/Vienna|gap=skip         … in a zone, with options
    DAILY|02:00,14:30|Europe/Vienna
    EVERY|90s    EVERY|90s|2026-11-21T02:00:00Z   with an anchor
    FIXED_DELAY|2m
    -                                             disabled
    OLD >> 2026-11-21T02:00:00Z >> NEW            one up to the instant, then the other
    """
    if not isinstance(text, str):
        raise InvalidSchedule(f"{text!r:.60} is not the text of a schedule")
    if len(text) > LONGEST_TEXT:
        raise InvalidSchedule(f"a schedule of {len(text)} characters ({quoted(text[:20])}…); at most {LONGEST_TEXT}")
    *earlier, last = text.split(ARROW)
    if len(earlier) % 2:
        raise InvalidSchedule(f"{quoted(text)}: write SCHEDULE {ARROW} INSTANT {ARROW} SCHEDULE")
    schedule = _parse_one(last)
    for i in range(len(earlier) - 2, -1, -2):
        schedule = succeed(_parse_one(earlier[i]), parse_instant(earlier[i + 1]), schedule)
    return schedule


def _parse_one(text: str) -> Schedule:
    text = text.strip()
    if text == "-":
        return Disabled()
    if "|" not in text:
        return Cron(text)
    kind, *given = (part.strip() for part in text.split("|"))
    try:
        read, most, allowed = _KINDS[kind.upper()]
    except KeyError:
        near = get_close_matches(kind.upper()[:20], _KINDS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InvalidSchedule(
            f"{quoted(kind)} is not a kind of schedule{hint}; there are {', '.join(_KINDS)}"
        ) from None
    values, options = [part for part in given if "=" not in part], [part for part in given if "=" in part]
    if not 1 <= len(values) <= most:
        raise InvalidSchedule(f"{quoted(text)}: 1 to {most} values after {kind.upper()}, options apart")
    return read(values, dict(_option(part, allowed) for part in options))


def _option(text: str, allowed: tuple[str, ...]) -> tuple[str, str]:
    name, value = (part.strip() for part in text.split("=", 1))
    if name not in allowed:
        raise InvalidSchedule(f"option {quoted(text)}: {' or '.join(allowed) or 'none'} allowed here")
    return name, value


def _cron(values: list[str], options: dict[str, Any]) -> Schedule:
    return Cron(*values, **options)


def _daily(values: list[str], options: dict[str, Any]) -> Schedule:
    times, tz = values if len(values) == 2 else (*values, "UTC")
    return Daily(*times.split(","), tz=tz, **options)


def _every(values: list[str], options: dict[str, Any]) -> Schedule:
    del options
    return Every(values[0], anchor=parse_instant(values[1])) if len(values) == 2 else Every(values[0])


def _fixed_delay(values: list[str], options: dict[str, Any]) -> Schedule:
    del options
    return FixedDelay(*values)


_KINDS: Final[dict[str, tuple[Reader, int, tuple[str, ...]]]] = {
    "CRON": (_cron, 2, ("day_rule", "gap", "fold")),
    "DAILY": (_daily, 2, ("gap", "fold")),
    "EVERY": (_every, 2, ()),
    "FIXED_DELAY": (_fixed_delay, 1, ()),
}
