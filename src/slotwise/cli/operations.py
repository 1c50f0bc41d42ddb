"""Operations on jobs, one command each."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal, TypedDict, Unpack
from zoneinfo import ZoneInfo

import click

from slotwise.cli.instances import chosen, for_each
from slotwise.cli.shared import exits
from slotwise.cli.shared.given_slots import exact_slot
from slotwise.cli.shared.options import (
    Given,
    id_option,
    job_command,
    of_instances,
    sure,
)
from slotwise.cli.shared.output import (
    print_result,
    warn_paused,
)
from slotwise.cli.shared.terminal import exact, moment, say
from slotwise.cli.shared.values import (
    LARGEST_COUNT,
    Written,
    ahead,
    duration,
    instant,
    within,
)
from slotwise.contrib.wording import counted
from slotwise.inspect import RECURRING, Inspection
from slotwise.operations import Backfill, InstanceFilter, Resumed

UTC: Final = ZoneInfo("UTC")


class BackfillOptions(TypedDict):
    """What a backfill is told besides its range."""

    id: str
    pace: timedelta | None
    concurrency: int
    failed: bool
    forgotten: bool


@job_command(
    "Run a job now, on some worker, beside its schedule.",
    """
    slotwise trigger nightly-report
    slotwise trigger nightly-report --overlap queue        after the runs that are going on
    slotwise trigger report --id customer-7                one of its recurring instances
    slotwise trigger nightly-report --note "after the import" --json
    """,
    click.option(
        "--overlap",
        type=click.Choice(["beside", "queue", "skip"]),
        default="beside",
        show_default=True,
        help="If the job is running: run beside it, wait for its end, or do not run.",
    ),
    id_option,
    of_instances,
    sure,
)
def trigger(
    given: Given, name: str, overlap: Literal["beside", "queue", "skip"], id: str
) -> None:
    """Run the job NAME now; its schedule stays as it is. The slot of the run is the time of this
    request.

    If the job is paused, the run waits until the job is resumed. With --scope, --tag or --prefix
    all recurring instances run that meet them.
    """
    with given.operations() as (operations, inspect):
        if (where := chosen(given, id)) is not None:
            act = partial(operations.trigger_instances, overlap=overlap)
            for_each(given, name, where, act, "triggered")
            return
        slot = operations.trigger(name, id=id, overlap=overlap, **given.how)
        zone = inspect.zone(name, id=id)
    print_result(
        given, f"{name}: triggered as slot {exact(slot, zone)}", job=name, slot=slot
    )


@job_command(
    "Start no slots of a job, or of all jobs.",
    """
    slotwise pause nightly-report --note "the disk is full"
    slotwise pause nightly-report --until 2h               ends by itself, after two hours
    slotwise pause report --id customer-7 --until "2026-11-30T06:00 Europe/Vienna" --replay
    slotwise pause report --tag gold --dry-run             which recurring instances these are
    slotwise pause --all --note maintenance --yes
    """,
    click.option(
        "--all",
        "everything",
        is_flag=True,
        help="All jobs and tasks, also those that are added later.",
    ),
    id_option,
    click.option(
        "--until",
        callback=ahead,
        metavar="TIME",
        help="The pause ends by itself then, or after this duration.",
    ),
    click.option(
        "--replay",
        is_flag=True,
        help="Leave slots of the pause to the job's catch-up.",
    ),
    of_instances,
    sure,
    optional=True,
)
def pause(
    given: Given,
    name: str | None,
    everything: bool,
    id: str,
    until: Written | timedelta | None,
    replay: bool,
) -> None:
    """Start no more slots of the job NAME, on any worker; or, with --all, of any job or task. NAME
    may also be that of one-time tasks.

    Running handlers continue. Slots of the pause are skipped when the job is resumed, or left to
    its catch-up with --replay, and stay in the ledger. With --until the pause ends by itself, by
    the database's clock, and the reason of its slots is maintenance. With --scope, --tag or
    --prefix all recurring instances are paused that meet them.
    """
    one = _job_or_all(name, everything)
    with given.operations() as (operations, inspect):
        if one is not None and (where := chosen(given, id)) is not None:
            end = _end(inspect, one, until)
            act = partial(operations.pause_instances, until=end, replay=replay)
            for_each(given, one, where, act, "paused")
            return
        if one is None:
            given.confirm("Nothing will start any more, on any worker.")
        end = _end(inspect, one, until)
        changed = (
            operations.pause_all(until=end, replay=replay, **given.how)
            if one is None
            else operations.pause(one, id=id, until=end, replay=replay, **given.how)
        )
    what = _named(one, id)
    text = f"{what}: paused" if changed else f"{what}: paused already"
    print_result(given, text, job=one, changed=changed)


@job_command(
    "End the pause of a job, or of all.",
    """
    slotwise resume nightly-report
    slotwise resume nightly-report --replay                leave slots of the pause to catch-up
    slotwise resume --all --dry-run
    """,
    click.option("--all", "everything", is_flag=True, help="End the pause of all."),
    id_option,
    click.option(
        "--replay",
        is_flag=True,
        help="Leave slots of the pause to the job's catch-up.",
    ),
    of_instances,
    sure,
    optional=True,
)
def resume(
    given: Given, name: str | None, everything: bool, id: str, replay: bool
) -> None:
    """End the pause of the job NAME, or of one-time tasks with this name; or, with --all, of all
    that is not paused by its own name.

    Slots that came due during the pause end as skipped (paused, or maintenance if it had an end),
    unless --replay, or the pause itself, leaves them to the job's catch-up.
    """
    one = _job_or_all(name, everything)
    paused = None
    zone = UTC
    with given.operations() as (operations, inspect):
        if one is not None and (where := chosen(given, id)) is not None:
            act = partial(operations.resume_instances, replay=replay)
            for_each(given, one, where, act, "resumed")
            return
        if one is not None:
            found = operations.resume(one, id=id, replay=replay, **given.how) or None
            paused = None if given.json else inspect.all_paused()
            zone = inspect.zone(one)
        else:
            found = operations.resume_all(replay=replay, dry_run=True)
            if found is not None and not given.dry_run:
                given.confirm(
                    f"All will resume, and {_skipped(found)} will be skipped."
                )
                found = operations.resume_all(replay=replay, **given.how)
    warn_paused(paused)
    if found is None:
        print_result(
            given,
            f"{_named(one, id)}: not paused",
            job=one,
            changed=False,
            skipped=0,
            next_slot=None,
        )
        return
    following = None if one is None else found[0].next_slot
    text = f"{_named(one, id)}: resumed; {_skipped(found)} skipped"
    text += f"; next slot {moment(following, zone)}" if following is not None else ""
    skipped = sum(line.skipped for line in found)
    print_result(
        given, text, job=one, changed=True, skipped=skipped, next_slot=following
    )


def _end(
    inspect: Inspection, job: str | None, until: Written | timedelta | None
) -> datetime | timedelta | None:
    """Return the end of a pause; without an offset, in the zone of the job."""
    if not isinstance(until, Written):
        return until
    is_zoned = until.value.tzinfo is not None
    zone = None if job is None or is_zoned else inspect.zone(job)
    return until.within(zone, "--until")


def _named(name: str | None, id: str) -> str:
    """Return a job, with the id of its instance, or all, as a result names it."""
    if name is None:
        return "all"
    return name if id == RECURRING else f"{name} {id}"


def _job_or_all(name: str | None, everything: bool) -> str | None:
    if name is not None and everything:
        raise click.UsageError(f"give either a job ({name}) or --all, not both")
    if name is None and not everything:
        raise click.UsageError("name a job, or give --all")
    return name


def _skipped(lines: list[Resumed]) -> str:
    slots = sum(line.skipped for line in lines)
    jobs = sum(line.skipped > 0 for line in lines)
    return f"{counted(slots, 'slot')} of {counted(jobs, 'job')}"


@job_command(
    "Skip a job's next slot.",
    """
    slotwise skip-next nightly-report --dry-run            which one it is
    slotwise skip-next nightly-report 2026-01-31T02:00Z    only if it is this one
    """,
    click.argument("slot", required=False, callback=instant),
    id_option,
    of_instances,
    sure,
)
def skip_next(given: Given, name: str, slot: Written | None, id: str) -> None:
    """Skip the next slot of the job NAME that has not begun: it ends as skipped (operator).

    With SLOT, skip it only if it is the next one, so that two operators do not skip two slots.
    """
    with given.operations() as (operations, inspect):
        if (where := chosen(given, id)) is not None:
            for_each(given, name, where, operations.skip_instances, "skipped")
            return
        zone = inspect.zone(name, id=id)
        skipped = operations.skip_next(
            name, within(slot, zone, "SLOT"), id=id, **given.how
        )
    print_result(
        given, f"{name}: slot {moment(skipped, zone)} skipped", job=name, slot=skipped
    )


@job_command(
    "Ask the running handlers of a job to stop.",
    """
    slotwise cancel nightly-report                        its running handlers
    slotwise cancel nightly-report 2026-01-31T02:00Z      this slot, even if it waits for its retry
    slotwise cancel nightly-report --backfill             slots of backfills that have not begun
    slotwise cancel report --id customer-7                one of its recurring instances
    """,
    click.argument("slot", required=False, callback=instant),
    click.option(
        "--backfill",
        is_flag=True,
        help="Cancel the slots of backfills that have not begun.",
    ),
    click.option("--id", metavar="ID", help="This recurring instance only."),
    sure,
    notes="""
    0  asked
    1  nothing of the job runs, or the slot has ended already
    """,
)
def cancel(
    given: Given, name: str, slot: Written | None, backfill: bool, id: str | None
) -> int:
    """Ask the running handlers of the job NAME to stop; the request arrives with their worker's
    next heartbeat.

    The slot ends as cancelled, without another attempt; the schedule continues. With SLOT, cancel
    only that slot, even if it waits for its retry. For a task with recurring instances, cancel all
    of them, or the one of --id. Without --id, SLOT is the job's own.
    """
    if backfill and slot is not None:
        raise click.UsageError(
            "--backfill cancels all slots that wait; leave SLOT out"
        )
    with given.operations() as (operations, inspect):
        if backfill:
            if waiting := operations.cancel_backfill(name, id=id, dry_run=True):
                given.confirm(f"{counted(waiting, 'slot')} of {name} will not run.")
            count = operations.cancel_backfill(name, id=id, **given.how)
            print_result(
                given,
                f"{name}: {counted(count, 'slot')} cancelled",
                job=name,
                count=count,
            )
            return exits.OK if count else exits.FAILED
        zone = inspect.zone(name, id=id)
        wanted = (
            None
            if slot is None
            else exact_slot(inspect, name, id or RECURRING, slot.within(zone, "SLOT"))
        )
        found = operations.cancel(name, wanted, id=id, **given.how)
    text = (
        f"{name}: asked {', '.join(exact(slot, zone) for slot in found)} to stop"
        if found
        else f"{name}: nothing is running"
    )
    print_result(given, text, job=name, slots=found)
    return exits.OK if found else exits.FAILED


@job_command(
    "Retry a failed slot, as the same slot.",
    """
    slotwise retry nightly-report 2026-01-31T02:00Z
    slotwise retry nightly-report 2026-01-31T02:00Z --note "the mail server is back" --app jobs
    """,
    click.argument("slot", callback=instant),
    id_option,
)
def retry(given: Given, name: str, slot: Written, id: str) -> None:
    """Retry SLOT of the job NAME, which ended as failed, dead, lost or cancelled.

    It is the same slot, with the same idempotency key, and its attempt count continues. So does
    the schedule. A slot of a job with on_lost="give_up" starts only once: this command rejects it
    with --app, else the worker does.
    """
    with given.operations() as (operations, inspect):
        zone = inspect.zone(name, id=id)
        wanted = exact_slot(inspect, name, id, slot.within(zone, "SLOT"))
        operations.retry(name, wanted, id=id, **given.how)
    print_result(
        given,
        f"{name}: slot {exact(wanted, zone)} will be retried",
        job=name,
        slot=wanted,
    )


@job_command(
    "Run the slots of a range that never ran.",
    """
    slotwise backfill nightly-report --from 2026-01-01 --to 2026-01-31 --dry-run
    slotwise backfill nightly-report --from 30d --to now --pace 1m --concurrency 2 --yes
    slotwise cancel nightly-report --backfill              cancel the slots that have not begun
    """,
    click.option(
        "--from",
        "first",
        required=True,
        callback=instant,
        metavar="TIME",
        help="From this instant on.",
    ),
    click.option(
        "--to",
        "last",
        required=True,
        callback=instant,
        metavar="TIME",
        help="Up to and including this instant.",
    ),
    click.option(
        "--pace",
        metavar="DURATION",
        callback=duration,
        help="Time from the start of one slot until the next is due.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(1, LARGEST_COUNT),
        default=1,
        show_default=True,
        help="How many run at a time.",
    ),
    click.option(
        "--failed",
        is_flag=True,
        help="Also slots that ended as failed, dead, lost or cancelled.",
    ),
    click.option(
        "--forgotten",
        is_flag=True,
        help="Also times whose history was pruned, so that it is unknown what ran.",
    ),
    id_option,
    sure,
)
def backfill(
    given: Given,
    name: str,
    first: Written,
    last: Written,
    **options: Unpack[BackfillOptions],
) -> None:
    """Run the slots of the job NAME in a range that never ran, the oldest first, beside its
    schedule.

    Slots that ran, run or wait are not changed, and neither are slots that the schedule has not
    decided yet. Times are ISO 8601, in the job's zone unless they have an offset; a duration is
    subtracted from now.
    """
    with given.operations() as (operations, inspect):
        zone = inspect.zone(name, id=options["id"])
        begin = first.within(zone, "--from")
        end = last.within(zone, "--to")
        found = operations.backfill(name, begin, end, **options, dry_run=True)
        if not given.json:
            _show_slots(found, zone)
        if found.slots and not given.dry_run:
            given.confirm(f"{counted(len(found.slots), 'slot')} of {name} will run.")
            found = operations.backfill(name, begin, end, **options, **given.how)
    text = (
        f"{name}: {counted(len(found.slots), 'slot', 'runs', 'run')}"
        if found.slots
        else f"{name}: nothing is missing"
    )
    print_result(
        given,
        text,
        job=name,
        first=found.first,
        last=found.last,
        slots=found.slots,
        present=found.present,
        undecided=found.undecided,
    )


def _show_slots(found: Backfill, zone: ZoneInfo) -> None:
    """Preview the first and last slots on stderr."""
    slots = found.slots
    shown = [
        moment(slot, zone)
        for slot in (slots if len(slots) <= 6 else (*slots[:3], *slots[-2:]))
    ]
    if len(slots) > 6:
        shown.insert(3, f"… {len(slots) - 5} more …")
    undecided = (
        f", {found.undecided} are yet to be decided by the schedule"
        if found.undecided
        else ""
    )
    say(
        *shown,
        f"{len(slots)} are missing, {found.present} are not{undecided}",
        err=True,
    )


@job_command(
    "Remove a job that is no longer in the code.",
    """
    slotwise jobs --app jobs                          which jobs are orphans
    slotwise delete old-report --yes
    slotwise delete report --id customer-7            one of its recurring instances
    """,
    click.option(
        "--force",
        is_flag=True,
        help="Even if a live worker registers the job, and will plan it again.",
    ),
    id_option,
    of_instances,
    sure,
)
def delete(given: Given, name: str, force: bool, id: str) -> None:
    """Remove the rows of the job NAME. Its history stays, so that its slots never start again.
    With --id, --scope, --tag or --prefix only the recurring instances that meet them go.

    The command fails while the job runs, and while a live worker registers it.
    """
    with given.operations() as (operations, _):
        if (where := chosen(given, id)) is not None or id != RECURRING:
            where = where or InstanceFilter(id=id)
            for_each(given, name, where, operations.delete_instances, "deleted")
            return
        rows = operations.delete(name, force=force, dry_run=True)
        if not given.dry_run:
            given.confirm(f"{name} will not run any more.")
            rows = operations.delete(name, force=force, **given.how)
    print_result(
        given,
        f"{name}: {counted(rows, 'row')} deleted",
        job=name,
        rows=rows,
    )
