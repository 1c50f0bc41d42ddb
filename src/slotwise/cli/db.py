"""``slotwise db``: create the tables, check them, drop them; and the steps after a restore."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from slotwise import DatabaseProblem
from slotwise.cli.shared.options import (
    Command,
    Given,
    Group,
    common,
    confirm,
    operation,
    pass_given,
    sure,
)
from slotwise.cli.shared.output import as_json, print_json, print_result
from slotwise.cli.shared.terminal import moment, say, say_document, unharmed
from slotwise.cli.shared.values import Written, instant
from slotwise.contrib.wording import counted
from slotwise.inspect import Inspection
from slotwise.operations import Epoch, Operations, Schema, SettledJob


@click.group(
    cls=Group,
    default=("check",),
    examples="slotwise db upgrade\nslotwise db check\nslotwise db upgrade --sql | psql",
)
@common
def db() -> None:
    """Create the tables, check them, drop them."""


@db.command(
    cls=Command,
    examples="""
    slotwise db upgrade
    slotwise db upgrade --adopt            adopt a scheduled_tasks of Java's db-scheduler
    slotwise db upgrade --schema jobs --table-prefix slotwise_
    slotwise db upgrade --sql > slotwise.sql
    slotwise db upgrade --sql --database-url sqlite:// | sqlite3 jobs.db
    """,
)
@click.option("--adopt", is_flag=True, help="Adopt an existing table of db-scheduler.")
@click.option(
    "--revision",
    default="heads",
    show_default="the newest",
    metavar="NAME",
    help="Up to this revision.",
)
@click.option(
    "--sql",
    "only_sql",
    is_flag=True,
    help="Print the SQL of a fresh installation; needs no database.",
)
@click.option(
    "--no-transaction",
    is_flag=True,
    help="With --sql: without BEGIN and COMMIT, for a tool with its own transaction.",
)
@common
@pass_given
def upgrade(
    given: Given, adopt: bool, revision: str, only_sql: bool, no_transaction: bool
) -> None:
    """Create the tables, or upgrade them. Several processes may run it at once.

    With --sql, print the SQL of a fresh installation, for a review or for a DBA: for SQLite if the
    database's address names it, else for PostgreSQL.
    """
    if only_sql and (adopt or revision != "heads"):
        raise click.UsageError(
            "--sql prints a fresh installation; leave out the others"
        )
    if no_transaction and not only_sql:
        raise click.UsageError("--no-transaction is about --sql; add it")
    if only_sql:
        say_document(Schema(given.settings()).sql(transaction=not no_transaction))
        return
    done = Schema(given.table_settings()).upgrade(adopt=adopt, revision=revision)
    with unharmed():
        if given.json:
            print_json({"applied": done.applied, "warnings": done.warnings})
            return
        _warn(done.warnings)
        nothing = "nothing to do: the tables are up to date"
        say(f"applied {', '.join(done.applied)}" if done.applied else nothing)


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        say(f"warning: {warning}", err=True)


@db.command(
    cls=Command,
    short_help="Show the schema version; check that the tables are complete.",
    notes="0  all is in place\n3  something is missing",
    examples="slotwise db check\nslotwise db check --json | jq .revision",
)
@common
@pass_given
def check(given: Given) -> None:
    """Show the schema version and the revision of the database, and check that all tables, columns
    and indexes exist; if not, print what is missing and which command repairs it. Warn of a
    snapshot that has kept vacuum from its work for five minutes.
    """
    schema = Schema(given.table_settings())
    found = schema.version()
    has = "no tables" if found.version is None else f"schema version {found.version}"
    if found.version is not None and found.revision is not None:
        has += f", revision {found.revision}"
    try:
        warnings = schema.check()
    except DatabaseProblem as problem:
        if given.json:  # the versions are an answer, too
            print_json({**as_json(found), "problem": str(problem), "warnings": []})
        else:
            say(f"{has}; this slotwise needs version {found.needed}")
        raise
    warnings = [*warnings, *_old_snapshots(given)]
    if given.json:
        print_json({**as_json(found), "problem": None, "warnings": warnings})
    else:
        say(f"all in place: {has}")
        _warn(warnings)


#: An older snapshot is reported: vacuum keeps all rows that have died since.
OLD_SNAPSHOT = timedelta(minutes=5)


def _old_snapshots(given: Given) -> list[str]:
    """What keeps vacuum from removing dead rows, the oldest first."""
    with given.inspection(import_app=False) as inspect:
        now = inspect.now()
        holders = inspect.database().snapshots
    return [
        f"a {one.kind} has held a snapshot since {moment(one.since)}: {one.name}; vacuum keeps "
        f"all rows that have died since, so end it"
        for one in holders
        if one.since is not None and now - one.since > OLD_SNAPSHOT
    ]


@db.command(
    cls=Command,
    short_help="Print or apply the grants of a database role.",
    examples="""
    slotwise db grants --role worker --to jobs_worker --sql | psql
    slotwise db grants --role enqueuer --to shop
    """,
)
@click.option(
    "--role",
    type=click.Choice(Schema.roles),
    required=True,
    help="What the database role does.",
)
@click.option(
    "--to",
    required=True,
    metavar="NAME",
    help="The database role, which exists already.",
)
@click.option(
    "--sql", "only_sql", is_flag=True, help="Print the statements; needs no database."
)
@common
@pass_given
def grants(given: Given, role: str, to: str, only_sql: bool) -> None:
    """Give a role of PostgreSQL, or an account of MariaDB, the rights of a worker, an enqueuer, a
    reader, an operator or a migrator, no more.
    """
    if only_sql:
        statements = Schema(given.settings()).grants(role, to)
        is_transaction = statements.startswith("SET LOCAL")
        say_document(
            f"BEGIN;\n{statements}COMMIT;\n" if is_transaction else statements
        )
        return
    Schema(given.table_settings()).grant(role, to)
    with unharmed():
        if given.json:
            print_json({"role": role, "to": to})
        else:
            say(f"{to} has the rights of: {role}")


@db.command(
    cls=Command, examples="slotwise db downgrade --yes                drop all tables"
)
@click.option(
    "--revision",
    default="base",
    show_default=True,
    metavar="NAME",
    help="Down to this revision.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
@pass_given
def downgrade(given: Given, revision: str, yes: bool) -> None:
    """Drop the tables: all data is lost, the history of jobs and waiting tasks.

    A table that was adopted from db-scheduler stays, with db-scheduler's columns and rows, without
    slotwise's jobs.

    Below sw0007, events are dropped, and the rows that batches have set aside. Below sw0006,
    checkpoints are dropped. Below sw0005, incidents and the ends of pauses are
    dropped: what is paused stays so. Below sw0004, the histories of deploys and workers and the
    hourly counts are dropped. Jobs, tasks and their slots stay.
    """
    schema = Schema(given.table_settings())
    confirm(_loss(schema, revision), sure=yes, preview="")
    reverted = schema.downgrade(revision)
    with unharmed():
        if given.json:
            print_json({"reverted": reverted})
        else:
            say(f"reverted {', '.join(reverted)}" if reverted else "nothing to do")


def _loss(schema: Schema, revision: str) -> str:
    """Return what a downgrade loses, in a sentence."""
    if schema.keeps_data(revision):
        return "Later revisions will be reverted; no data is lost."
    if revision == "sw0006":
        return (
            "The events and the rows that were set aside will be lost. "
            "Jobs, tasks and their slots stay."
        )
    if revision == "sw0005":
        return (
            "The checkpoints of handlers will be lost: attempts start from the beginning. "
            "Jobs, tasks and their slots stay."
        )
    if revision == "sw0004":
        return (
            "Incidents and the ends of pauses will be lost: what is paused stays paused. "
            "Jobs, tasks and their slots stay."
        )
    if revision.startswith("sw"):
        return (
            "The histories of deploys and workers and the hourly counts will be lost. "
            "Jobs, tasks and their slots stay."
        )
    return (
        "All data in slotwise's tables will be lost. A table adopted from "
        "db-scheduler keeps its columns and rows."
    )


@db.command(
    cls=Command,
    short_help="All steps after a restore of the tables, in one command.",
    examples="""
    slotwise db restored --at 2026-01-31T02:00Z --note "restored the backup of 01:00" --yes
    slotwise db restored --at now --dry-run
    """,
)
@click.option(
    "--at",
    "until",
    required=True,
    callback=instant,
    metavar="TIME",
    help="When the lost period ended: slots up to then do not run.",
)
@operation
@sure
@common
@pass_given
def restored(given: Given, until: Written) -> None:
    """After a restore of all tables: pause everything, begin a new epoch, settle the slots up to
    --at, resume.

    It stops at its first error, and everything stays paused: give it again. If everything was
    paused before, it stays so. Stop the workers before the restore, and start them after this.
    """
    end = until.within(None, "--at")
    with given.operations() as (operations, inspect):
        _refuse_the_future(inspect, end, until, "--at")
        before = inspect.all_paused()
        epoch = operations.new_epoch(dry_run=True)
        settled = operations.settle_until(end, dry_run=True)
        if not given.dry_run:
            count = sum(one.slots for one in settled)
            given.confirm(
                f"{counted(epoch.claims, 'claim')} will end, "
                f"{counted(epoch.rows, 'row', 'gets a new token', 'get new tokens')}, and "
                f"{counted(count, 'slot')} up to {moment(end)} will not run."
            )
            epoch, settled = _after_restore(operations, end, given)
    stays = before is not None and not (before.note or "").startswith(_RESTORED)
    if not (stays or given.dry_run):
        with given.operations() as (operations, _):
            operations.resume_all(**given.how)
    _print_restored(given, epoch, settled, end, stays=stays)


def _print_restored(
    given: Given,
    epoch: Epoch,
    settled: list[SettledJob],
    end: datetime,
    *,
    stays: bool,
) -> None:
    count = sum(one.slots for one in settled)
    state = "everything stays paused" if stays else "everything is resumed"
    text = (
        f"a new epoch: {counted(epoch.rows, 'row')}, {counted(epoch.claims, 'claim')} ended; "
        f"{counted(count, 'slot')} settled; {state}"
    )
    print_result(
        given,
        text,
        installation=epoch.installation,
        rows=epoch.rows,
        claims=epoch.claims,
        slots=count,
        until=end,
        paused=stays,
    )


#: The clock of this host, which ``now`` is of, may be ahead of the database's.
_CLOCK_DRIFT = timedelta(minutes=1)


def _refuse_the_future(
    inspect: Inspection, end: datetime, given: Written, option: str
) -> None:
    """Raise UsageError: slots that are not due yet have not been lost."""
    now = inspect.now()
    if end > now + _CLOCK_DRIFT:
        raise click.UsageError(
            f"{option}: {given.text!r:.60} is in the future, and the database's time is "
            f"{moment(now)}; write when the lost period ended, or now"
        )


#: Begins the note of the pause of ``db restored``, by which a second run knows it.
_RESTORED = "db restored"


def _after_restore(
    operations: Operations, end: datetime, given: Given
) -> tuple[Epoch, list[SettledJob]]:
    """Pause everything, and do what cannot wait; an error leaves everything paused."""
    note = given.how.get("note")
    operations.pause_all(note=f"{_RESTORED}: {note}" if note else _RESTORED)
    try:
        epoch = operations.new_epoch(**given.how)
        return epoch, operations.settle_until(end, **given.how)
    except Exception:
        say(
            "everything stays paused; after the cure, give the command again", err=True
        )
        raise


@db.command(
    "new-epoch",
    cls=Command,
    examples="""
    slotwise pause --all --yes
    slotwise db new-epoch --yes --note "restored the backup of 02:00"
    slotwise db settle-until now --yes
    slotwise resume --all --yes
    """,
)
@operation
@sure
@common
@pass_given
def new_epoch(given: Given) -> None:
    """After a restore of all tables: invalidate all earlier tokens and claims.

    Tokens continue above all earlier ones, claims end and are taken over, and the installation
    gets a new id, so that complete_in rejects clients of the former database.
    """
    with given.operations() as (operations, _):
        found = operations.new_epoch(dry_run=True)
        if not given.dry_run:
            given.confirm(
                f"{counted(found.claims, 'claim')} will end, "
                f"{counted(found.rows, 'row', 'gets a new token', 'get new tokens')}."
            )
            found = operations.new_epoch(**given.how)
    text = f"a new epoch: {counted(found.rows, 'row')}, {counted(found.claims, 'claim')} ended"
    print_result(
        given,
        text,
        installation=found.installation,
        rows=found.rows,
        claims=found.claims,
    )


@db.command(
    "settle-until",
    cls=Command,
    examples="""
    slotwise db settle-until now --dry-run
    slotwise db settle-until 2026-01-31T02:00Z --yes
    """,
)
@click.argument("until", callback=instant, metavar="TIME")
@operation
@sure
@common
@pass_given
def settle_until(given: Given, until: Written) -> None:
    """After a restore: end slots up to TIME that have not begun as skipped (settled), without a
    run.

    Slots that wait for a retry end as cancelled (settled). One-time tasks stay: check those that
    are due.
    """
    end = until.within(None, "TIME")
    with given.operations() as (operations, inspect):
        _refuse_the_future(inspect, end, until, "TIME")
        found = operations.settle_until(end, dry_run=True)
        slots = sum(one.slots for one in found)
        if not given.dry_run:
            given.confirm(
                f"{counted(slots, 'slot')} of {counted(len(found), 'job')} up to {moment(end)} "
                "will not run."
            )
            found = operations.settle_until(end, **given.how)
    jobs = {
        one.job
        if one.instance == "recurring"
        else f"{one.job}/{one.instance}": one.slots
        for one in found
    }
    text = (
        f"{counted(sum(jobs.values()), 'slot')} of {counted(len(jobs), 'job')} settled"
    )
    print_result(given, text, until=end, jobs=jobs)
