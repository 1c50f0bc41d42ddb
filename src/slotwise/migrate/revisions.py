"""Apply and check revisions of the tables, adopt a table of db-scheduler. Alembic is imported
late, when used.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.errors import ConfigurationError, SchemaMismatch, SchemaMissing
from slotwise.migrate.grants import FUNCTIONS
from slotwise.migrate.row_guard import guard_rows
from slotwise.model.clock import elapsed
from slotwise.store.connect.database_errors import is_locked
from slotwise.store.schema.tables import (
    SCHEMA_REVISION,
    SCHEMA_VERSION,
    Tables,
    columns_of_db_scheduler,
    tables,
)

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory


#: How long an upgrade waits for a lock, or for another upgrade, in seconds.
PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which tables, and where: what ``db`` commands, ``apply`` and alembic's env.py have in
    common.
    """

    prefix: str = "scheduled_"
    schema: str | None = None
    adopt: bool = False
    #: The steps of the adoption have been taken.
    adopted: bool = False

    @property
    def version_table(self) -> str:
        return f"{self.prefix}alembic_version"

    @property
    def table_names(self) -> frozenset[str]:
        """All that is ours, with alembic's own."""
        return frozenset(table.name for table in self.metadata.sorted_tables) | {
            self.version_table
        }

    @property
    def metadata(self) -> sa.MetaData:
        return tables(self.prefix, self.schema).metadata

    def options(self) -> dict[str, object]:
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
            "slotwise_adopted": self.adopted,
        }

    def _is_ours(self, name: str | None, kind: str, parents: object) -> bool:
        if kind == "schema":
            return name == self.schema
        if kind == "table":
            return name in self.table_names and name != self.version_table
        return True

    def prepare(self, connection: sa.Connection) -> None:
        """First thing in the migration's transaction: one upgrade at a time, and none over a
        foreign table.
        """
        if connection.dialect.name == "postgresql":
            # Race: several deploys upgrade at once. The lock lasts as long as the transaction, and
            # the revisions are read after it, so whoever waited finds nothing left to do. Race: an
            # index that another one builds concurrently waits for every statement that began
            # before, so this one must not wait itself.
            connection.execute(sa.text(f"SET LOCAL lock_timeout = '{PATIENCE:.0f}s'"))
            lock = sa.text(
                "SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtext(:name))"
            )
            self.wait_for(lambda: connection.scalar(lock, {"name": self.lock_name}))
            self.make_schema(connection.execute)
        self.is_foreign(connection)

    @property
    def lock_name(self) -> str:
        """The key of the advisory lock that each upgrade of these tables takes."""
        return f"slotwise.migrate.{self.prefix}"

    def wait_for(self, is_locked: Callable[[], bool | None]) -> None:
        """Ask until the lock of upgrades is ours. Raises SchemaMismatch if another upgrade takes
        too long.
        """
        end = elapsed() + PATIENCE
        while not is_locked():
            if elapsed() > end:
                raise SchemaMismatch(
                    f"another upgrade of {self.prefix}* is running; wait until it has ended"
                )
            time.sleep(0.1)

    def make_schema(self, execute: Callable[[Any], object]) -> None:
        """PostgreSQL's schema, if one was chosen: before everything else, also in SQL for
        somebody else.
        """
        if self.schema:
            execute(sa.schema.CreateSchema(self.schema, if_not_exists=True))

    def is_foreign(self, connection: sa.Connection) -> bool:
        """Whether the queue is db-scheduler's table. Raises SchemaMismatch for any other,
        SchemaMissing without one.
        """
        inspector = sa.inspect(connection)
        name = f"{self.prefix}tasks"
        there = {
            table.name: {
                column["name"]
                for column in inspector.get_columns(table.name, schema=table.schema)
            }
            for table in self.metadata.sorted_tables
            if inspector.has_table(table.name, schema=table.schema)
        }
        keys = {
            table.name: {column.name for column in table.primary_key}
            for table in self.metadata.sorted_tables
        }
        ours = {name for name, columns in there.items() if columns >= keys[name]}
        # One of our own marks is enough, so that a downgrade clears away what somebody else has
        # left over.
        if ours & {f"{self.prefix}meta", f"{self.prefix}slots"}:
            return False
        if foreign := sorted(there.keys() - ours - {name}):
            raise SchemaMismatch(_NOT_OURS.format(foreign[0]))
        if name not in there:
            if self.adopt:
                raise SchemaMissing(f"there is no table {name} to adopt; leave --adopt out")
            return False
        self._refuse_other_columns(inspector, name, there[name])
        if not self.adopt:
            raise SchemaMismatch(
                f"table {name} exists and is db-scheduler's (its columns match): "
                "adopt it with `slotwise db upgrade "
                "--adopt`, or choose another name with --table-prefix"
            )
        return True

    def _refuse_other_columns(
        self, inspector: sa.Inspector, name: str, there: set[str]
    ) -> None:
        """Raise SchemaMismatch for a table that is not db-scheduler's, or lacks or adds a column
        that hinders.

        db-scheduler itself needs no ``priority``, and writes beside columns of the team's own.
        """
        missing = {column.name for column in columns_of_db_scheduler()} - there
        if missing - {"priority"}:
            raise SchemaMismatch(_NOT_OURS.format(name))
        quoted = f"{self.schema}.{name}" if self.schema else name
        if missing:
            raise SchemaMismatch(
                f"table {name} is db-scheduler's and has no column priority, which slotwise "
                f"needs; run: ALTER TABLE {quoted} ADD COLUMN priority smallint"
            )
        ours = set(tables(self.prefix, self.schema).tasks.c.keys())
        for column in inspector.get_columns(name, schema=self.schema):
            is_needed = not column["nullable"] and column["default"] is None
            if column["name"] not in ours and is_needed:
                raise SchemaMismatch(
                    f"table {name} is db-scheduler's, and no row of slotwise's would have a value "
                    f"in its column {column['name']}, which is NOT NULL; run: ALTER TABLE "
                    f"{quoted} ALTER COLUMN {column['name']} DROP NOT NULL"
                )


