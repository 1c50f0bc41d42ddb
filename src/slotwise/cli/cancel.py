"""``slotwise cancel``: end what runs."""

from __future__ import annotations

from datetime import datetime

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.command import Command
from slotwise.cli.shared.instants import instant
from slotwise.cli.shared.operations import confirm, exact_slot, operation, order, tell, when, yes
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.model.records import RECURRING


@click.command(
    cls=Command,
    short_help="Ask what runs of a job to stop.",
    notes="""
    0  asked
    1  nothing of the job runs, or the slot has ended already
    """,
    examples="""
    slotwise cancel nightly-report                         whatever runs of it
    slotwise cancel nightly-report 2026-01-31T02:00Z       this slot, also if it waits for its retry
    slotwise cancel nightly-report --backfill              what its backfills have not begun
    slotwise cancel report --instance customer-7           what runs of one of its recurring instances
    """,
)
@click.argument("name")
@click.argument("slot", required=False, callback=instant)
@click.option("--backfill", is_flag=True, help="Call off the slots of backfills that have not begun.")
@click.option("--instance", metavar="ID", help="This recurring instance only.")
@order
@yes
@common
@pass_given
def cancel(
    given: Given,
    name: str,
    slot: datetime | None,
    backfill: bool,
    instance: str | None,
    author: str | None,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Ask what runs of the job NAME to stop; it learns so with its worker's next heartbeat.

    The slot ends as cancelled, without another attempt; the schedule goes on. With SLOT, only that slot, which is
    also ended if it waits for its retry. Of a task with recurring instances all are asked, or the one that
    --instance names; a SLOT is the job's own unless it does.
    """
    if backfill and slot is not None:
        raise click.UsageError("--backfill calls off all that waits; leave SLOT out")
    with operation(given, author) as (controls, reader):
        if backfill:
            waiting = controls.cancel_backfill(name, instance=instance, dry_run=True)
            if waiting and not dry_run:
                confirm(f"{waiting} slots of {name} will not run.", sure=yes)
            count = controls.cancel_backfill(name, instance=instance, note=note, dry_run=dry_run)
            tell(given, f"{name}: {count} slots called off", dry_run=dry_run, job=name, count=count)
            return exits.OK if count else exits.FAILED
        wanted = None if slot is None else exact_slot(reader, name, instance or RECURRING, slot)
        found = controls.cancel(name, wanted, instance=instance, note=note, dry_run=dry_run)
    asked = ", ".join(map(when, found))
    tell(given, f"{name}: asked {asked} to stop" if found else f"{name}: nothing runs", dry_run=dry_run, job=name,
         slots=found)  # fmt: skip
    return exits.OK if found else exits.FAILED
