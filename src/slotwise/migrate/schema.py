"""The tables of an installation, as an operator handles them: create, check, drop, grant."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from slotwise.errors import ConfigurationError
from slotwise.migrate import checks, revisions
from slotwise.migrate.database_warnings import (
    creators_warning,
    foreign_warnings,
    unguarded_warnings,
)
from slotwise.migrate.grants import ROLES, grants
from slotwise.migrate.target import MYSQL, Target, Where, dialect_of_address
from slotwise.model.plugged_in import plugged_in
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.connect.database_errors import lacks_tables, sqlstate
from slotwise.store.connect.session_parameters import session_warnings
from slotwise.store.schema.tables import SCHEMA_VERSION

#: PostgreSQL's code for a role that does not exist.
_UNKNOWN_ROLE = "42704"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """The version of the tables, None without tables; the one that this slotwise needs; and the
    revision, None where the role may not read it.
    """

    version: int | None
    needed: int
    revision: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaUpgrade:
    """The revisions that were applied, none if all were; and what to fix."""

    applied: list[str]
    warnings: list[str]


class Schema:
    """Create, upgrade, check and drop the tables that these settings locate.

    Each call opens a connection of its own, without deadlines, and closes it. Raises a
    DatabaseProblem where the database cannot be used. For a migration of your own use
    ``slotwise.migrate.apply`` with its connection.
    """

    #: The roles of ``grants``.
    roles: ClassVar[tuple[str, ...]] = ROLES
    #: The version of the tables that this slotwise needs.
    needed: ClassVar[int] = SCHEMA_VERSION

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._where = Where(prefix=settings.table_prefix, schema=settings.schema)
        self._target = Target(**self._where)

    def upgrade(
        self, *, adopt: bool = False, revision: str = "heads"
    ) -> SchemaUpgrade:
        """Create the tables, or upgrade them, and check them if they are up to date. Several
        processes may do so at once.

        ``adopt``: take over a table of Java's db-scheduler. ``revision``: go no further than this
        one. Raises SchemaMismatch if a foreign table is in the way, or for an unknown revision.
        """
        with self._connected(new=True) as (connection, _):
            applied = revisions.apply(
                connection, adopt=adopt, revision=revision, **self._where
            )
            # alembic knows the revision only; columns may be missing
            if revision == "heads":
                checks.check(connection, **self._where)
            warning = creators_warning(connection, self._target)
        return SchemaUpgrade(applied=applied, warnings=[warning] if warning else [])

    @staticmethod
    def create_in(database: Database) -> None:
        """Create the tables in a database that is open, such as one in memory."""
        where = Where(
            prefix=database.settings.table_prefix, schema=database.settings.schema
        )
        with database.migrations().connect() as connection:
            revisions.apply(connection, **where)

    def version(self) -> SchemaVersion:
        """Return which version the tables have, and which this slotwise needs."""
        with self._connected() as (connection, _):
            version = checks.current(connection, **self._where)
            revision = revisions.applied(connection, self._target)
        return SchemaVersion(version=version, needed=SCHEMA_VERSION, revision=revision)

    def check(self) -> list[str]:
        """Return what to fix, a line for each with its command.

        Raises SchemaMissing or SchemaMismatch, with the cure, unless all tables, columns and
        indexes exist.
        """
        with self._connected() as (connection, database):
            checks.check(connection, **self._where)
            warnings = [
                database.pooler_warning,
                revisions.revision_warning(connection, self._target),
                *session_warnings(connection),
                creators_warning(connection, self._target),
                *unguarded_warnings(connection, self._target),
                *foreign_warnings(connection, self._target),
            ]
        return [warning for warning in warnings if warning]

    def sql(
        self,
        dialect: Literal["postgresql", "sqlite", "mariadb", "mysql"] | None = None,
        *,
        transaction: bool = True,
    ) -> str:
        """Return the SQL of a fresh installation, for a database administrator. Needs no database.

        ``dialect``: by default that of the address. ``transaction``: between BEGIN and COMMIT.
        """
        return revisions.sql(
            dialect or dialect_of_address(self._settings.database_url),
            transaction=transaction,
            **self._where,
        )

    def grants(self, role: str, to: str) -> str:
        """Return the statements that give the database role ``to`` what one of ``roles`` needs.

        They are for one transaction of PostgreSQL; no database is needed. With an address of
        MariaDB, ``to`` is an account. Raises ConfigurationError for what can be no name of it, or
        with SQLite, which has no roles.
        """
        kind = dialect_of_address(self._settings.database_url)
        if kind == "postgresql":
            return grants(role, to, **self._where)
        names = sorted(self._target.table_names)
        found = plugged_in("slotwise.grants", kind)(
            role, to, self._where["prefix"], names
        )
        return "".join(f"{statement};\n" for statement in found)

    def grant(self, role: str, to: str) -> None:
        """Execute ``grants``. Raises ConfigurationError if there is no such role."""
        statements = self.grants(role, to)
        with self._connected() as (connection, _):
            # A driver of MariaDB takes one statement at a time.
            parts = statements.split(";\n") if self._is_mysql else [statements]
            try:
                for part in filter(None, parts):
                    connection.exec_driver_sql(part.replace("%", "%%"))
            except SQLAlchemyError as error:
                connection.rollback()
                if sqlstate(error) == _UNKNOWN_ROLE:
                    cure = f"createuser {shlex.quote(to)}"
                    raise ConfigurationError(
                        f"--to {to}: there is no such role in this server; "
                        f"create it: {'CREATE USER' if self._is_mysql else cure}"
                    ) from None
                if lacks_tables(error):
                    checks.check(connection, **self._where)
                raise
            connection.commit()

    @property
    def _is_mysql(self) -> bool:
        return dialect_of_address(self._settings.database_url) in MYSQL

    def keeps_data(self, revision: str) -> bool:
        """Whether a downgrade to this revision loses nothing. Below ``sw0007`` events and
        skipped rows of batches are lost, below ``sw0006`` checkpoints, below ``sw0005`` pauses with
        an end, below ``sw0004`` histories and counts; ``base`` drops all.
        """
        return revision in revisions.known() - revisions.WITHOUT_EVENTS

    def downgrade(self, revision: str = "base") -> list[str]:
        """Go back to a revision, and return those that were reverted; ``base`` drops the tables
        with all data.

        A table that was adopted from db-scheduler keeps its columns and rows. Raises
        SchemaMismatch for an unknown revision, and ConfigurationError for one that was not
        applied.
        """
        with self._connected() as (connection, _):
            return revisions.revert(connection, revision=revision, **self._where)

    @contextmanager
    def _connected(
        self, *, new: bool = False
    ) -> Iterator[tuple[Connection, Database]]:
        """A connection without deadlines; ``new``: a SQLite file may be missing."""
        database = Database(self._settings)
        try:
            database.verify(new=new)
            with database.migrations().connect() as connection:
                yield connection, database
        finally:
            database.close()