_NOT_OURS = (
    "table {} exists and is not slotwise's; choose another name: --table-prefix or "
    "SLOTWISE_TABLE_PREFIX"
)


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
def _alembic(options: Mapping[str, object], **where: Any) -> Iterator[MigrationContext]:
    """Alembic's context, with its operations; it needs no env.py."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    context = MigrationContext.configure(opts=dict(options), **where)
    with Operations.context(context):
        yield context


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
    Works inside a running alembic ``env.py``. Raises SchemaMismatch if a foreign table is in the
    way.
    """
    return _migrate(
        connection, Target(prefix=prefix, schema=schema, adopt=adopt), revision, up=True
    )


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
    ConfigurationError for a revision that is above the applied one.
    """
    return _migrate(connection, Target(prefix=prefix, schema=schema), revision, up=False)


def _migrate(
    connection: sa.Connection, target: Target, revision: str, *, up: bool
) -> list[str]:
    from alembic.util import CommandError

    own = not connection.in_transaction()
    script = _script_directory()
    applied: list[str] = []

    def steps(current: Any, _context: MigrationContext) -> Any:
        if unknown := set(current) - known():
            raise SchemaMismatch(
                f"the tables are of revision {', '.join(sorted(unknown))}, by "
                f"{target.version_table}, which this "
                "slotwise does not know; upgrade slotwise here"
            )
        below = (
            {one.revision for one in script.iterate_revisions(current, "base")}
            if current
            else set()
        )
        if not up and revision in known() - below:
            there = (
                f"the applied revision, {', '.join(current)}"
                if current
                else "the database, where none is applied"
            )
            raise ConfigurationError(f"--revision {revision} is above {there}")
        # Private to alembic (pinned below 2, with a test): the public commands need an env.py.
        found = (
            script._upgrade_revs(revision, current)
            if up
            else script._downgrade_revs(revision, current)
        )
        applied.extend(step.revision.revision for step in found)
        return found

    if up and own and target.adopt and connection.dialect.name == "postgresql":
        target = replace(
            target, adopted=adopt_table(connection, target, script.get_revision("sw0001"))
        )
    try:
        with connection.begin() if own else nullcontext():
            target.prepare(connection)
            if up:
                refuse_unversioned(connection, prefix=target.prefix, schema=target.schema)
            options = {**target.options(), "fn": steps}
            with (
                _alembic(options, connection=connection) as context,
                context.begin_transaction(),
            ):
                context.run_migrations()
            if up and target.adopt and connection.dialect.name == "postgresql":
                guard_rows(connection, prefix=target.prefix, schema=target.schema)
            if (
                not up
                and connection.dialect.name == "postgresql"
                and not context.get_current_heads()
            ):
                for (
                    name
                ) in FUNCTIONS:  # of the triggers of grants, which went with their tables
                    function = f'"{target.schema or "public"}"."{target.prefix}{name}"'
                    connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS {function}()")
    except CommandError:  # a revision that is not among ours
        raise SchemaMismatch(
            f"--revision {revision!r} is none of base, {', '.join(sorted(known()))}; correct it"
        ) from None
    return applied


def known() -> set[str]:
    """Return the names of all revisions of this release."""
    return {found.revision for found in _script_directory().walk_revisions()}


def applied(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> str | None:
    """Return the revision that was applied; None without any, or for a role that may not read
    alembic's table.
    """
    target = Target(prefix=prefix, schema=schema)
    if connection.dialect.name == "postgresql":
        name = connection.dialect.identifier_preparer.format_table(
            sa.table(target.version_table, schema=schema)
        )
        if not connection.scalar(
            sa.func.pg_catalog.has_table_privilege(
                sa.func.pg_catalog.to_regclass(name), "SELECT"
            )
        ):
            return None
    with _alembic(target.options(), connection=connection) as context:
        return ", ".join(context.get_current_heads()) or None


def unapplied(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> str | None:
    """Return a warning about revisions that were not applied, although the schema version is the
    right one.
    """
    script = _script_directory()
    with _alembic(
        Target(prefix=prefix, schema=schema).options(), connection=connection
    ) as context:
        heads = context.get_current_heads()
    if not set(heads) <= known():
        return None  # a newer release has applied one that changes no column
    missing = [found.revision for found in script.iterate_revisions("heads", heads)]
    if not missing:
        return None
    return (
        f"not applied: {', '.join(reversed(missing))}; run: "
        f"{_command('upgrade', prefix, schema)}"
    )


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

    def steps(_current: object, _context: MigrationContext) -> Any:
        return script._upgrade_revs("heads", ())  # type: ignore[arg-type]

    options = {
        **target.options(),
        "fn": steps,
        "transactional_ddl": transaction,
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
    made = f"CREATE TABLE {f'{schema}.' if schema else ''}{target.version_table} "
    return buffer.getvalue().replace(
        made, made.replace("TABLE", "TABLE IF NOT EXISTS")
    )  # a downgrade leaves it


_VERSION = re.compile("[1-9][0-9]{0,8}")


def current(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> int | None:
    """Return the tables' schema version; None without tables. Raises SchemaMismatch, SchemaMissing
    if hidden.
    """
    meta = tables(prefix, schema, connection.dialect.name).meta
    if not sa.inspect(connection).has_table(meta.name, schema=schema):
        _refuse_hidden(connection, prefix, schema)
        return None
    value = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema_version"))
    if value is not None and _VERSION.fullmatch(value) is None:
        # The revisions would find nothing to do, so that an upgrade is no cure.
        raise SchemaMismatch(
            f"the schema_version in {meta.fullname} is {value!r:.60}, which is "
            "none; if this slotwise made the tables, "
            f"say so: UPDATE {meta.fullname} SET value = '{SCHEMA_VERSION}' WHERE "
            "key = 'schema_version'"
        )
    return None if value is None else int(value)


def check(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> None:
    """Raise SchemaMissing or SchemaMismatch, in one line with the command that cures it, unless
    all is in place.
    """
    found = current(connection, prefix=prefix, schema=schema)
    expected = tables(prefix, schema, connection.dialect.name)
    upgrade = _command("upgrade", prefix, schema)
    if found is None and not sa.inspect(connection).has_table(
        expected.slots.name, schema=schema
    ):
        there = ", ".join(_schemas(connection, prefix)) if schema else ""
        where = (
            f"the schema {schema}{there and f' (there are such in: {there})'}"
            if schema
            else "this database"
        )
        raise SchemaMissing(f"the tables {prefix}* are missing in {where}; run: {upgrade}")
    if found is not None and found != SCHEMA_VERSION:
        is_old = found < SCHEMA_VERSION
        cure = (
            f"needs {SCHEMA_VERSION}; run: {upgrade}"
            if is_old
            else f"knows {SCHEMA_VERSION}; upgrade slotwise here"
        )
        raise SchemaMismatch(
            f"the tables are of schema version {found}, this slotwise {cure}"
        )
    missing = _missing(connection, expected) or (
        [] if found else [f"rows of table {expected.meta.name}"]
    )
    if missing:
        cure = (
            "restore a backup, or start afresh: "
            f"{_command('downgrade', prefix, schema)}, then {upgrade}"
        )
        if all(what.startswith("index ") for what in missing):
            cure = (
                f"make it again with its CREATE INDEX in: {_command('sql', prefix, schema)}"
            )
        raise SchemaMismatch(f"missing in the database: {', '.join(missing)}; {cure}")


def refuse_unversioned(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> None:
    """Raise SchemaMismatch for tables without alembic's note of their revision: an upgrade would
    make them again.
    """
    inspector = sa.inspect(connection)
    name = f"{prefix}alembic_version"
    full = f"{schema}.{name}" if schema else name
    if not inspector.has_table(f"{prefix}meta", schema=schema):
        return
    if current(connection, prefix=prefix, schema=schema) != SCHEMA_VERSION:
        return
    cure = f"INSERT INTO {full} VALUES ('{SCHEMA_REVISION}')"
    if not inspector.has_table(name, schema=schema):
        cure = f"CREATE TABLE {full} (version_num varchar(32) PRIMARY KEY); {cure}"
    elif connection.scalar(
        sa.select(sa.func.count()).select_from(sa.table(name, schema=schema))
    ):
        return
    raise SchemaMismatch(
        f"the tables are there, and {full} does not say of which revision; run in SQL: {cure}"
    )


def _refuse_hidden(connection: sa.Connection, prefix: str, schema: str | None) -> None:
    """Where no schema was named, the tables may be in one that the search path leaves out, or the
    role's rights.
    """
    is_seen = schema is not None or sa.inspect(connection).has_table(f"{prefix}slots")
    found = [] if is_seen else _schemas(connection, prefix)
    if not found:
        return
    role, path = connection.execute(
        sa.text("SELECT current_user, pg_catalog.current_setting('search_path')")
    ).one()
    where = f"the tables {prefix}* are in the schema {' and '.join(found)}, and"
    if len(found) == 1 and not connection.scalar(
        sa.func.pg_catalog.has_schema_privilege(found[0], "USAGE")
    ):
        raise SchemaMissing(
            f"{where} role {role!r} may not use it; run: GRANT USAGE ON SCHEMA {found[0]} TO {role}"
        )
    raise SchemaMissing(
        f"{where} the search_path of role {role!r} is {path}; say --schema "
        f"{found[0]}, or SLOTWISE_SCHEMA"
    )


def _schemas(connection: sa.Connection, prefix: str) -> list[str]:
    """Where there are such tables, whoever may use them."""
    inspector = sa.inspect(connection)
    return sorted(
        one
        for one in inspector.get_schema_names()
        if inspector.has_table(f"{prefix}slots", schema=one)
    )


def _command(name: str, prefix: str, schema: str | None) -> str:
    where = f" --schema {schema}" if schema else ""
    return (
        "slotwise db "
        f"{name}{where}{f' --table-prefix {prefix}' if prefix != 'scheduled_' else ''}"
    )


def _missing(connection: sa.Connection, expected: Tables) -> list[str]:
    inspector = sa.inspect(connection)
    missing: list[str] = []
    for table in expected.metadata.sorted_tables:
        if not inspector.has_table(table.name, schema=table.schema):
            missing.append(f"table {table.name}")
            continue
        found = {
            column["name"]
            for column in inspector.get_columns(table.name, schema=table.schema)
        }
        missing += [
            f"column {table.name}.{column.name}"
            for column in table.columns
            if column.name not in found
        ]
        indexes = {
            index["name"]
            for index in inspector.get_indexes(table.name, schema=table.schema)
        }
        missing += [
            f"index {index.name}" for index in table.indexes if index.name not in indexes
        ]
    return missing


def include_name(
    name: str | None,
    kind: str,
    parents: Mapping[str, str | None],
    *,
    prefix: str = "scheduled_",
    schema: str | None = None,
) -> bool:
    """Keep ``alembic revision --autogenerate`` of your own project from dropping slotwise's
    tables.

    Give it to ``context.configure(include_name=…)`` in your env.py, or call it from yours; where
    the tables have another prefix or schema, as ``functools.partial(include_name,
    prefix="jobs_")``. False for slotwise's tables, alembic's version table for them included; True
    for all else.
    """
    ours = kind == "table" and name in Target(prefix=prefix, schema=schema).table_names
    return not ours or parents.get("schema_name") != schema


# -- the adoption of a table of db-scheduler's ----------------------------------------------------

#: So long others may wait behind a step that waits, in seconds; and so often a step is tried, with
#: a pause between.
LOCK_TIMEOUT = 2.0
TRIES = 60
PAUSE = 1.0


def adopt_table(connection: sa.Connection, target: Target, revision: Any) -> bool:
    """Take all steps that ``revision`` lists, on a connection of its own; return whether there was
    a table to adopt.

    Each step is a transaction that can be repeated. A step that blocks others waits for its lock
    for ``LOCK_TIMEOUT``, lets the others pass, and tries again. Raises SchemaMismatch.
    """
    with (
        connection.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own,
        _alone(own, target),
    ):
        if not target.is_foreign(own):
            return False
        with _alembic(target.options(), connection=own):
            steps = list(
                revision.module.adoption(target.prefix, target.schema, own.dialect)
            )
        for index, statement in steps:
            if index and (is_valid := _is_valid(own, target, index)) is not None:
                if is_valid:
                    continue
                schema = f'"{target.schema}".' if target.schema else ""
                _take(
                    own, f'DROP INDEX CONCURRENTLY {schema}"{index}"', 0
                )  # interrupted while it was built
            # These wait for others, and nobody who reads or writes waits for them.
            waits = bool(index) or " VALIDATE " in statement
            _take(own, statement, 0 if waits else LOCK_TIMEOUT)
    return True


def _take(own: sa.Connection, statement: str, lock_timeout: float) -> None:
    own.exec_driver_sql(f"SET lock_timeout = {int(lock_timeout * 1000)}")
    own.exec_driver_sql("SET statement_timeout = 0")
    for rest in reversed(range(TRIES)):
        try:
            own.exec_driver_sql(statement)
            return
        except DBAPIError as error:
            if not is_locked(error):
                raise
            if not rest:
                raise SchemaMismatch(
                    f"another transaction keeps the table locked: {statement:.60} "
                    f"found no gap in {TRIES} tries; end "
                    "that transaction (see pg_stat_activity) and run it again: it goes on from here"
                ) from error
        time.sleep(PAUSE)


def _is_valid(own: sa.Connection, target: Target, index: str) -> bool | None:
    """Whether an index was built to its end; None: there is none of this name."""
    found: bool | None = own.scalar(
        sa.text(
            "SELECT i.indisvalid FROM pg_catalog.pg_index AS i "
            "JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid "
            "WHERE c.relname = :index "
            "AND c.relnamespace = coalesce(:schema, pg_catalog.current_schema())::regnamespace"
        ),
        {"index": index, "schema": target.schema},
    )
    return found


@contextmanager
def _alone(own: sa.Connection, target: Target) -> Iterator[None]:
    """One upgrade at a time. The lock is the session's: an index that is built concurrently ends
    the transaction.
    """
    key = {"name": target.lock_name}
    target.wait_for(
        lambda: own.scalar(
            sa.text("SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtext(:name))"),
            key,
        )
    )
    try:
        yield
    finally:
        if not own.invalidated:
            own.execute(
                sa.text("SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtext(:name))"),
                key,
            )
