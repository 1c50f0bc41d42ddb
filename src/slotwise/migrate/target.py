"""Which tables are meant, and where; and that none of somebody else's is among them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from slotwise.errors import SchemaMismatch, SchemaMissing
from slotwise.model.clock import elapsed
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
    database_url: str | None = None

    @classmethod
    def load(
        cls, *, database_url: str | None, prefix: str | None = None, schema: str | None = None, adopt: bool = False
    ) -> Target:
        """From arguments first, then from the settings (environment, slotwise.toml)."""
        from slotwise.settings.settings import Settings

        given: dict[str, Any] = {"database_url": database_url, "table_prefix": prefix, "schema": schema}
        settings = Settings.load(**{name: value for name, value in given.items() if value})
        return cls(
            prefix=settings.table_prefix, schema=settings.schema, adopt=adopt, database_url=settings.database_url
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

    @contextmanager
    def connect(self, given: sa.Connection | None = None) -> Iterator[sa.Connection]:
        """The connection that alembic was given, else one of our own."""
        if given is not None:
            yield given
            return
        from slotwise.settings.settings import Settings
        from slotwise.store.connect.database import Database

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
        ours = {table.name for table in self.metadata.sorted_tables if _has_key(table, there.get(table.name))}
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


def _has_key(table: sa.Table, found: set[str] | None) -> bool:
    return found is not None and found >= {column.name for column in table.primary_key}


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
