"""The tables' migrations: apply them, say where a database stands, print their SQL.

The revisions live in ``migrations/`` (shipped in the wheel) and are plain alembic; this module runs them
without alembic's ``env.py``, so that it also works inside a user's own one.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from slotwise.errors import SchemaMismatch, SchemaMissing
from slotwise.store.tables import SCHEMA_VERSION, tables

# alembic is imported late: every command and every worker imports this file, few of them migrate.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

#: The columns by which a table of db-scheduler is known.
_DB_SCHEDULER = frozenset(
    [
        "task_name",
        "task_instance",
        "task_data",
        "execution_time",
        "picked",
        "picked_by",
        "last_success",
        "last_failure",
        "consecutive_failures",
        "last_heartbeat",
        "version",
        "priority",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which tables, and where: what ``db`` commands, ``apply`` and alembic's env.py have in common."""

    prefix: str = "scheduled_"
    schema: str | None = None
    adopt: bool = False
    database_url: str | None = None

    @classmethod
    def load(
        cls,
        *,
        database_url: str | None,
        prefix: str | None = None,
        schema: str | None = None,
        adopt: bool = False,
    ) -> Target:
        """From arguments first, then from the settings (environment, slotwise.toml)."""
        from slotwise.settings import Settings

        given: dict[str, Any] = {"database_url": database_url, "table_prefix": prefix, "schema": schema}
        settings = Settings.load(**{name: value for name, value in given.items() if value})
        return cls(
            prefix=settings.table_prefix,
            schema=settings.schema,
            adopt=adopt,
            database_url=settings.database_url,
        )

    @property
    def version_table(self) -> str:
        return f"{self.prefix}alembic_version"

    @property
    def table_names(self) -> frozenset[str]:
        """All that is ours, with alembic's own."""
        return frozenset(table.name for table in self.metadata.sorted_tables) | {self.version_table}

    @property
    def metadata(self) -> sa.MetaData:
        return tables(self.prefix, self.schema).metadata

    @property
    def dialect_name(self) -> str:
        return "sqlite" if (self.database_url or "").startswith("sqlite") else "postgresql"

    def options(self) -> dict[str, Any]:
        """What alembic's context is configured with, here and in env.py alike."""
        return {
            "version_table": self.version_table,
            "version_table_schema": self.schema,
            "target_metadata": self.metadata,
            "include_name": self._is_ours,
            "include_schemas": self.schema is not None,
            "transactional_ddl": True,
            "slotwise_prefix": self.prefix,
            "slotwise_schema": self.schema,
            "slotwise_adopt": self.adopt,
        }

    def _is_ours(self, name: str | None, kind: str, parents: Any) -> bool:
        if kind == "schema":
            return name == self.schema
        if kind == "table":
            return name in self.table_names and name != self.version_table
        return True

    @contextmanager
    def connect(self, given: sa.Connection | None = None) -> Iterator[sa.Connection]:
        """The connection that alembic was given, else one of our own."""
        if given is not None:
            yield given
            return
        from slotwise.settings import Settings
        from slotwise.store.database import Database

        database = Database(Settings.load(database_url=self.database_url))
        try:
            database.verify(new=True)
            with database.migrations().connect() as connection:
                yield connection
        finally:
            database.close()

    def prepare(self, connection: sa.Connection) -> None:
        """First thing in the migration's transaction: one upgrade at a time, and none over a foreign table."""
        if connection.dialect.name == "postgresql":
            # Race: several deploys upgrade at once. The lock lasts as long as the transaction, and the
            # revisions are read after it, so whoever waited finds nothing left to do.
            connection.execute(sa.text("SET LOCAL lock_timeout = '60s'"))
            connection.execute(
                sa.text("SELECT pg_advisory_xact_lock(hashtext(:name))"),
                {"name": f"slotwise.migrate.{self.prefix}"},
            )
            self.make_schema(connection.execute)
        _refuse_foreign(connection, self)

    def make_schema(self, execute: Callable[[Any], object]) -> None:
        """PostgreSQL's schema, if one was chosen: before everything else, also in SQL for somebody else."""
        if self.schema:
            execute(sa.schema.CreateSchema(self.schema, if_not_exists=True))


