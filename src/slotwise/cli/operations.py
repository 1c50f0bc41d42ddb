"""Operations on jobs, one command each, and ``slotwise audit``, which lists them from the audit."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    confirm,
    duration,
    exact_slot,
    id_option,
    instant,
    operation,
    pass_given,
    yes,
)
from slotwise.cli.shared.output import moment, print_json_list, print_result, print_table, warn_paused
from slotwise.contrib.logging import iso, plain
from slotwise.model.records import RECURRING
from slotwise.registry.inspection import Inspection
from slotwise.store.operations.backfill import Backfill
from slotwise.store.operations.pauses import Resumed
from slotwise.store.reading.reader import Reader
from slotwise.store.schema.audit_rows import AuditEntry


@click.command(
    cls=Command,
    short_help="Run a job now, on some worker, beside its schedule.",
    examples="""
    slotwise trigger nightly-report
    slotwise trigger nightly-report --overlap queue        not beside one that runs already
    slotwise trigger report --id customer-7          one of its recurring instances
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
@id_option
@operation
@common
@pass_given
def trigger(
    given: Given,
    name: str,
    overlap: Literal["beside", "queue", "skip"],
    id: str,
    author: str | None,
    note: str | None,
    dry_run: bool,
) -> None:
    """Run the job NAME now, on any worker, beside its schedule.

    Its slot is the database's time of this request. The next slot stays as it is, and the job's statistics count the
    run. If the job is paused, the run waits until it is resumed; "slotwise run" does not wait.
    """
    with given.operations(author) as (operations, _):
        slot = operations.trigger(name, id=id, overlap=overlap, note=note, dry_run=dry_run)
    print_result(given, f"{name}: triggered as slot {iso(slot)}", dry_run=dry_run, job=name, slot=slot)


@click.command(
    cls=Command,
    short_help="Start no slots of a job, or of all jobs.",
    examples="""
    slotwise pause nightly-report --note "the disk is full"
    slotwise pause --all --note maintenance --yes
    """,
)
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All jobs and tasks, also those that are added later.")
@operation
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
    """Start no more slots of the job NAME, on any worker; or, with --all, of any job or task.

    Running handlers continue. Slots of the pause are skipped when the job is resumed, and stay in the ledger.
    """
    one = _job_or_all(name, everything)
    with given.operations(author) as (operations, _):
        if one is not None:
            changed = operations.pause(one, note=note, dry_run=dry_run)
        else:
            confirm("Nothing will start any more, on any worker.", sure=yes or dry_run)
            changed = operations.pause_all(note=note, dry_run=dry_run)
    subject = one or "all"
    text = f"{subject}: paused" if changed else f"{subject}: paused already"
    print_result(given, text, dry_run=dry_run, job=one, changed=changed)


@click.command(
    cls=Command,
    short_help="End the pause of a job, or of all.",
    examples="""
    slotwise resume nightly-report
    slotwise resume nightly-report --replay                slots of the pause are its catch-up's
    slotwise resume --all --dry-run
    """,
)
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="End the pause of all.")
@click.option("--replay", is_flag=True, help="Leave slots of the pause to the job's catch-up.")
@operation
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
    """End the pause of the job NAME; or, with --all, of all that is not paused by its own name.

    Slots that came due during the pause end as skipped (paused), unless --replay leaves them to the job's catch-up.
    """
    one = _job_or_all(name, everything)
    with given.operations(author) as (operations, reader):
        if one is not None:
            found: list[Resumed] | None = operations.resume(one, replay=replay, note=note, dry_run=dry_run)
        else:
            expected = operations.resume_all(replay=replay, dry_run=True)
            if expected is not None and not dry_run:
                confirm(f"{_skipped(expected)} will be skipped, and all goes on.", sure=yes)
            found = operations.resume_all(replay=replay, note=note, dry_run=dry_run)
        paused = None if one is None or given.json else reader.all_paused()
    subject = one or "all"
    warn_paused(paused)
    if not found and (one is not None or found is None):
        print_result(
            given, f"{subject}: not paused", dry_run=dry_run, job=one, changed=False, skipped=0, next_slot=None
        )
        return
    lines = found or []
    text = f"{subject}: goes on; {_skipped(lines)} skipped"
    following = None if one is None else lines[0].next_slot
    if following is not None:
        text += f"; next slot {iso(following)}"
    skipped = sum(line.skipped for line in lines)
    print_result(given, text, dry_run=dry_run, job=one, changed=True, skipped=skipped, next_slot=following)


def _job_or_all(name: str | None, everything: bool) -> str | None:
    if (name is None) != everything:
        raise click.UsageError("name a job, or say --all")
    return name


def _skipped(lines: list[Resumed]) -> str:
    slots = sum(line.skipped for line in lines)
    jobs = sum(line.skipped > 0 for line in lines)
    return f"{slots} slots of {jobs} jobs" if jobs != 1 else f"{slots} {'slot' if slots == 1 else 'slots'} of one job"


