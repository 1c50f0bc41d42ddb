"""``slotwise delete``: the rows of a job that will not come back."""

from __future__ import annotations

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.operations import confirm, operation, order, tell, yes
from slotwise.cli.shared.options import Given, common, pass_given


@click.command(
    cls=Command,
    short_help="Remove a job that is no longer in the code.",
    examples="""
    slotwise jobs list --app jobs                          which jobs are orphans
    slotwise delete old-report --yes
    """,
)
@click.argument("name")
@click.option("--known", is_flag=True, help="Also if a live worker knows the job, and will plan it again.")
@order
@yes
@common
@pass_given
def delete(
    given: Given, name: str, known: bool, author: str | None, note: str | None, dry_run: bool, yes: bool
) -> None:
    """Remove the rows of the job NAME. Its history stays, and keeps its slots from ever starting again.

    Refused while it runs, and while a live worker knows it.
    """
    with operation(given, author) as (controls, _):
        rows = controls.delete(name, known=known, dry_run=True)
        if not dry_run:
            confirm(f"{name} will not run any more.", sure=yes)
            rows = controls.delete(name, known=known, note=note)
    tell(given, f"{name}: {rows} {'row' if rows == 1 else 'rows'} deleted", dry_run=dry_run, job=name, rows=rows)