def _refuse_foreign(connection: sa.Connection, target: Target) -> None:
    inspector = sa.inspect(connection)
    name = f"{target.prefix}tasks"
    # One of our own marks is enough, so that a downgrade clears away what somebody else has left over.
    ours = any(inspector.has_table(f"{target.prefix}{mark}", schema=target.schema) for mark in ("meta", "slots"))
    if ours:
        return
    if not inspector.has_table(name, schema=target.schema):
        if target.adopt:
            raise SchemaMissing(f"there is no table {name} to adopt; leave --adopt out")
        return
    found = {column["name"] for column in inspector.get_columns(name, schema=target.schema)}
    if found != _DB_SCHEDULER:
        raise SchemaMismatch(
            f"table {name} exists and is not slotwise's; choose another name: --table-prefix or SLOTWISE_TABLE_PREFIX"
        )
    if not target.adopt:
        raise SchemaMismatch(
            f"table {name} exists and is db-scheduler's (its columns match): adopt it with `slotwise db upgrade "
            "--adopt`, or choose another name with --table-prefix"
        )


def scripts() -> Path:
    """Where the revisions are: beside this file in a wheel, at the top of the tree in a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here / "migrations", here.parents[1] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise SchemaMissing(f"no migrations beside {here}: this installation of slotwise is incomplete; install it again")


def include_name(
    name: str | None,
    kind: str,
    parents: Mapping[str, str | None],
    *,
    prefix: str = "scheduled_",
    schema: str | None = None,
) -> bool:
    """Keep ``alembic revision --autogenerate`` of your own project from dropping slotwise's tables.

    Give it to ``context.configure(include_name=…)`` in your env.py, or call it from yours; where the tables have
    another prefix or schema, as ``functools.partial(include_name, prefix="jobs_")``. False for slotwise's tables,
    alembic's version table for them included; True for all else.
    """
    ours = kind == "table" and name in Target(prefix=prefix, schema=schema).table_names
    return not ours or parents.get("schema_name") != schema


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
        # Private to alembic (pinned below 2, with a test): the public commands need an env.py.
        found = script._upgrade_revs(revision, current) if up else script._downgrade_revs(revision, current)
        applied.extend(step.revision.revision for step in found)
        return found

    transaction = connection.begin() if own else None
    try:
        target.prepare(connection)
        context = MigrationContext.configure(connection, opts={**target.options(), "fn": steps})
        with context.begin_transaction(), Operations.context(context):
            context.run_migrations()
    except BaseException as error:
        if transaction is not None:
            transaction.rollback()
        if isinstance(error, CommandError):  # a revision that is not among ours
            raise SchemaMismatch(
                f"{error}; correct --revision, or if {target.version_table} names it: upgrade slotwise here"
            ) from None
        raise
    if transaction is not None:
        transaction.commit()
    return applied


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


def current(connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None) -> int | None:
    """The schema version that the database says it has; None without tables."""
    meta = tables(prefix, schema).meta
    if not sa.inspect(connection).has_table(meta.name, schema=schema):
        return None
    value = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema_version"))
    return int(value) if value is not None else None


def check(connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None) -> None:
    """Raise SchemaMissing or SchemaMismatch, in one line with the mending command, unless all is in place."""
    found = current(connection, prefix=prefix, schema=schema)
    expected, upgrade = tables(prefix, schema), _command("upgrade", prefix, schema)
    if found is None and not sa.inspect(connection).has_table(expected.slots.name, schema=schema):
        raise SchemaMissing(f"the tables {prefix}* are missing in this database; run: {upgrade}")
    if found is not None and found < SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the tables are of schema version {found}, this slotwise needs {SCHEMA_VERSION}; run: {upgrade}"
        )
    if found is not None and found > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the tables are of schema version {found}, this slotwise knows {SCHEMA_VERSION}; upgrade slotwise here"
        )
    missing = _missing(connection, expected) or ([] if found else [f"rows of table {expected.meta.name}"])
    if missing and all(what.startswith("index ") for what in missing):
        raise SchemaMismatch(
            f"missing in the database: {', '.join(missing)}; make it again with its CREATE INDEX in: "
            f"{_command('sql', prefix, schema)}"
        )
    if missing:
        raise SchemaMismatch(
            f"missing in the database: {', '.join(missing)}; restore a backup, or start afresh: "
            f"{_command('downgrade', prefix, schema)}, then {upgrade}"
        )


def _command(name: str, prefix: str, schema: str | None) -> str:
    """How to call it for these tables."""
    where = f" --schema {schema}" if schema else ""
    return f"slotwise db {name}{where}{f' --table-prefix {prefix}' if prefix != 'scheduled_' else ''}"


def _missing(connection: sa.Connection, expected: Any) -> list[str]:
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
