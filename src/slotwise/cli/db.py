"""``slotwise db``: create the tables, check them, drop them; and the steps after a restore."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypedDict

import click
from sqlalchemy import Connection

from slotwise import migrate
from slotwise.cli.shared.options import Command, Given, Group, common, confirm, instant, operation, pass_given, yes
from slotwise.cli.shared.output import print_json, print_result
from slotwise.contrib.logging import iso
from slotwise.migrate.revisions import refuse_unversioned
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.schema.tables import SCHEMA_VERSION


@click.group(cls=Group, examples="slotwise db upgrade\nslotwise db check\nslotwise db sql | psql")
@common
def db() -> None:
    """Make the tables, check them, take them away."""


class _Place(TypedDict):
    """The arguments of ``migrate`` that locate the tables."""

    prefix: str
    schema: str | None


@contextmanager
def _connected(given: Given, *, new: bool = False) -> Iterator[tuple[Connection, _Place, Database]]:
    """A connection without deadlines, and where the tables are; ``new``: in a SQLite file that need not be there."""
    settings = given.table_settings()
    database = Database(settings)
    try:
        database.verify(new=new)
        with database.migrations().connect() as connection:
            yield connection, _where(settings), database
    finally:
        database.close()


def _where(settings: Settings) -> _Place:
    return {"prefix": settings.table_prefix, "schema": settings.schema}


@db.command(
    cls=Command,
    examples="""
    slotwise db upgrade
    slotwise db upgrade --adopt                         take over a scheduled_tasks of Java's db-scheduler
    slotwise db upgrade --schema jobs --table-prefix slotwise_
    """,
)
@click.option("--adopt", is_flag=True, help="Take over a table of db-scheduler that is there already.")
@common
@pass_given
def upgrade(given: Given, adopt: bool) -> None:
    """Make the tables, or bring them up to date. Safe to run from several places at once."""
    with _connected(given, new=True) as (connection, where, _):
        applied = migrate.apply(connection, adopt=adopt, **where)
        migrate.check(connection, **where)  # the revision is alembic's word; somebody may have dropped something since
    if given.json:
        print_json({"applied": applied})
    else:
        click.echo(f"applied {', '.join(applied)}" if applied else "nothing to do: the tables are up to date")


@db.command(
    cls=Command, short_help="Which schema version there is.", examples="slotwise db current\nslotwise db current --json"
)
@common
@pass_given
def current(given: Given) -> None:
    """Which schema version the database has, and which one this slotwise needs."""
    with _connected(given) as (connection, where, _):
        version = migrate.current(connection, **where)
    if given.json:
        print_json({"version": version, "needed": SCHEMA_VERSION})
    else:
        has = "no tables" if version is None else f"schema version {version}"
        click.echo(f"{has}; this slotwise needs version {SCHEMA_VERSION}")


@db.command(
    cls=Command,
    short_help="Whether all is in place.",
    notes="0  all is in place\n3  something is missing",
    examples="slotwise db check",
)
@common
@pass_given
def check(given: Given) -> None:
    """Whether all tables, columns and indexes are in place; if not, what is missing and which command mends it."""
    with _connected(given) as (connection, where, database):
        migrate.check(connection, **where)
        refuse_unversioned(connection, **where)
        warning = database.durability_warning(connection)
    if given.json:
        print_json({"version": SCHEMA_VERSION, "warnings": [warning] if warning else []})
    else:
        click.echo(f"all in place: schema version {SCHEMA_VERSION}")
        if warning:
            click.echo(f"warning: {warning}", err=True)


@db.command(
    cls=Command,
    short_help="Print the SQL of a fresh installation.",
    examples="slotwise db sql > slotwise.sql\nslotwise db sql --dialect sqlite | sqlite3 jobs.db",
)
@click.option("--dialect", type=click.Choice(["postgresql", "sqlite"]), help="Default: that of the database address.")
@common
@pass_given
def sql(given: Given, dialect: str | None) -> None:
    """Print the SQL of a fresh installation, for those who let somebody else run it. Needs no database."""
    settings = given.settings()
    named = "sqlite" if (settings.database_url or "").startswith("sqlite") else "postgresql"
    click.echo(migrate.sql(dialect or named, **_where(settings)), nl=False)


@db.command(cls=Command, examples="slotwise db downgrade --yes                take all tables away")
@click.option("--revision", default="base", show_default=True, help="Down to this revision.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
@pass_given
def downgrade(given: Given, revision: str, yes: bool) -> None:
    """Take the tables away, down to a revision. All that is in them is gone: jobs' history, waiting tasks."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("the data in the tables would be gone; say so with --yes")
        click.confirm("All data in slotwise's tables will be gone. Go on?", abort=True, err=True)
    with _connected(given) as (connection, where, _):
        reverted = migrate.revert(connection, revision=revision, **where)
    if given.json:
        print_json({"reverted": reverted})
    else:
        click.echo(f"reverted {', '.join(reverted)}" if reverted else "nothing to do")


@db.command(
    "new-epoch",
    cls=Command,
    examples="""
    slotwise pause --all --yes
    slotwise db new-epoch --note "restored the backup of 02:00"
    slotwise db settle-until now
    slotwise resume --all
    """,
)
@operation
@yes
@common
@pass_given
def new_epoch(given: Given, author: str | None, note: str | None, dry_run: bool, yes: bool) -> None:
    """After a restore of all tables: let no token and no claim of the time before be good any more.

    Tokens rise above all that were given out, claims end and are taken over, and the installation's id is new, so that
    complete_in refuses whoever still works on the database of before.
    """
    with given.operations(author) as (controls, _):
        found = controls.new_epoch(dry_run=True)
        if not dry_run:
            confirm(f"{found.claims} claims will end, {found.rows} rows get new tokens.", sure=yes)
            found = controls.new_epoch(note=note)
    text = f"a new epoch: {found.rows} rows, {found.claims} claims ended"
    print_result(given, text, dry_run=dry_run, installation=found.installation, rows=found.rows, claims=found.claims)


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
@yes
@common
@pass_given
def settle_until(given: Given, until: datetime, author: str | None, note: str | None, dry_run: bool, yes: bool) -> None:
    """After a restore: slots up to TIME that have not begun do not run; they end as skipped (settled).

    Slots that wait for a retry end as cancelled (settled). One-time tasks stay: look at those that are due.
    """
    with given.operations(author) as (controls, _):
        found = controls.settle_until(until, dry_run=True)
        slots = sum(one.slots for one in found)
        if not dry_run:
            confirm(f"{slots} slots of {len(found)} jobs up to {iso(until)} will not run.", sure=yes)
            found = controls.settle_until(until, note=note)
    jobs = {one.job if one.instance == "recurring" else f"{one.job}/{one.instance}": one.slots for one in found}
    text = f"{sum(jobs.values())} slots of {len(jobs)} jobs settled"
    print_result(given, text, dry_run=dry_run, until=until, jobs=jobs)
