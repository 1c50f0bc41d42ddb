"""``slotwise db new-epoch`` and ``db settle-until``: for the day after a restore."""

from __future__ import annotations

from datetime import datetime

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.instants import instant
from slotwise.cli.shared.operations import confirm, operation, order, tell, when, yes
from slotwise.cli.shared.options import Given, common, pass_given


@click.command(
    "new-epoch",
    cls=Command,
    examples="""
    slotwise pause --all --yes
    slotwise db new-epoch --note "restored the backup of 02:00"
    slotwise db settle-until now
    slotwise resume --all
    """,
)
@order
@yes
@common
@pass_given
def new_epoch(given: Given, author: str | None, note: str | None, dry_run: bool, yes: bool) -> None:
    """After a restore of all tables: let no token and no claim of the time before be good any more.

    Tokens rise above all that were given out, claims end and are taken over, and the installation's id is new, so that
    complete_in refuses whoever still works on the database of before.
    """
    with operation(given, author) as (controls, _):
        found = controls.new_epoch(dry_run=True)
        if not dry_run:
            confirm(f"{found.claims} claims will end, {found.rows} rows get new tokens.", sure=yes)
            found = controls.new_epoch(note=note)
    text = f"a new epoch: {found.rows} rows, {found.claims} claims ended"
    tell(given, text, dry_run=dry_run, installation=found.installation, rows=found.rows, claims=found.claims)


@click.command(
    "settle-until",
    cls=Command,
    examples="""
    slotwise db settle-until now --dry-run
    slotwise db settle-until 2026-01-31T02:00Z --yes
    """,
)
@click.argument("until", callback=instant, metavar="TIME")
@order
@yes
@common
@pass_given
def settle_until(given: Given, until: datetime, author: str | None, note: str | None, dry_run: bool, yes: bool) -> None:
    """After a restore: slots up to TIME that have not begun do not run; they end as skipped (settled).

    Slots that wait for a retry end as cancelled (settled). One-time tasks stay: look at those that are due.
    """
    with operation(given, author) as (controls, _):
        found = controls.settle_until(until, dry_run=True)
        slots = sum(one.slots for one in found)
        if not dry_run:
            confirm(f"{slots} slots of {len(found)} jobs up to {when(until)} will not run.", sure=yes)
            found = controls.settle_until(until, note=note)
    jobs = {one.job if one.instance == "recurring" else f"{one.job}/{one.instance}": one.slots for one in found}
    text = f"{sum(jobs.values())} slots of {len(jobs)} jobs settled"
    tell(given, text, dry_run=dry_run, until=until, jobs=jobs)
