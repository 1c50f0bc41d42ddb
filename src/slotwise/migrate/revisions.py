"""Which revisions are applied, and whether the tables fit this version of slotwise."""

from __future__ import annotations

import io
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from slotwise.errors import SchemaMismatch, SchemaMissing
from slotwise.migrate.target import Target
from slotwise.migrate.target import adopt as take_steps
from slotwise.store.schema.tables import SCHEMA_VERSION, Tables, tables

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
    """Take the tables down to ``revision``: all their data is lost. Transactions as in ``apply``."""
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

    if up and own and target.adopt and connection.dialect.name == "postgresql":
        target = replace(target, adopted=take_steps(connection, target, script.get_revision("sw0001")))
    try:
        with connection.begin() if own else nullcontext():
            target.prepare(connection)
            if up:
                refuse_unversioned(connection, prefix=target.prefix, schema=target.schema)
            context = MigrationContext.configure(connection, opts={**target.options(), "fn": steps})
            with context.begin_transaction(), Operations.context(context):
                context.run_migrations()
    except CommandError:  # a revision that is not among ours
        raise SchemaMismatch(
            f"--revision {revision!r} is none of base, {', '.join(sorted(_known(script)))}; correct it"
        ) from None
    return applied


def _known(script: ScriptDirectory) -> set[str]:
    return {found.revision for found in script.walk_revisions()}


def sql(
    dialect_name: str = "postgresql",
    *,
    prefix: str = "scheduled_",
    schema: str | None = None,
    transaction: bool = True,
) -> str:
    """The SQL of a fresh installation, for a database administrator; ``transaction``: between BEGIN and COMMIT."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    script, buffer = _script_directory(), io.StringIO()
    target = Target(prefix=prefix, schema=schema)

    def steps(_current: object, _context: MigrationContext) -> Any:
        return script._upgrade_revs("heads", ())  # type: ignore[arg-type]

    context = MigrationContext.configure(
        dialect_name=dialect_name,
        opts={
            **target.options(),
            "fn": steps,
            "transactional_ddl": transaction,
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


_VERSION = re.compile("[1-9][0-9]{0,8}")


def current(connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None) -> int | None:
    """The schema version that the database says it has; None without tables. Raises SchemaMismatch if it is none, and
    SchemaMissing if the tables are where this connection does not see them.
    """
    meta = tables(prefix, schema, connection.dialect.name).meta
    if not sa.inspect(connection).has_table(meta.name, schema=schema):
        _refuse_hidden(connection, prefix, schema)
        return None
    value = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema_version"))
    if value is not None and _VERSION.fullmatch(value) is None:
        # The revisions would find nothing to do, so that an upgrade is no cure.
        raise SchemaMismatch(
            f"the schema_version in {meta.fullname} is {value!r:.60}, which is none; if this slotwise made the tables, "
            f"say so: UPDATE {meta.fullname} SET value = '{SCHEMA_VERSION}' WHERE key = 'schema_version'"
        )
    return None if value is None else int(value)


def check(connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None) -> None:
    """Raise SchemaMissing or SchemaMismatch, in one line with the command that cures it, unless all is in place."""
    found = current(connection, prefix=prefix, schema=schema)
    expected, upgrade = tables(prefix, schema, connection.dialect.name), _command("upgrade", prefix, schema)
    if found is None and not sa.inspect(connection).has_table(expected.slots.name, schema=schema):
        there = ", ".join(_schemas(connection, prefix)) if schema else ""
        where = f"the schema {schema}{there and f' (there are such in: {there})'}" if schema else "this database"
        raise SchemaMissing(f"the tables {prefix}* are missing in {where}; run: {upgrade}")
    if found is not None and found != SCHEMA_VERSION:
        is_old = found < SCHEMA_VERSION
        cure = f"needs {SCHEMA_VERSION}; run: {upgrade}" if is_old else f"knows {SCHEMA_VERSION}; upgrade slotwise here"
        raise SchemaMismatch(f"the tables are of schema version {found}, this slotwise {cure}")
    missing = _missing(connection, expected) or ([] if found else [f"rows of table {expected.meta.name}"])
    if missing:
        cure = f"restore a backup, or start afresh: {_command('downgrade', prefix, schema)}, then {upgrade}"
        if all(what.startswith("index ") for what in missing):
            cure = f"make it again with its CREATE INDEX in: {_command('sql', prefix, schema)}"
        raise SchemaMismatch(f"missing in the database: {', '.join(missing)}; {cure}")


def refuse_unversioned(connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None) -> None:
    """Raise SchemaMismatch for tables without alembic's note of their revision: an upgrade would make them again."""
    inspector, name = sa.inspect(connection), f"{prefix}alembic_version"
    full, revision = f"{schema}.{name}" if schema else name, f"sw{SCHEMA_VERSION:04d}"
    if not inspector.has_table(f"{prefix}meta", schema=schema):
        return
    if current(connection, prefix=prefix, schema=schema) != SCHEMA_VERSION:
        return
    cure = f"INSERT INTO {full} VALUES ('{revision}')"
    if not inspector.has_table(name, schema=schema):
        cure = f"CREATE TABLE {full} (version_num varchar(32) PRIMARY KEY); {cure}"
    elif connection.scalar(sa.select(sa.func.count()).select_from(sa.table(name, schema=schema))):
        return
    raise SchemaMismatch(f"the tables are there, and {full} does not say of which revision; run in SQL: {cure}")


def _refuse_hidden(connection: sa.Connection, prefix: str, schema: str | None) -> None:
    """Where no schema was named, the tables may be in one that the search path leaves out, or the role's rights."""
    is_seen = schema is not None or sa.inspect(connection).has_table(f"{prefix}slots")
    found = [] if is_seen else _schemas(connection, prefix)
    if not found:
        return
    role, path = connection.execute(sa.text("SELECT current_user, current_setting('search_path')")).one()
    where = f"the tables {prefix}* are in the schema {' and '.join(found)}, and"
    if len(found) == 1 and not connection.scalar(sa.func.has_schema_privilege(found[0], "USAGE")):
        raise SchemaMissing(f"{where} role {role!r} may not use it; run: GRANT USAGE ON SCHEMA {found[0]} TO {role}")
    raise SchemaMissing(
        f"{where} the search_path of role {role!r} is {path}; say --schema {found[0]}, or SLOTWISE_SCHEMA"
    )


def _schemas(connection: sa.Connection, prefix: str) -> list[str]:
    """Where there are such tables, whoever may use them."""
    inspector = sa.inspect(connection)
    return sorted(one for one in inspector.get_schema_names() if inspector.has_table(f"{prefix}slots", schema=one))


def _command(name: str, prefix: str, schema: str | None) -> str:
    """How to call it for these tables."""
    where = f" --schema {schema}" if schema else ""
    return f"slotwise db {name}{where}{f' --table-prefix {prefix}' if prefix != 'scheduled_' else ''}"


def _missing(connection: sa.Connection, expected: Tables) -> list[str]:
    inspector = sa.inspect(connection)
    missing: list[str] = []
    for table in expected.metadata.sorted_tables:
        if not inspector.has_table(table.name, schema=table.schema):
            missing.append(f"table {table.name}")
            continue
        found = {column["name"] for column in inspector.get_columns(table.name, schema=table.schema)}
        missing += [f"column {table.name}.{column.name}" for column in table.columns if column.name not in found]
        indexes = {index["name"] for index in inspector.get_indexes(table.name, schema=table.schema)}
        missing += [f"index {index.name}" for index in table.indexes if index.name not in indexes]
    return missing
