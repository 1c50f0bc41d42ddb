"""Apply, revert and print the revisions of the tables. Alembic is imported late, when used."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine.mock import MockConnection

from slotwise.errors import ConfigurationError, SchemaMismatch, SchemaMissing
from slotwise.migrate.checks import refuse_unversioned
from slotwise.migrate.grants import FUNCTIONS
from slotwise.migrate.target import MYSQL, Target, is_mysql
from slotwise.model.plugged_in import plugged_in

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext, RevisionStep
    from alembic.script import ScriptDirectory

#: From the revisions that are applied to the steps to take.
Steps: TypeAlias = "Callable[[tuple[str, ...]], list[RevisionStep]]"


#: Revisions whose tables have no histories and counts.
WITHOUT_HISTORIES = {"sw0001", "sw0002", "sw0003"}
#: Revisions whose tables have no pauses that end by themselves.
WITHOUT_PAUSES = WITHOUT_HISTORIES | {"sw0004"}
#: Revisions whose tables have no checkpoints.
WITHOUT_CHECKPOINTS = WITHOUT_PAUSES | {"sw0005"}
#: Revisions whose tables have no events.
WITHOUT_EVENTS = WITHOUT_CHECKPOINTS | {"sw0006"}


def scripts() -> Path:
    """Where the revisions are: beside this file in a wheel, at the top of the tree in a
    checkout.
    """
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "migrations", here.parents[1] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise SchemaMissing(
        f"no migrations beside {here}: this installation of slotwise is "
        "incomplete; install it again"
    )


def _script_directory() -> ScriptDirectory:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    return ScriptDirectory.from_config(config)


@contextmanager
def _alembic(
    options: Mapping[str, object], **where: Any
) -> Iterator[MigrationContext]:
    """Alembic's context, with its operations; it needs no env.py. A user's revision may run around
    it, and has its own operations again afterwards.
    """
    from alembic import op
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    outer = getattr(op, "_proxy", None)  # private to alembic, with a test
    context = MigrationContext.configure(opts=dict(options), **where)
    try:
        with Operations.context(context):
            yield context
    finally:
        if outer is not None:
            outer._install_proxy()


def apply(
    connection: sa.Connection,
    *,
    prefix: str = "scheduled_",
    schema: str | None = None,
    adopt: bool = False,
    revision: str = "heads",
) -> list[str]:
    """Bring the tables up to date over ``connection`` and return the revisions that were applied.

    Joins the caller's transaction if one is open (the caller commits), else commits its own. Safe
    to call from several processes at once: one works, the others wait and find nothing to do.
    Works inside a revision of your own, ``migrate.apply(op.get_bind())``; where alembic has no
    connection (``--sql``), it prints the SQL of a fresh installation. Raises SchemaMismatch if a
    foreign table is in the way.
    """
    if isinstance(connection, MockConnection):
        _print(prefix, schema)
        return []
    _refuse_transaction(connection)
    target = Target(prefix=prefix, schema=schema, adopt=adopt)
    is_adopting = adopt and connection.dialect.name == "postgresql"
    script = _script_directory()
    if is_adopting and not connection.in_transaction():
        with connection.engine.connect() as own:
            own = own.execution_options(isolation_level="AUTOCOMMIT")
            adopt_table = plugged_in("slotwise.adoption", "db-scheduler")
            adopted = adopt_table(own, target, script.get_revision("sw0001"))
        target = replace(target, adopted=adopted)

    def steps(current: tuple[str, ...]) -> list[RevisionStep]:
        # Private to alembic (pinned below 2, with a test): the public commands need an env.py.
        return script._upgrade_revs(revision, current)  # type: ignore[arg-type]

    with _transaction(connection, revision), target.alone(connection):
        target.prepare(connection)
        refuse_unversioned(connection, target, _heads(connection, target))
        return _run(connection, target, steps)


def _print(prefix: str, schema: str | None) -> None:
    """Print the SQL of a fresh installation among that of the revision that alembic prints."""
    from alembic import op

    printed = op.get_context()
    text = sql(printed.dialect.name, prefix=prefix, schema=schema, transaction=False)
    printed.impl.static_output(text)


def revert(
    connection: sa.Connection,
    *,
    prefix: str = "scheduled_",
    schema: str | None = None,
    revision: str = "base",
) -> list[str]:
    """Downgrade the tables to ``revision``; ``base`` drops them with all data. Transactions as in
    ``apply``.

    A table that was adopted stays, with db-scheduler's columns and rows. Raises
    ConfigurationError for a revision that is above the applied one, and without a connection.
    """
    if isinstance(connection, MockConnection):
        raise ConfigurationError(
            "without a connection nothing is known of the tables that a downgrade drops; run it "
            "without --sql, or: slotwise db downgrade"
        )
    _refuse_transaction(connection)
    target = Target(prefix=prefix, schema=schema)
    script = _script_directory()

    def steps(current: tuple[str, ...]) -> list[RevisionStep]:
        if revision in known() - _up_to(script, current):
            there = "the database, where none is applied"
            if current:
                there = f"the applied revision, {', '.join(current)}"
            raise ConfigurationError(f"--revision {revision} is above {there}")
        return script._downgrade_revs(revision, current)  # type: ignore[arg-type]

    with _transaction(connection, revision), target.alone(connection):
        target.prepare(connection)
        reverted = _run(connection, target, steps)
        if connection.dialect.name == "postgresql" and not _heads(connection, target):
            for (
                name
            ) in FUNCTIONS:  # of the triggers of grants, which went with their tables
                function = f'"{schema or "public"}"."{prefix}{name}"'
                connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS {function}()")
    return reverted


def _refuse_transaction(connection: sa.Connection) -> None:
    """Raise ConfigurationError on MariaDB in a caller's transaction, which the first statement
    would commit. A revision of the caller's own has none there.
    """
    if not (is_mysql(connection) and connection.in_transaction()):
        return
    from alembic import op

    outer = getattr(op, "_proxy", None)
    if outer is None or outer.migration_context.connection is not connection:
        raise ConfigurationError(
            "the connection is in a transaction, which DDL of MariaDB and MySQL would commit; "
            "commit it first, or pass another connection"
        )


@contextmanager
def _transaction(connection: sa.Connection, revision: str) -> Iterator[None]:
    """The caller's transaction, else one of our own. Raise SchemaMismatch for an unknown
    revision.
    """
    from alembic.util import CommandError

    try:
        with nullcontext() if connection.in_transaction() else connection.begin():
            yield
    except CommandError:
        raise SchemaMismatch(
            f"--revision {revision!r} is none of base, {', '.join(sorted(known()))}; correct it"
        ) from None


def _run(connection: sa.Connection, target: Target, steps: Steps) -> list[str]:
    """Take the steps; return the names of their revisions."""
    taken: list[str] = []

    def found(
        current: tuple[str, ...], _context: MigrationContext
    ) -> list[RevisionStep]:
        if unknown := set(current) - known():
            raise SchemaMismatch(
                f"the tables are of revision {', '.join(sorted(unknown))}, by "
                f"{target.version_table}, which this slotwise does not know; upgrade slotwise here"
            )
        chosen = steps(current)
        taken.extend(step.revision.revision for step in chosen)
        return chosen

    options = {**target.options(), "fn": found}
    with (
        _alembic(options, connection=connection) as context,
        context.begin_transaction(),
    ):
        context.run_migrations()
    return taken


def known() -> set[str]:
    """Return the names of all revisions of this release."""
    return {found.revision for found in _script_directory().walk_revisions()}


def _up_to(script: ScriptDirectory, heads: tuple[str, ...]) -> set[str]:
    if not heads:
        return set()
    return {found.revision for found in script.iterate_revisions(heads, "base")}


def _heads(connection: sa.Connection, target: Target) -> tuple[str, ...] | None:
    """Return the revisions that were applied; None for a role that may not read alembic's table."""
    if connection.dialect.name == "postgresql":
        name = connection.dialect.identifier_preparer.format_table(
            sa.table(target.version_table, schema=target.schema)
        )
        may_read = sa.func.pg_catalog.has_table_privilege(
            sa.func.pg_catalog.to_regclass(name), "SELECT"
        )
        if connection.scalar(sa.select(may_read)) is False:
            return None
    with target.catalogue(connection) as schema:
        options = {**target.options(), "version_table_schema": schema}
        with _alembic(options, connection=connection) as context:
            return tuple(context.get_current_heads())


