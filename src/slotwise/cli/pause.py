"""``slotwise pause`` and ``slotwise resume``."""

from __future__ import annotations

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.operations import confirm, operation, order, tell, tell_pause, when, yes
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.store.operations.pauses import Resumed


@click.command(
    cls=Command,
    short_help="Let nothing of a job start, or nothing at all.",
    examples="""
    slotwise pause nightly-report --note "the disk is full"
    slotwise pause --all --note maintenance --yes
    """,
)
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Everything, whatever comes later included.")
@order
@yes
@common
@pass_given
def pause(
    given: Given,
    name: str | None,
    everything: bool,
    author: str | None,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Let nothing of the job NAME start any more, on any worker; or, with --all, nothing at all.

    What runs goes on. Slots that come meanwhile are skipped when the job is resumed, and the ledger says so.
    """
    one = _chosen(name, everything)
    with operation(given, author) as (controls, _):
        if one is not None:
            changed = controls.pause(one, note=note, dry_run=dry_run)
        else:
            confirm("Nothing will start any more, on any worker.", sure=yes or dry_run)
            changed = controls.pause_all(note=note, dry_run=dry_run)
    subject = one or "all"
    text = f"{subject}: paused" if changed else f"{subject}: paused already"
    tell(given, text, dry_run=dry_run, job=one, changed=changed)


@click.command(
    cls=Command,
    short_help="Let a job, or all, go on.",
    examples="""
    slotwise resume nightly-report
    slotwise resume nightly-report --replay                slots of the pause are its catch-up's
    slotwise resume --all --dry-run
    """,
)
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Take a pause of all back.")
@click.option("--replay", is_flag=True, help="Leave slots of the pause to the job's catch-up.")
@order
@yes
@common
@pass_given
def resume(
    given: Given,
    name: str | None,
    everything: bool,
    replay: bool,
    author: str | None,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Let the job NAME go on; or, with --all, whatever is not paused by its own name.

    Slots that came during the pause end as skipped (paused), unless --replay leaves them to the job's catch-up.
    """
    one = _chosen(name, everything)
    with operation(given, author) as (controls, _):
        if one is not None:
            found: list[Resumed] | None = controls.resume(one, replay=replay, note=note, dry_run=dry_run)
        else:
            expected = controls.resume_all(replay=replay, dry_run=True)
            if expected is not None and not dry_run:
                confirm(f"{_skipped(expected)} will be skipped, and all goes on.", sure=yes)
            found = controls.resume_all(replay=replay, note=note, dry_run=dry_run)
        paused = None if one is None or given.json else controls.all_paused()
    subject = one or "all"
    tell_pause(paused)
    if not found and (one is not None or found is None):
        tell(given, f"{subject}: not paused", dry_run=dry_run, job=one, changed=False, skipped=0, next_slot=None)
        return
    lines = found or []
    text = f"{subject}: goes on; {_skipped(lines)} skipped"
    following = None if one is None else lines[0].next_slot
    if following is not None:
        text += f"; next slot {when(following)}"
    skipped = sum(line.skipped for line in lines)
    tell(given, text, dry_run=dry_run, job=one, changed=True, skipped=skipped, next_slot=following)


def _chosen(name: str | None, everything: bool) -> str | None:
    if (name is None) != everything:
        raise click.UsageError("name a job, or say --all")
    return name


def _skipped(lines: list[Resumed]) -> str:
    slots = sum(line.skipped for line in lines)
    jobs = sum(line.skipped > 0 for line in lines)
    return f"{slots} slots of {jobs} jobs" if jobs != 1 else f"{slots} {'slot' if slots == 1 else 'slots'} of one job"
