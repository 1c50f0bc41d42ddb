"""``slotwise db``: make the tables, check them, take them away."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from sqlalchemy import Connection

from slotwise import migrate
from slotwise.cli.recovery import new_epoch, settle_until
from slotwise.cli.shared.command import Command, Group
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import print_json_object
from slotwise.migrate.standing import refuse_unversioned
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.schema.tables import SCHEMA_VERSION


@click.group(cls=Group, examples="slotwise db upgrade\nslotwise db check\nslotwise db sql | psql")
@common
def db() -> None:
    """Make the tables, check them, take them away."""


@contextmanager
def _connected(given: Given, *, new: bool = False) -> Iterator[tuple[Connection, dict[str, Any], Database]]:
    """A connection without deadlines, and where the tables are; ``new``: in a SQLite file that need not be there."""
    settings = given.table_settings()
    database = Database(settings)
    try:
        database.verify(new=new)
        with database.migrations().connect() as connection:
            yield connection, _where(settings), database
    finally:
        database.close()


def _where(settings: Settings) -> dict[str, Any]:
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
        print_json_object({"applied": applied})
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
        print_json_object({"version": version, "needed": SCHEMA_VERSION})
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
        print_json_object({"version": SCHEMA_VERSION, "warnings": [warning] if warning else []})
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
        print_json_object({"reverted": reverted})
    else:
        click.echo(f"reverted {', '.join(reverted)}" if reverted else "nothing to do")


for command in (new_epoch, settle_until):
    db.add_command(command)
