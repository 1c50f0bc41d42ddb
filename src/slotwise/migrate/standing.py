"""Where a database stands: which version its tables have, and what they lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from slotwise.errors import SchemaMismatch, SchemaMissing
from slotwise.store.tables import SCHEMA_VERSION, tables

# alembic is imported late: every command and every worker imports this file, few of them migrate.
if TYPE_CHECKING:
    pass


def current(connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None) -> int | None:
    """The schema version that the database says it has; None without tables."""
    meta = tables(prefix, schema, connection.dialect.name).meta
    if not sa.inspect(connection).has_table(meta.name, schema=schema):
        return None
    value = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema_version"))
    return int(value) if value is not None else None


def check(connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None) -> None:
    """Raise SchemaMissing or SchemaMismatch, in one line with the mending command, unless all is in place."""
    found = current(connection, prefix=prefix, schema=schema)
    expected, upgrade = tables(prefix, schema, connection.dialect.name), _command("upgrade", prefix, schema)
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