def applied(connection: sa.Connection, target: Target) -> str | None:
    """Return the revision that was applied; None without any, or for a role that may not read
    alembic's table.
    """
    heads = _heads(connection, target)
    return ", ".join(heads or ()) or None


def revision_warning(connection: sa.Connection, target: Target) -> str | None:
    """Return a warning about revisions that were not applied, although the schema version is the
    right one. Raises SchemaMismatch for tables without a note of their revision.
    """
    heads = _heads(connection, target)
    refuse_unversioned(connection, target, heads)
    if heads is None:
        return (
            f"this role may not read {target.full(target.version_table)}, so it is unknown which "
            "revisions were applied; as the owner of the tables: slotwise db grants"
        )
    if not set(heads) <= known():
        return None  # a newer release has applied one that changes no column
    later = _script_directory().iterate_revisions("heads", heads)
    missing = [found.revision for found in later]
    if not missing:
        return None
    return f"not applied: {', '.join(reversed(missing))}; run: {target.command('upgrade')}"


def sql(
    dialect_name: str = "postgresql",
    *,
    prefix: str = "scheduled_",
    schema: str | None = None,
    transaction: bool = True,
) -> str:
    """The SQL of a fresh installation, for a database administrator; ``transaction``: between
    BEGIN and COMMIT.
    """
    script = _script_directory()
    buffer = io.StringIO()
    target = Target(prefix=prefix, schema=schema)

    def steps(_current: object, _context: MigrationContext) -> list[RevisionStep]:
        return script._upgrade_revs("heads", ())  # type: ignore[arg-type]

    options = {
        **target.options(),
        "fn": steps,
        "transactional_ddl": transaction and dialect_name not in MYSQL,
        "as_sql": True,
        "output_buffer": buffer,
        "literal_binds": True,
    }
    with (
        _alembic(options, dialect_name=dialect_name) as context,
        context.begin_transaction(),
    ):
        target.make_schema(context.execute)
        context.run_migrations()
    made = f"CREATE TABLE {target.full(target.version_table)} "
    # a downgrade leaves it
    return buffer.getvalue().replace(
        made, made.replace("TABLE", "TABLE IF NOT EXISTS")
    )
