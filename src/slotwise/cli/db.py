"""``slotwise db``: create the tables, check them, drop them; and the steps after a restore."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

import click
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from slotwise import migrate
from slotwise.cli.shared.options import (
    Command,
    Given,
    Group,
    Written,
    common,
    confirm,
    instant,
    operation,
    pass_given,
    sure,
)
from slotwise.cli.shared.output import print_json, print_result
from slotwise.cli.shared.terminal import moment, say, say_document
from slotwise.errors import ConfigurationError
from slotwise.migrate.revisions import (
    AboveApplied,
    applied,
    known,
    refuse_unversioned,
    unapplied,
)
from slotwise.migrate.trusted_schemas import creators_warning
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.connect.database_errors import lacks_tables, sqlstate
from slotwise.store.schema.tables import SCHEMA_VERSION


@click.group(
    cls=Group, examples="slotwise db upgrade\nslotwise db check\nslotwise db sql | psql"
)
@common
def db() -> None:
    """Create the tables, check them, drop them."""


class _Place(TypedDict):
    """The arguments of ``migrate`` that locate the tables."""

    prefix: str
    schema: str | None


@contextmanager
def _connected(
    given: Given, *, new: bool = False
) -> Iterator[tuple[Connection, _Place, Database]]:
    """A connection without deadlines, and the place of the tables; ``new``: a SQLite file may be
    missing.
    """
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
    slotwise db upgrade --adopt                         adopt a scheduled_tasks of Java's db-scheduler
    slotwise db upgrade --schema jobs --table-prefix slotwise_
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
@common
@pass_given
def upgrade(given: Given, adopt: bool, revision: str) -> None:
    """Create the tables, or upgrade them. Several processes may run it at once."""
    with _connected(given, new=True) as (connection, where, _):
        done = migrate.apply(connection, adopt=adopt, revision=revision, **where)
        migrate.check(
            connection, **where
        )  # alembic knows the revision only; columns may be missing
        warning = creators_warning(connection, **where)
    if given.json:
        print_json({"applied": done, "warnings": [warning] if warning else []})
    else:
        if warning:
            say(f"warning: {warning}", err=True)
        say(
            f"applied {', '.join(done)}"
            if done
            else "nothing to do: the tables are up to date"
        )


@db.command(
    cls=Command,
    short_help="Show the schema version.",
    examples="slotwise db current\nslotwise db current --json",
)
@common
@pass_given
def current(given: Given) -> None:
    """Show the schema version and the revision of the database, and the version that this slotwise
    needs.
    """
    with _connected(given) as (connection, where, _):
        version = migrate.current(connection, **where)
        revision = applied(connection, **where)
    if given.json:
        print_json({"version": version, "needed": SCHEMA_VERSION, "revision": revision})
    else:
        has = "no tables" if version is None else f"schema version {version}"
        has += f", revision {revision}" if version and revision else ""
        say(f"{has}; this slotwise needs version {SCHEMA_VERSION}")


@db.command(
    cls=Command,
    short_help="Check that the tables are complete.",
    notes="0  all is in place\n3  something is missing",
    examples="slotwise db check",
)
@common
@pass_given
def check(given: Given) -> None:
    """Check that all tables, columns and indexes exist; if not, print what is missing and which
    command repairs it.
    """
    with _connected(given) as (connection, where, database):
        migrate.check(connection, **where)
        refuse_unversioned(connection, **where)
        warnings = [
            found
            for found in (
                unapplied(connection, **where),
                database.durability_warning(connection),
                creators_warning(connection, **where),
            )
            if found
        ]
    if given.json:
        print_json({"version": SCHEMA_VERSION, "warnings": warnings})
    else:
        say(f"all in place: schema version {SCHEMA_VERSION}")
        for warning in warnings:
            say(f"warning: {warning}", err=True)


@db.command(
    cls=Command,
    short_help="Print the SQL of a fresh installation.",
    examples="slotwise db sql > slotwise.sql\nslotwise db sql --dialect sqlite | sqlite3 jobs.db",
)
@click.option(
    "--dialect",
    type=click.Choice(["postgresql", "sqlite"]),
    help="Default: that of the database address.",
)
@click.option(
    "--no-transaction",
    is_flag=True,
    help="Without BEGIN and COMMIT, for a tool with its own transaction.",
)
@common
@pass_given
def sql(given: Given, dialect: str | None, no_transaction: bool) -> None:
    """Print the SQL of a fresh installation, for a review or for a DBA. Needs no database."""
    settings = given.settings()
    named = "sqlite" if (settings.database_url or "").startswith("sqlite") else "postgresql"
    say_document(
        migrate.sql(dialect or named, transaction=not no_transaction, **_where(settings))
    )


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
    type=click.Choice(migrate.ROLES),
    required=True,
    help="What the database role does.",
)
@click.option(
    "--to", required=True, metavar="NAME", help="The database role, which exists already."
)
@click.option(
    "--sql", "only_sql", is_flag=True, help="Print the statements; needs no database."
)
@common
@pass_given
def grants(given: Given, role: str, to: str, only_sql: bool) -> None:
    """Give a role of PostgreSQL the rights of a worker, an enqueuer, a reader, an operator or a
    migrator, no more.
    """
    settings = given.settings()
    statements = migrate.grants(role, to, **_where(settings))
    if only_sql:
        say_document(f"BEGIN;\n{statements}COMMIT;\n")
        return
    with _connected(given) as (connection, where, database):
        if database.dialect_name != "postgresql":
            raise click.UsageError("SQLite has no roles; protect the file")
        try:
            connection.exec_driver_sql(statements.replace("%", "%%"))
        except SQLAlchemyError as error:
            connection.rollback()
            if sqlstate(error) == "42704":
                cure = f"create it: createuser {shlex.quote(to)}"
                raise ConfigurationError(
                    f"--to {to}: there is no such role in this server; {cure}"
                ) from None
            if lacks_tables(error):
                migrate.check(connection, **where)
            raise
        connection.commit()
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

    Down to a named revision it drops nothing: only storage parameters of the tables are reset.
    """
    keeps = revision in known()  # later revisions change no column
    effect = "Storage parameters of slotwise's tables will be reset; no data is lost."
    loss = (
        "All data in slotwise's tables will be lost. A table adopted from "
        "db-scheduler keeps its columns and rows."
    )
    confirm(effect if keeps else loss, sure=yes, preview="")
    with _connected(given) as (connection, where, _):
        try:
            reverted = migrate.revert(connection, revision=revision, **where)
        except AboveApplied as error:
            raise click.UsageError(str(error)) from None
    if given.json:
        print_json({"reverted": reverted})
    else:
        say(f"reverted {', '.join(reverted)}" if reverted else "nothing to do")


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
                f"{found.claims} claims will end, {found.rows} rows get new tokens."
            )
            found = operations.new_epoch(**given.order)
    text = f"a new epoch: {found.rows} rows, {found.claims} claims ended"
    print_result(
        given, text, installation=found.installation, rows=found.rows, claims=found.claims
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
    with given.operations() as (operations, _):
        found = operations.settle_until(end, dry_run=True)
        slots = sum(one.slots for one in found)
        if not given.dry_run:
            given.confirm(
                f"{slots} slots of {len(found)} jobs up to {moment(end)} will not run."
            )
            found = operations.settle_until(end, **given.order)
    jobs = {
        one.job if one.instance == "recurring" else f"{one.job}/{one.instance}": one.slots
        for one in found
    }
    text = f"{sum(jobs.values())} slots of {len(jobs)} jobs settled"
    print_result(given, text, until=end, jobs=jobs)