@click.command(
    "skip-next",
    cls=Command,
    short_help="Skip a job's next slot.",
    examples="""
    slotwise skip-next nightly-report --dry-run            which one it is
    slotwise skip-next nightly-report 2026-01-31T02:00Z    only if it is this one
    """,
)
@click.argument("name")
@click.argument("slot", required=False, callback=instant)
@id_option
@operation
@common
@pass_given
def skip_next(
    given: Given,
    name: str,
    slot: datetime | None,
    id: str,
    author: str | None,
    note: str | None,
    dry_run: bool,
) -> None:
    """Skip the next slot of the job NAME that has not begun: it ends as skipped (operator).

    With SLOT, skip it only if it is the next one, so that two operators do not skip two slots.
    """
    with given.operations(author) as (operations, _):
        skipped = operations.skip_next(name, slot, id=id, note=note, dry_run=dry_run)
    print_result(given, f"{name}: slot {iso(skipped)} skipped", dry_run=dry_run, job=name, slot=skipped)


@click.command(
    cls=Command,
    short_help="Ask the running handlers of a job to stop.",
    notes="""
    0  asked
    1  nothing of the job runs, or the slot has ended already
    """,
    examples="""
    slotwise cancel nightly-report                         its running handlers
    slotwise cancel nightly-report 2026-01-31T02:00Z       this slot, even if it waits for its retry
    slotwise cancel nightly-report --backfill              slots of its backfills that have not begun
    slotwise cancel report --id customer-7           one of its recurring instances
    """,
)
@click.argument("name")
@click.argument("slot", required=False, callback=instant)
@click.option("--backfill", is_flag=True, help="Cancel the slots of backfills that have not begun.")
@click.option("--id", metavar="ID", help="This recurring instance only.")
@operation
@yes
@common
@pass_given
def cancel(
    given: Given,
    name: str,
    slot: datetime | None,
    backfill: bool,
    id: str | None,
    author: str | None,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Ask the running handlers of the job NAME to stop; the request arrives with their worker's next heartbeat.

    The slot ends as cancelled, without another attempt; the schedule continues. With SLOT, cancel only that slot, even
    if it waits for its retry. For a task with recurring instances, cancel all of them, or the one of --id.
    Without --id, SLOT is the job's own.
    """
    if backfill and slot is not None:
        raise click.UsageError("--backfill cancels all slots that wait; leave SLOT out")
    with given.operations(author) as (operations, reader):
        if backfill:
            waiting = operations.cancel_backfill(name, id=id, dry_run=True)
            if waiting and not dry_run:
                confirm(f"{waiting} slots of {name} will not run.", sure=yes)
            count = operations.cancel_backfill(name, id=id, note=note, dry_run=dry_run)
            print_result(given, f"{name}: {count} slots called off", dry_run=dry_run, job=name, count=count)
            return exits.OK if count else exits.FAILED
        wanted = None if slot is None else exact_slot(reader, name, id or RECURRING, slot)
        found = operations.cancel(name, wanted, id=id, note=note, dry_run=dry_run)
    asked = ", ".join(map(iso, found))
    text = f"{name}: asked {asked} to stop" if found else f"{name}: nothing runs"
    print_result(given, text, dry_run=dry_run, job=name, slots=found)
    return exits.OK if found else exits.FAILED


@click.command(
    cls=Command,
    short_help="Retry a failed slot, as the same slot.",
    examples="""
    slotwise retry nightly-report 2026-01-31T02:00Z
    slotwise retry nightly-report 2026-01-31T02:00Z --note "the mail server is back" --app jobs
    """,
)
@click.argument("name")
@click.argument("slot", callback=instant)
@id_option
@operation
@common
@pass_given
def retry(
    given: Given,
    name: str,
    slot: datetime,
    id: str,
    author: str | None,
    note: str | None,
    dry_run: bool,
) -> None:
    """Retry SLOT of the job NAME, which ended as failed, dead, lost or cancelled.

    It is the same slot, with the same idempotency key, and its attempts are counted on. The schedule continues.
    A slot of a job with on_lost="give_up" starts only once: this command rejects it with --app, else the worker does.
    """
    with given.operations(author) as (operations, reader):
        wanted = exact_slot(reader, name, id, slot)
        operations.retry(name, wanted, id=id, note=note, dry_run=dry_run)
    print_result(given, f"{name}: slot {iso(wanted)} is tried again", dry_run=dry_run, job=name, slot=wanted)


@click.command(
    cls=Command,
    short_help="Run the slots of a range that never ran.",
    examples="""
    slotwise backfill nightly-report --from 2026-01-01 --to 2026-01-31 --dry-run
    slotwise backfill nightly-report --from 30d --to now --pace 1m --concurrency 2 --yes
    slotwise cancel nightly-report --backfill              cancel the slots that have not begun
    """,
)
@click.argument("name")
@click.option("--from", "first", required=True, callback=instant, metavar="TIME", help="From this instant on.")
@click.option("--to", "last", required=True, callback=instant, metavar="TIME", help="Up to and including this instant.")
@click.option(
    "--pace", metavar="DURATION", callback=duration, help="Time from the start of one slot until the next is due."
)
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="How many run at a time.")
@click.option("--failed", is_flag=True, help="Also slots that ended as failed, dead, lost or cancelled.")
@click.option("--forgotten", is_flag=True, help="Also times whose history was pruned, so that it is unknown what ran.")
@id_option
@operation
@yes
@common
@pass_given
def backfill(
    given: Given,
    name: str,
    first: datetime,
    last: datetime,
    pace: timedelta | None,
    concurrency: int,
    failed: bool,
    forgotten: bool,
    id: str,
    author: str | None,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Run the slots of the job NAME in a range that never ran, the oldest first, beside its schedule.

    Slots that ran, run or wait are not changed, and neither are slots that the schedule has not decided yet. Times are
    ISO 8601, in local time unless they have an offset; a duration is subtracted from now.
    """
    with given.operations(author) as (operations, _):
        order = partial(
            operations.backfill, name, first, last,
            id=id, pace=pace, concurrency=concurrency, failed=failed, forgotten=forgotten,
        )  # fmt: skip
        preview = order(dry_run=True)
        if not given.json:
            _show_slots(preview)
        if preview.slots and not dry_run:
            confirm(f"{len(preview.slots)} slots of {name} will run.", sure=yes)
            found = order(note=note)
        else:
            found = preview
    text = f"{name}: {len(found.slots)} slots run" if found.slots else f"{name}: nothing is missing"
    print_result(given, text, dry_run=dry_run, job=name, first=found.first, last=found.last, slots=found.slots,
         present=found.present, undecided=found.undecided)  # fmt: skip


def _show_slots(found: Backfill) -> None:
    """Preview the first and last slots on stderr."""
    slots = found.slots
    shown = [iso(slot) for slot in (slots if len(slots) <= 6 else (*slots[:3], *slots[-2:]))]
    if len(slots) > 6:
        shown.insert(3, f"… {len(slots) - 5} more …")
    if shown:
        click.echo("\n".join(shown), err=True)
    undecided = f", {found.undecided} are yet to be decided by the schedule" if found.undecided else ""
    click.echo(f"{len(slots)} are missing, {found.present} are not{undecided}", err=True)


@click.command(
    cls=Command,
    short_help="Remove a job that is no longer in the code.",
    examples="""
    slotwise jobs list --app jobs                          which jobs are orphans
    slotwise delete old-report --yes
    """,
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Even if a live worker registers the job, and will plan it again.")
@operation
@yes
@common
@pass_given
def delete(
    given: Given, name: str, force: bool, author: str | None, note: str | None, dry_run: bool, yes: bool
) -> None:
    """Remove the rows of the job NAME. Its history stays, so that its slots never start again.

    The command fails while the job runs, and while a live worker registers it.
    """
    with given.operations(author) as (operations, _):
        rows = operations.delete(name, force=force, dry_run=True)
        if not dry_run:
            confirm(f"{name} will not run any more.", sure=yes)
            rows = operations.delete(name, force=force, note=note)
    print_result(
        given, f"{name}: {rows} {'row' if rows == 1 else 'rows'} deleted", dry_run=dry_run, job=name, rows=rows
    )


@click.command(
    cls=Command,
    short_help="List the operations on jobs: author, time and reason.",
    examples="""
    slotwise audit
    slotwise audit nightly-report -n 50 --json
    """,
)
@click.argument("name", required=False)
@click.option("-n", "count", type=click.IntRange(1), default=20, show_default=True, help="At most so many lines.")
@common
@pass_given
def audit(given: Given, name: str | None, count: int) -> None:
    """List the operations on jobs, the newest first; with NAME, those on that job and those on all."""
    with given.store() as store:
        inspect, reader = Inspection(lambda: store), Reader(store)
        paused = inspect.all_paused()
        entries = inspect.audit(name, limit=count)
        if name is not None and all(entry.job != name for entry in entries):
            reader.known(name)
    if given.json:
        print_json_list(_audit_json(entry) for entry in entries)
        return
    warn_paused(paused)
    if not entries:
        click.echo("no operations yet")
        return
    print_table(("AT", "AUTHOR", "OPERATION", "JOB", "SLOT", "WITH", "NOTE"), map(_audit_row, entries))


def _audit_row(entry: AuditEntry) -> list[str]:
    said = ", ".join(f"{name}={value}" for name, value in entry.arguments.items())
    return [
        moment(entry.at), entry.author, entry.operation, entry.job or "–", moment(entry.slot), said or "–",
        entry.note or "–",
    ]  # fmt: skip


def _audit_json(entry: AuditEntry) -> dict[str, object]:
    return {
        "number": entry.number, "at": plain(entry.at), "author": entry.author, "operation": entry.operation,
        "job": entry.job, "slot": plain(entry.slot), "arguments": json.loads(json.dumps(entry.arguments)),
        "note": entry.note,
    }  # fmt: skip
