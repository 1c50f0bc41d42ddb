"""``slotwise schedule``: what a schedule means, and what it comes to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slotwise.cli.month import month
from slotwise.cli.shared.command import Command, Group
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import print_json_list, print_json_object, print_table
from slotwise.cli.shared.schedule_text import instant, ready, schedule_of, zone_of
from slotwise.cli.speed import speed
from slotwise.contrib.logging import plain
from slotwise.errors import ConfigurationError
from slotwise.schedules import AnyOf, Disabled, Schedule
from slotwise.schedules.base import first_beyond
from slotwise.schedules.preview import Entry, clock, outlook
from slotwise.schedules.spread import Spread
from slotwise.schedules.words import explain


@click.group(
    cls=Group,
    examples="""
    slotwise schedule explain "30 2 * * *" --tz Europe/Vienna
    slotwise schedule next "30 2 * * *" --tz Europe/Vienna -n 20
    slotwise schedule diff "0 2 * * *" "H 2 * * *" --name nightly-report --days 30
    slotwise schedule month --app jobs --plot starts.svg
    """,
)
@common
def schedule() -> None:
    """What a schedule means, and what it comes to. Needs no database, but for the calendars that it names."""


_TZ = click.option(
    "--tz", metavar="ZONE", help="Zone of a plain cron expression, and of the clocks shown; default: the schedule's."
)
_AFTER = click.option("--after", metavar="TIME", help="Slots after this instant, or so long from now; default: now.")
_NAME = click.option("--name", metavar="JOB", help="The job whose name decides what H is.")


@schedule.command(
    "explain",
    cls=Command,
    examples="""
    slotwise schedule explain "0 9 * * MON-FRI" --tz Europe/Vienna
    slotwise schedule explain "EXCLUDING(DAILY|09:00|Europe/Vienna; AT; following)"
    """,
)
@click.argument("text")
@_TZ
@common
@pass_given
def explain_schedule(given: Given, text: str, tz: str | None) -> None:
    """Say in words what TEXT means."""
    found = schedule_of(text, tz)
    if given.json:
        print_json_object({"schedule": str(found), "words": explain(found)})
    else:
        for sentence in (*explain(found), f"Text: {found}"):
            click.echo(sentence)


@schedule.command(
    "next",
    cls=Command,
    examples="""
    slotwise schedule next "30 2 * * *" --tz Europe/Vienna -n 20 --after 2026-03-20
    slotwise schedule next "H 2 * * *" --name nightly-report
    slotwise schedule next "EVERY|90s" --json
    """,
)
@click.argument("text")
@_TZ
@_NAME
@click.option("-n", "count", type=click.IntRange(1, 100_000), default=10, show_default=True, help="So many slots.")
@_AFTER
@common
@pass_given
def next_slots(given: Given, text: str, tz: str | None, name: str | None, count: int, after: str | None) -> None:
    """List the next slots of TEXT in local time and UTC.

    Changes of the clocks are marked, and what they do to slots; so are slots that do not run.
    """
    found = ready(given, schedule_of(text, tz), name)
    zone = zone_of(found, tz)
    entries = outlook(found, instant(after, zone), count, zone)
    if given.json:
        print_json_list(entries)
        return
    lines = list(entries)
    if not lines:
        click.echo("no slot, ever again")
        return
    print_table(("LOCAL", "UTC", ""), map(_row, lines))


def _row(entry: Entry) -> list[str | Text]:
    style = {"slot": "", "skipped": "yellow", "clocks": "cyan", "missing": "yellow"}[entry.kind]
    world = "–" if entry.kind == "missing" else f"{entry.instant.replace(tzinfo=None).isoformat(' ')} UTC"
    return [Text(entry.local, style=style), Text(world, style=style), Text(entry.note, style=style or "dim")]


@schedule.command(
    "diff",
    cls=Command,
    notes="0  the same slots\n1  they differ",
    examples="""
    slotwise schedule diff "0 2 * * *" "30 2 * * *" --days 30
    slotwise schedule diff "0 2 * * *" "CRON|0 2 * * *|Europe/Vienna" --after 2026-03-20 --days 10
    """,
)
@click.argument("old")
@click.argument("new")
@_TZ
@_NAME
@click.option("--days", type=click.IntRange(1, 3660), default=30, show_default=True, help="So far ahead.")
@click.option("-n", "count", type=click.IntRange(1), default=50, show_default=True, help="Show so many differences.")
@_AFTER
@common
@pass_given
def diff(
    given: Given,
    old: str,
    new: str,
    tz: str | None,
    name: str | None,
    days: int,
    count: int,
    after: str | None,
) -> int:
    """Which slots a change from OLD to NEW takes away (-) and adds (+)."""
    before, later = (_slots_of(ready(given, schedule_of(text, tz), name)) for text in (old, new))
    zone = zone_of(later, tz)
    start = instant(after, zone)
    end = start + timedelta(days=days)
    sums = _sums(before, later, start, end)
    found = islice(_differences(before, later, start, end), count)
    if given.json:
        print_json_object({**sums, "differences": [{"slot": plain(slot), "change": sign} for slot, sign in found]})
    else:
        _print_differences(found, sums, zone, days)
    return 1 if sums["removed"] or sums["added"] else 0


def _slots_of(schedule: Schedule) -> Schedule:
    """The schedule of the slots that run; a spread moves none of them. Raises ConfigurationError."""
    running = schedule.running
    if running.from_end:
        raise ConfigurationError(
            f"{schedule}: nobody knows its slots before its runs have ended, so they cannot be compared; see what it "
            f"means: slotwise schedule explain {shlex.quote(str(schedule))}"
        )
    return running.schedule if isinstance(running, Spread) else running


def _both(before: Schedule, later: Schedule) -> Schedule:
    """The slots of either; what is disabled has none."""
    return AnyOf(*(one for one in (before, later) if one != Disabled())) if before != later else before


def _sums(before: Schedule, later: Schedule, start: datetime, end: datetime) -> dict[str, int]:
    """How many slots go, come and stay; counted, never walked."""
    both = _both(before, later).count_between(start, end)
    had, has = before.count_between(start, end), later.count_between(start, end)
    return {"removed": both - has, "added": both - had, "kept": had + has - both}


def _differences(before: Schedule, later: Schedule, start: datetime, end: datetime) -> Iterator[tuple[datetime, str]]:
    both = _both(before, later)
    gone, come = first_beyond(later, both, start, end), first_beyond(before, both, start, end)
    while gone is not None or come is not None:
        if come is None or (gone is not None and gone < come):
            assert gone is not None
            yield gone, "-"
            gone = first_beyond(later, both, gone, end)
        else:
            yield come, "+"
            come = first_beyond(before, both, come, end)


def _print_differences(
    found: Iterator[tuple[datetime, str]], sums: Mapping[str, Any], zone: ZoneInfo, days: int
) -> None:
    lines = list(found)
    styles = {"-": "red", "+": "green"}
    rows: list[list[str | Text]] = [
        [Text(f"{sign} {clock(slot, zone)}", style=styles[sign]), f"{slot.replace(tzinfo=None).isoformat(' ')} UTC"]
        for slot, sign in lines
    ]
    if rows:
        print_table(("LOCAL", "UTC"), rows)
    left = sums["removed"] + sums["added"] - len(lines)
    if left > 0:
        click.echo(f"… {left} more differences", err=True)
    click.echo(f"in {days} days: {sums['removed']} removed, {sums['added']} added, {sums['kept']} kept")


schedule.add_command(month)
schedule.add_command(speed)
