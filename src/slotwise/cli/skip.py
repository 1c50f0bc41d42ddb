"""``slotwise skip-next``: leave the next slot out."""

from __future__ import annotations

from datetime import datetime

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.instants import instant
from slotwise.cli.shared.operations import instance, operation, order, tell, when
from slotwise.cli.shared.options import Given, common, pass_given


@click.command(
    "skip-next",
    cls=Command,
    short_help="Leave a job's next slot out.",
    examples="""
    slotwise skip-next nightly-report --dry-run            which one it is
    slotwise skip-next nightly-report 2026-01-31T02:00Z    only if it is this one
    """,
)
@click.argument("name")
@click.argument("slot", required=False, callback=instant)
@instance
@order
@common
@pass_given
def skip_next(
    given: Given,
    name: str,
    slot: datetime | None,
    instance: str,
    author: str | None,
    note: str | None,
    dry_run: bool,
) -> None:
    """Leave out the next slot of the job NAME that has not begun: it ends as skipped (operator).

    With SLOT, only if that is the next one: so that two people with the same idea skip it once.
    """
    with operation(given, author) as (controls, _):
        skipped = controls.skip_next(name, slot, instance=instance, note=note, dry_run=dry_run)
    tell(given, f"{name}: slot {when(skipped)} skipped", dry_run=dry_run, job=name, slot=skipped)
