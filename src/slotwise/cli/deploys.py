"""``slotwise plan``: what a deploy would change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click
from rich.text import Text

from slotwise import InvalidSchedule, SchemaMissing
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    kept,
    pass_given,
)
from slotwise.cli.shared.output import print_json_list, print_table
from slotwise.cli.shared.terminal import moment, say
from slotwise.contrib.notations import other_readings
from slotwise.contrib.wording import counted
from slotwise.inspect import describe_schedule, zone_of
from slotwise.operations import DeployChange

_STYLES = {
    "added": "green",
    "changed": "yellow",
    "policies": "yellow",
    "outdated": "red",
    "orphaned": "red",
}
_MOST_NOTES: Final = 10


@click.command(
    cls=Command,
    short_help="Preview what a deploy would change.",
    notes="""
    0  nothing
    1  a mistake in the application or the settings
    3  the database cannot be used
    5  something; read it, or stop the pipeline
    """,
    examples="""
    slotwise plan --app jobs
    slotwise plan --app jobs --all                         also jobs that stay as they are
    slotwise plan --app jobs --json | jq -r '.[] | select(.at_once) | .job'
    """,
)
@click.option(
    "--all", "everything", is_flag=True, help="Also jobs that stay as they are."
)
@kept(
    "--revision", metavar="TEXT", help="The deploy's id, as its workers will have it."
)
@common
@pass_given
def plan(given: Given, everything: bool) -> int:
    """Preview what starting a worker of the application would change in the database. Nothing is
    changed now.

    "added" has no row yet; "changed" has another schedule, shown with its old and new next slots;
    "policies" declares other policies; "outdated" would be rejected: a newer deploy has planned
    the job; "orphaned" has a row and no code. A job that is due by now would run at once. Slots
    that an earlier schedule still owes would be skipped (superseded).
    """
    registry = given.registry()
    try:
        changes = registry.preview()
    except SchemaMissing:
        changes = registry.preview(installed=False)
        say(
            "the tables are missing, so all jobs would be added; create them "
            "first: slotwise db upgrade",
            err=True,
        )
    shown = [
        change
        for change in changes
        if everything or change.is_change or change.change == "orphaned"
    ]
    _say_readings(shown)
    if given.json:
        print_json_list(shown)
    else:
        _print(shown, changes)
    return exits.CHANGES if any(change.is_change for change in changes) else exits.OK


def _say_readings(shown: Sequence[DeployChange]) -> None:
    """Say which other schedulers would read new schedules otherwise."""
    notes = [
        f"{change.job}: {note}" for change in shown for note in _readings(change.after)
    ]
    for note in notes[:_MOST_NOTES]:
        say(note, err=True)
    if len(notes) > _MOST_NOTES:
        left = len(notes) - _MOST_NOTES
        say(f"… {left} more such notes; see: slotwise schedule explain TEXT", err=True)


def _readings(text: str | None) -> list[str]:
    try:
        return other_readings(text) if text else []
    except InvalidSchedule:  # of a newer release
        return []


def _print(shown: list[DeployChange], changes: list[DeployChange]) -> None:
    if shown:
        print_table(("JOB", "CHANGE", "BEFORE", "AFTER", "NOW"), map(_row, shown))
    counts = Counter(change.change for change in changes)
    text = ", ".join(f"{count} {change}" for change, count in sorted(counts.items()))
    say(text or "no jobs, neither in the application nor in the database", err=True)


def _row(change: DeployChange) -> list[str | Text]:
    return [
        change.job,
        Text(change.change, style=_STYLES.get(change.change, "")),
        _side(change.before, change.before_slots) if change.change != "added" else "–",
        _after(change),
        _now(change) or "–",
    ]


def _after(change: DeployChange) -> str:
    if change.change in ("orphaned", "policies", "kept"):
        return "–"
    if change.change == "outdated":  # the row keeps its schedule
        rejected = describe_schedule(change.after or "")
        return f"{_side(change.before, change.before_slots)}; rejected: {rejected}"
    return _side(change.after, change.after_slots)


def _now(change: DeployChange) -> str:
    """What the deploy would do at once."""
    skipped = (
        f"{counted(change.superseded, 'slot', 'is', 'are')} skipped (superseded)"
        if change.superseded
        else ""
    )
    known = f"known to {change.known_by}" if change.known_by else ""
    return "; ".join(
        filter(None, (skipped, "runs at once" if change.at_once else known))
    )


def _side(text: str | None, slots: Sequence[datetime]) -> str:
    zone = zone_of(text)
    return (
        f"{describe_schedule(text or '')}: "
        f"{', '.join(moment(slot, zone) for slot in slots) or 'no slot'}"
    )
