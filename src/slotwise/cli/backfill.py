"""``slotwise backfill``: run what is missing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.instants import instant
from slotwise.cli.shared.operations import confirm, instance, operation, order, tell, when, yes
from slotwise.cli.shared.options import Given, common, duration, pass_given
from slotwise.store.operations.backfill import Backfill


@click.command(
    cls=Command,
    short_help="Run the slots of a range that never ran.",
    examples="""
    slotwise backfill nightly-report --from 2026-01-01 --to 2026-01-31 --dry-run
    slotwise backfill nightly-report --from 30d --to now --pace 1m --at-once 2 --yes
    slotwise cancel nightly-report --backfill              call off what has not begun
    """,
)
@click.argument("name")
@click.option("--from", "first", required=True, callback=instant, metavar="TIME", help="From this instant on.")
@click.option("--to", "last", required=True, callback=instant, metavar="TIME", help="Up to and including this instant.")
@click.option(
    "--pace", metavar="DURATION", callback=duration, help="Each is due so long after the start of the one before."
)
@click.option("--at-once", type=click.IntRange(1), default=1, show_default=True, help="So many run side by side.")
@click.option("--failed", is_flag=True, help="Also what ended as failed, dead, lost or cancelled.")
@click.option("--forgotten", is_flag=True, help="Also where history was pruned, and nobody knows what ran.")
@instance
@order
@yes
@common
@pass_given
def backfill(
    given: Given,
    name: str,
    first: datetime,
    last: datetime,
    pace: timedelta | None,
    at_once: int,
    failed: bool,
    forgotten: bool,
    instance: str,
    author: str | None,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Run the slots of the job NAME in a range that never ran, the oldest first, beside its schedule.

    What ran, runs or waits is left alone, and so is what the schedule has yet to decide. Times are ISO 8601, in local
    time unless they say otherwise; a duration means so long ago.
    """
    with operation(given, author) as (controls, _):
        how: dict[str, Any] = {
            "instance": instance, "pace": pace, "at_once": at_once, "failed": failed, "forgotten": forgotten,
        }  # fmt: skip
        preview = controls.backfill(name, first, last, dry_run=True, **how)
        if not given.json:
            _show(preview)
        if preview.slots and not dry_run:
            confirm(f"{len(preview.slots)} slots of {name} will run.", sure=yes)
            found = controls.backfill(name, first, last, note=note, **how)
        else:
            found = preview
    text = f"{name}: {len(found.slots)} slots run" if found.slots else f"{name}: nothing is missing"
    tell(given, text, dry_run=dry_run, job=name, first=found.first, last=found.last, slots=found.slots,
         present=found.present, undecided=found.undecided)  # fmt: skip


def _show(found: Backfill) -> None:
    """Enough of the slots to see whether they are the right ones."""
    slots = found.slots
    shown = [when(slot) for slot in (slots if len(slots) <= 6 else (*slots[:3], *slots[-2:]))]
    if len(slots) > 6:
        shown.insert(3, f"… {len(slots) - 5} more …")
    if shown:
        click.echo("\n".join(shown), err=True)
    undecided = f", {found.undecided} are yet to be decided by the schedule" if found.undecided else ""
    click.echo(f"{len(slots)} are missing, {found.present} are not{undecided}", err=True)
