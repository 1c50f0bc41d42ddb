"""The revisions: applied, taken back, printed as SQL."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from slotwise.errors import SchemaMismatch, SchemaMissing
from slotwise.migrate.standing import refuse_unversioned
from slotwise.migrate.target import Target

# alembic is imported late: every command and every worker imports this file, few of them migrate.
if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory


def scripts() -> Path:
    """Where the revisions are: beside this file in a wheel, at the top of the tree in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "migrations", here.parents[1] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise SchemaMissing(f"no migrations beside {here}: this installation of slotwise is incomplete; install it again")


def _script_directory() -> ScriptDirectory:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    return ScriptDirectory.from_config(config)


def apply(
    connection: sa.Connection,
    *,
    prefix: str = "scheduled_",
    schema: str | None = None,
    adopt: bool = False,
    revision: str = "heads",
) -> list[str]:
    """Bring the tables up to date over ``connection`` and return the revisions that were applied.

    Joins the caller's transaction if one is open (the caller commits), else commits its own. Safe to call
    from several processes at once: one works, the others wait and find nothing to do. Works inside a running
    alembic ``env.py``. Raises SchemaMismatch if a foreign table is in the way.
    """
    return _migrate(connection, Target(prefix=prefix, schema=schema, adopt=adopt), revision, up=True)


def revert(
    connection: sa.Connection,
    *,
    prefix: str = "scheduled_",
    schema: str | None = None,
    revision: str = "base",
) -> list[str]:
    """Take the tables down to ``revision``: all their data is gone. Transactions as in ``apply``."""
    return _migrate(connection, Target(prefix=prefix, schema=schema), revision, up=False)


def _migrate(connection: sa.Connection, target: Target, revision: str, *, up: bool) -> list[str]:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.util import CommandError

    own = not connection.in_transaction()
    script = _script_directory()
    applied: list[str] = []

    def steps(current: Any, _context: MigrationContext) -> Any:
        if unknown := set(current) - _known(script):
            raise SchemaMismatch(
                f"the tables are of revision {', '.join(sorted(unknown))}, by {target.version_table}, which this "
                "slotwise does not know; upgrade slotwise here"
            )
        # Private to alembic (pinned below 2, with a test): the public commands need an env.py.
        found = script._upgrade_revs(revision, current) if up else script._downgrade_revs(revision, current)
        applied.extend(step.revision.revision for step in found)
        return found

    transaction = connection.begin() if own else None
    try:
        target.prepare(connection)
        if up:
            refuse_unversioned(connection, prefix=target.prefix, schema=target.schema)
        context = MigrationContext.configure(connection, opts={**target.options(), "fn": steps})
        with context.begin_transaction(), Operations.context(context):
            context.run_migrations()
    except BaseException as error:
        if transaction is not None:
            transaction.rollback()
        if isinstance(error, CommandError):  # a revision that is not among ours
            raise SchemaMismatch(
                f"--revision {revision!r} is none of base, {', '.join(sorted(_known(script)))}; correct it"
            ) from None
        raise
    if transaction is not None:
        transaction.commit()
    return applied


def _known(script: ScriptDirectory) -> set[str]:
    return {found.revision for found in script.walk_revisions()}


def sql(dialect_name: str = "postgresql", *, prefix: str = "scheduled_", schema: str | None = None) -> str:
    """The SQL of a fresh installation, for those who let somebody else run it."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    script, buffer = _script_directory(), io.StringIO()
    target = Target(prefix=prefix, schema=schema)

    def steps(_current: Any, _context: MigrationContext) -> Any:
        return script._upgrade_revs("heads", ())  # type: ignore[arg-type]

    context = MigrationContext.configure(
        dialect_name=dialect_name,
        opts={
            **target.options(),
            "fn": steps,
            "as_sql": True,
            "output_buffer": buffer,
            "literal_binds": True,
        },
    )
    with context.begin_transaction(), Operations.context(context) as operations:
        target.make_schema(operations.execute)
        context.run_migrations()
    made = f"CREATE TABLE {f'{schema}.' if schema else ''}{target.version_table} "
    return buffer.getvalue().replace(made, made.replace("TABLE", "TABLE IF NOT EXISTS"))  # a downgrade leaves it
