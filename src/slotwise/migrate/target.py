"""Which tables are meant, and where; that none of somebody else's is among them; and the adoption of db-scheduler's."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.errors import SchemaMismatch, SchemaMissing
from slotwise.model.clock import elapsed
from slotwise.store.connect.database_errors import is_locked
from slotwise.store.schema.tables import columns_of_db_scheduler, tables

# alembic is imported late: every command and every worker imports this file, few of them migrate.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


#: How long an upgrade waits for a lock, or for another upgrade, in seconds.
PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which tables, and where: what ``db`` commands, ``apply`` and alembic's env.py have in common."""

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
        return frozenset(table.name for table in self.metadata.sorted_tables) | {self.version_table}

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
        """First thing in the migration's transaction: one upgrade at a time, and none over a foreign table."""
        if connection.dialect.name == "postgresql":
            # Race: several deploys upgrade at once. The lock lasts as long as the transaction, and the
            # revisions are read after it, so whoever waited finds nothing left to do. Race: an index that another
            # one builds concurrently waits for every statement that began before, so this one must not wait itself.
            connection.execute(sa.text(f"SET LOCAL lock_timeout = '{PATIENCE:.0f}s'"))
            lock = sa.text("SELECT pg_try_advisory_xact_lock(hashtext(:name))")
            self.wait_for(lambda: connection.scalar(lock, {"name": self.lock_name}))
            self.make_schema(connection.execute)
        self.is_foreign(connection)

    @property
    def lock_name(self) -> str:
        """The key of the advisory lock that each upgrade of these tables takes."""
        return f"slotwise.migrate.{self.prefix}"

    def wait_for(self, is_locked: Callable[[], bool | None]) -> None:
        """Ask until the lock of upgrades is ours. Raises SchemaMismatch if another upgrade takes too long."""
        end = elapsed() + PATIENCE
        while not is_locked():
            if elapsed() > end:
                raise SchemaMismatch(f"another upgrade of {self.prefix}* is running; wait until it has ended")
            time.sleep(0.1)

    def make_schema(self, execute: Callable[[Any], object]) -> None:
        """PostgreSQL's schema, if one was chosen: before everything else, also in SQL for somebody else."""
        if self.schema:
            execute(sa.schema.CreateSchema(self.schema, if_not_exists=True))

    def is_foreign(self, connection: sa.Connection) -> bool:
        """Whether the queue is a table of db-scheduler's, whose adoption may have begun.

        Raises SchemaMismatch for any other table in the way, SchemaMissing if there is none to adopt.
        """
        inspector, name = sa.inspect(connection), f"{self.prefix}tasks"
        there = {
            table.name: {column["name"] for column in inspector.get_columns(table.name, schema=table.schema)}
            for table in self.metadata.sorted_tables
            if inspector.has_table(table.name, schema=table.schema)
        }
        keys = {table.name: {column.name for column in table.primary_key} for table in self.metadata.sorted_tables}
        ours = {name for name, columns in there.items() if columns >= keys[name]}
        # One of our own marks is enough, so that a downgrade clears away what somebody else has left over.
        if ours & {f"{self.prefix}meta", f"{self.prefix}slots"}:
            return False
        if foreign := sorted(there.keys() - ours - {name}):
            raise SchemaMismatch(_NOT_OURS.format(foreign[0]))
        if name not in there:
            if self.adopt:
                raise SchemaMissing(f"there is no table {name} to adopt; leave --adopt out")
            return False
        theirs = {column.name for column in columns_of_db_scheduler()}
        if not theirs <= there[name] <= set(tables(self.prefix, self.schema).tasks.c.keys()):
            raise SchemaMismatch(_NOT_OURS.format(name))
        if not self.adopt:
            raise SchemaMismatch(
                f"table {name} exists and is db-scheduler's (its columns match): adopt it with `slotwise db upgrade "
                "--adopt`, or choose another name with --table-prefix"
            )
        return True


_NOT_OURS = "table {} exists and is not slotwise's; choose another name: --table-prefix or SLOTWISE_TABLE_PREFIX"


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


# -- the adoption of a table of db-scheduler's ------------------------------------------------------------------------

#: So long others may wait behind a step that waits, in seconds; and so often a step is tried, with a pause between.
LOCK_TIMEOUT, TRIES, PAUSE = 2.0, 60, 1.0


def adopt(connection: sa.Connection, target: Target, revision: Any, *, lock_timeout: float = LOCK_TIMEOUT) -> bool:
    """Take all steps that ``revision`` lists, over a connection of its own; return whether there was a table to adopt.

    Each step is a transaction and can be repeated, so an interrupted adoption goes on where it stopped. A step that
    blocks others waits for its lock for ``LOCK_TIMEOUT`` only, lets the others pass, and tries again. Indexes are built
    concurrently. Raises SchemaMismatch for a table that is not db-scheduler's, and if a step never gets its lock.
    """
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    with connection.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own, _alone(own, target):
        if not target.is_foreign(own):
            return False
        with Operations.context(MigrationContext.configure(own, opts=target.options())):
            steps = list(revision.module.adoption(target.prefix, target.schema, own.dialect))
        for index, statement in steps:
            if index and (is_valid := _is_valid(own, target, index)) is not None:
                if is_valid:
                    continue
                schema = f'"{target.schema}".' if target.schema else ""
                _take(own, f'DROP INDEX CONCURRENTLY {schema}"{index}"', 0)  # interrupted while it was built
            # These wait for others, and nobody who reads or writes waits for them.
            waits = bool(index) or " VALIDATE " in statement
            _take(own, statement, 0 if waits else lock_timeout)
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
                    f"another transaction keeps the table locked: {statement:.60} found no gap in {TRIES} tries; end "
                    "that transaction (see pg_stat_activity) and run it again: it goes on from here"
                ) from error
        time.sleep(PAUSE)


def _is_valid(own: sa.Connection, target: Target, index: str) -> bool | None:
    """Whether an index was built to its end; None: there is none of this name."""
    found: bool | None = own.scalar(
        sa.text(
            "SELECT i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid "
            "WHERE c.relname = :index AND c.relnamespace = coalesce(:schema, current_schema())::regnamespace"
        ),
        {"index": index, "schema": target.schema},
    )
    return found


@contextmanager
def _alone(own: sa.Connection, target: Target) -> Iterator[None]:
    """One upgrade at a time. The lock is the session's: an index that is built concurrently ends the transaction."""
    key = {"name": target.lock_name}
    target.wait_for(lambda: own.scalar(sa.text("SELECT pg_try_advisory_lock(hashtext(:name))"), key))
    try:
        yield
    finally:
        if not own.invalidated:
            own.execute(sa.text("SELECT pg_advisory_unlock(hashtext(:name))"), key)
