"""``slotwise trigger``: one run now, on some worker, beside the schedule."""

from __future__ import annotations

from typing import Literal

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.operations import instance, operation, order, tell, when
from slotwise.cli.shared.options import Given, common, pass_given


@click.command(
    cls=Command,
    short_help="Run a job now, on some worker, beside its schedule.",
    examples="""
    slotwise trigger nightly-report
    slotwise trigger nightly-report --overlap queue        not beside one that runs already
    slotwise trigger report --instance customer-7          one of its recurring instances
    slotwise trigger nightly-report --note "after the import" --json
    """,
)
@click.argument("name")
@click.option(
    "--overlap",
    type=click.Choice(["beside", "queue", "skip"]),
    default="beside",
    show_default=True,
    help="If the job runs already: run beside it, wait for its end, or do not run.",
)
@instance
@order
@common
@pass_given
def trigger(
    given: Given,
    name: str,
    overlap: Literal["beside", "queue", "skip"],
    instance: str,
    author: str | None,
    note: str | None,
    dry_run: bool,
) -> None:
    """Run the job NAME now, on whichever worker takes it, beside its schedule.

    Its slot is the database's time of this request; the next slot stays as it is, and the job's statistics count the
    run. A paused job's waits until the job is resumed; "slotwise run" does not, and runs it in the foreground.
    """
    with operation(given, author) as (controls, _):
        slot = controls.trigger(name, instance=instance, overlap=overlap, note=note, dry_run=dry_run)
    tell(given, f"{name}: triggered as slot {when(slot)}", dry_run=dry_run, job=name, slot=slot)
