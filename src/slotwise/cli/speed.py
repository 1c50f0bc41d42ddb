"""``slotwise schedule speed``: what schedules cost on this machine, against what slotwise promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from time import process_time
from typing import Final

import click
from rich.text import Text

from slotwise.cli.shared import exits
from slotwise.cli.shared.command import Command
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import print_json_list, print_table
from slotwise.errors import InvalidSchedule
from slotwise.schedules import Cron, parse_schedule
from slotwise.schedules.days import days_of

NEXT: Final = timedelta(microseconds=50)
SPARSE, COUNT, REFUSAL = (timedelta(milliseconds=5),) * 3

USUAL: Final = (
    "*/5 * * * *",
    "CRON|0 2 * * *|Europe/Vienna",
    "CRON|30 6 * * MON-FRI|America/New_York",
    "CRON|* * * * * *|Europe/Vienna",
    "DAILY|02:00,14:30|Europe/Vienna",
    "EVERY|90s",
    "EXCLUDING(CRON|0 9 * * *|Europe/Vienna; CO@1[SAT,SUN 2026:0101,0106,1224,1225]; following)",
    "ANY(CRON|0 9 * * MON-FRI|Europe/Vienna; CRON|0 11 * * SAT|Europe/Vienna; EVERY|90s)",
)
#: As many parts as there may be, and what is hard to lay over one another: zones, grids, nearly as dense as time.
UNIONS: Final = (
    "ANY(" + "; ".join(f"{number} {number % 24} * * {number % 7}" for number in range(32)) + ")",
    "ANY(" + "; ".join(f"{number} {number % 24} * * *" for number in range(32)) + ")",
    "ANY(CRON|*/2 * * * * *|Europe/Vienna; CRON|*/3 * * * * *|America/New_York; EVERY|7s)",
    "ANY(*/5 * * * *; CRON|7 9-12 * * *|Europe/Vienna; EVERY|7h)",
)
#: Between two of their slots lie forty years.
RARE: Final = ("0 2 29 2 MON", "0 0 29 2 7")
HOSTILE: Final = (
    "0," * 127 + "0 * * * *",
    "*," * 119 + "* * 30 2 *",
    "(" * 60_000,
    "ANY(" * 9_000 + ")" * 9_000,
    "ANY(" + "-;" * 30_000 + "-)",
    "ANY(" + "0 0 30 2 *; " * 5_000 + "-)",
    "EXCLUDING(" + "x, " * 20_000 + ")",
    "EXCLUDING(0 9 * * *; CO@1[- " + "2026:" + "0101," * 12_000 + "]; skip)",
    "CRON|0 2 * * *|" + "Europe/" * 9_000,
    "DAILY|" + "02:00," * 10_000,
    "CRON|0 2 * * *|America/Argentina/ComodRivadaviaXComodRivadaviaXComodRiva",
    "0 0 30 2 *",
    "9" * 255 + " * * * *",
)
_NOON: Final = datetime(2026, 6, 1, 12, 0, 30, tzinfo=UTC)
_LEAP_MONDAY: Final = datetime(2072, 3, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one call took, at the least, and what it may take."""

    what: str
    schedule: str
    took: timedelta
    limit: timedelta


def readings() -> Iterator[Reading]:
    """One after another, as they are measured."""
    for text in USUAL:
        yield _reading("next_after", text, NEXT, partial(parse_schedule(text).next_after, _NOON))
    year = timedelta(days=365)
    seconds = Cron("* * * * * *", "Europe/Vienna")
    yield _reading("count a year", str(seconds), COUNT, lambda: seconds.count_between(_NOON - year, _NOON), times=5)
    yield _reading("latest of a year", str(seconds), COUNT, lambda: seconds.latest_before(_NOON, floor=_NOON - year))
    for text in UNIONS:
        yield _reading(
            "count a year", text, COUNT, partial(parse_schedule(text).count_between, _NOON - year, _NOON), times=1
        )
    for text in RARE:
        rare = Cron(text, "Europe/Vienna", day_rule="and")
        yield _reading("next_after, rare", text, SPARSE, partial(rare.next_after, _LEAP_MONDAY), times=5)
    for text in HOSTILE:
        yield _reading("refuse", text, REFUSAL, partial(_refused, text), times=1)


def _refused(text: str) -> None:
    days_of.cache_clear()  # as if nobody had ever tried
    with suppress(InvalidSchedule):
        parse_schedule.__wrapped__(text)


def _reading(what: str, text: str, limit: timedelta, call: Callable[[], object], times: int = 100) -> Reading:
    """The least of some rounds, in processor time: what the code costs when the machine does nothing else."""
    rounds = []
    for _ in range(5):
        started = process_time()
        for _ in range(times):
            call()
        rounds.append(process_time() - started)
    shown = text if len(text) <= 60 else f"{text[:40]}… ({len(text):,} characters)"
    return Reading(what=what, schedule=shown, took=timedelta(seconds=min(rounds) / times), limit=limit)


@click.command(
    cls=Command,
    notes="0  all within their limits\n1  something is not",
    examples="slotwise schedule speed\nslotwise schedule speed --json | jq '.[] | select(.took > .limit)'",
)
@common
@pass_given
def speed(given: Given) -> int:
    """Measure what schedules cost on this machine, against what is promised; takes a second. Needs no database."""
    found = list(readings())
    if given.json:
        print_json_list(found)
    else:
        print_table(("WHAT", "SCHEDULE", "TOOK", "LIMIT"), map(_row, found))
    return judged(found)


def judged(found: list[Reading]) -> int:
    """The exit status: 1 if any took longer than it may."""
    return exits.FAILED if any(one.took > one.limit for one in found) else exits.OK


def _row(one: Reading) -> list[str | Text]:
    style = "red" if one.took > one.limit else ""
    return [one.what, one.schedule, Text(_spelled(one.took), style=style), _spelled(one.limit)]


def _spelled(duration: timedelta) -> str:
    micros = duration / timedelta(microseconds=1)
    if micros < 1:
        return "< 1 µs"
    return f"{micros:.0f} µs" if micros < 1000 else f"{micros / 1000:.2f} ms"
