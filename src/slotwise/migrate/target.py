"""Which tables, and where: what ``db`` commands, ``apply`` and alembic's env.py have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import ObjectKind

from slotwise.errors import SchemaMismatch, SchemaMissing
from slotwise.model.clock import elapsed
from slotwise.model.plugged_in import plugged_in
from slotwise.store.schema.tables import Tables, tables

#: Columns of the queue that no statement names since revision sw0003. The release before reads
#: them, so that a later revision drops them.
UNUSED = ("period", "anchor")
#: How long an upgrade waits for a lock, or for another upgrade, in seconds.
PATIENCE = 60.0

#: Relations and types of our names that are no tables or views.
_IN_THE_WAY = sa.text(
    "SELECT found.name, found.kind FROM ("
    "SELECT c.relname::text, CASE c.relkind WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type' "
    "ELSE 'index' END, c.relnamespace FROM pg_catalog.pg_class AS c "
    "WHERE c.relkind IN ('S', 'i', 'I', 'c') "
    "UNION ALL SELECT t.typname::text, 'type', t.typnamespace FROM pg_catalog.pg_type AS t "
    "WHERE t.typrelid = 0::oid AND t.typelem = 0::oid) AS found(name, kind, place) "
    "WHERE found.name = ANY (CAST(:names AS text[])) AND found.place = "
    "coalesce(CAST(:schema AS text), pg_catalog.current_schema()::text)::regnamespace::oid "
    "ORDER BY found.name LIMIT 1"
)


#: The schema in which the search_path finds the tables, else the first one.
_SCHEMA = sa.text(
    "SELECT coalesce((SELECT n.nspname::text FROM pg_catalog.pg_namespace AS n "
    "JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid "
    "WHERE c.oid = CAST(coalesce(pg_catalog.to_regclass(CAST(:meta AS text)), "
    "pg_catalog.to_regclass(CAST(:slots AS text)), pg_catalog.to_regclass(CAST(:tasks AS text))) "
    "AS oid)), pg_catalog.current_schema()::text), pg_catalog.current_setting('search_path')"
)
#: A lock of a session of MariaDB. Its name is known on the whole server, and has at most 64
#: characters.
_LOCK = sa.text("SELECT GET_LOCK(md5(concat(database(), :name)), 1)")
_UNLOCK = sa.text("SELECT RELEASE_LOCK(md5(concat(database(), :name)))")
_SEARCH = sa.text(
    "SELECT pg_catalog.set_config('search_path', CAST(:path AS text), true)"
)


#: The names that SQLAlchemy gives to these databases.
MYSQL = ("mysql", "mariadb")


def is_mysql(connection: sa.Connection) -> bool:
    """Whether the database is MariaDB or MySQL, where each DDL statement commits by itself."""
    return connection.dialect.name in MYSQL


def dialect_of_address(address: str | None) -> str:
    """Return the dialect whose SQL is printed for an address: without a connection, its scheme
    tells MariaDB from MySQL.
    """
    scheme = (address or "").removeprefix("jdbc:")
    others = ("sqlite", "mariadb", "mysql")
    return next((name for name in others if scheme.startswith(name)), "postgresql")


class Where(TypedDict):
    """Prefix and schema of the tables, as most functions take them."""

    prefix: str
    schema: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The tables of one prefix and schema."""

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
        return frozenset(self.metadata_names) | {self.version_table}

    @property
    def metadata_names(self) -> list[str]:
        return [table.name for table in self.metadata.sorted_tables]

    @property
    def tables(self) -> Tables:
        return tables(self.prefix, self.schema)

    @property
    def metadata(self) -> sa.MetaData:
        return self.tables.metadata

    def full(self, name: str) -> str:
        """Return a name with its schema, as one writes it."""
        return f"{self.schema}.{name}" if self.schema else name

    def command(self, name: str) -> str:
        """Return the command of ``slotwise db`` for these tables."""
        where = f" --schema {self.schema}" if self.schema else ""
        prefix = (
            f" --table-prefix {self.prefix}" if self.prefix != "scheduled_" else ""
        )
        return f"slotwise db {name}{where}{prefix}"

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

    def _is_ours(
        self, name: str | None, kind: str, parents: Mapping[str, str | None]
    ) -> bool:
        if kind == "schema":
            return name == self.schema
        if kind == "column" and parents.get("table_name") == self.tables.tasks.name:
            return name not in UNUSED
        return kind != "table" or name in self.metadata_names

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

    @contextmanager
    def alone(self, connection: sa.Connection) -> Iterator[None]:
        """Keep other upgrades out on MariaDB, where no lock of a transaction outlives a step."""
        if not is_mysql(connection):
            yield
            return
        name = {"name": self.lock_name}
        self.wait_for(lambda: connection.scalar(_LOCK, name))
        try:
            yield
        finally:
            with suppress(sa.exc.SQLAlchemyError):  # the lock ends with its session
                connection.execute(_UNLOCK, name)

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

    def make_schema(self, execute: Callable[[sa.schema.CreateSchema], object]) -> None:
        """PostgreSQL's schema, if one was chosen: before everything else, also in SQL for
        somebody else.
        """
        if self.schema:
            execute(sa.schema.CreateSchema(self.schema, if_not_exists=True))

    @contextmanager
    def catalogue(self, connection: sa.Connection) -> Iterator[str | None]:
        """Let this transaction find functions and operators of PostgreSQL alone, and yield the
        schema of the tables, which must be named meanwhile.

        SQLAlchemy and alembic compare types of the catalogue that other roles may have made an
        operator for.
        """
        if connection.dialect.name != "postgresql":
            yield self.schema
            return
        quote = connection.dialect.identifier_preparer.quote
        names = {
            name: quote(f"{self.prefix}{name}") for name in ("meta", "slots", "tasks")
        }
        schema, path = connection.execute(_SCHEMA, names).one()
        connection.execute(_SEARCH, {"path": "pg_catalog"})
        yield self.schema or schema
        # after an error the transaction ends, and this with it
        connection.execute(_SEARCH, {"path": path})

    def columns(self, connection: sa.Connection) -> dict[str, set[str]]:
        """Return the tables and views of our names, each with its columns."""
        with self.catalogue(connection) as schema:
            found = sa.inspect(connection).get_multi_columns(
                schema=schema,
                filter_names=sorted(self.table_names),
                kind=ObjectKind.ANY,
            )
        return {
            name: {column["name"] for column in columns}
            for (_, name), columns in found.items()
        }

    def is_foreign(self, connection: sa.Connection) -> bool:
        """Whether the queue is db-scheduler's table. Raises SchemaMismatch for anything else of
        our names, SchemaMissing without a table to adopt.
        """
        queue = f"{self.prefix}tasks"
        there = self.columns(connection)
        there.pop(self.version_table, None)
        ours = {
            table.name
            for table in self.metadata.sorted_tables
            if there.get(table.name, set()) >= {key.name for key in table.primary_key}
        }
        # One of our own marks is enough, so that a downgrade clears away what somebody else has
        # left over.
        if ours & {f"{self.prefix}meta", f"{self.prefix}slots"}:
            return False
        if foreign := sorted(there.keys() - ours - {queue}):
            raise _not_ours("table", foreign[0])
        if queue not in there:
            if self.adopt:
                raise SchemaMissing(
                    f"there is no table {queue} to adopt; leave --adopt out"
                )
            self._refuse_in_the_way(connection)
            return False
        if is_mysql(connection) and there[queue] >= set(self.tables.tasks.c.keys()):
            return False  # a killed downgrade has left it
        is_theirs = plugged_in("slotwise.adoption", "db-scheduler-table")
        if not is_theirs(connection, self, there[queue]):
            raise _not_ours("table", queue)
        return True

    def _refuse_in_the_way(self, connection: sa.Connection) -> None:
        """Raise SchemaMismatch for a type, a sequence or an index of a name that we need."""
        if connection.dialect.name != "postgresql":
            return
        indexes = [
            str(index.name)
            for table in self.metadata.sorted_tables
            for index in table.indexes
        ]
        names = [*self.metadata_names, *indexes, f"{self.prefix}controls_id_seq"]
        given = {"names": names, "schema": self.schema}
        found = connection.execute(_IN_THE_WAY, given).first()
        if found is not None:
            raise _not_ours(found.kind, found.name)


def _not_ours(kind: str, name: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{kind} {name} exists and is not slotwise's; choose another name: --table-prefix or "
        "SLOTWISE_TABLE_PREFIX"
    )
