"""``slotwise retry``: one more attempt of a slot that ended badly."""

from __future__ import annotations

from datetime import datetime

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.instants import instant
from slotwise.cli.shared.operations import exact_slot, instance, operation, order, tell, when
from slotwise.cli.shared.options import Given, common, pass_given


@click.command(
    cls=Command,
    short_help="Try a failed slot once more, as the same slot.",
    examples="""
    slotwise retry nightly-report 2026-01-31T02:00Z
    slotwise retry nightly-report 2026-01-31T02:00Z --note "the mail server is back" --app jobs
    """,
)
@click.argument("name")
@click.argument("slot", callback=instant)
@instance
@order
@common
@pass_given
def retry(
    given: Given,
    name: str,
    slot: datetime,
    instance: str,
    author: str | None,
    note: str | None,
    dry_run: bool,
) -> None:
    """Try SLOT of the job NAME once more, which ended as failed, dead, lost or cancelled.

    It is the same slot: same idempotency key, attempts counted on; beside the schedule, which goes on. Slots of a
    job with on_lost="give_up" start once: with --app that is said here, else the worker refuses it.
    """
    with operation(given, author) as (controls, reader):
        wanted = exact_slot(reader, name, instance, slot)
        controls.retry(name, wanted, instance=instance, note=note, dry_run=dry_run)
    tell(given, f"{name}: slot {when(wanted)} is tried again", dry_run=dry_run, job=name, slot=wanted)
