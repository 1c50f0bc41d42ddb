"""Where a database stands: which version its tables have, and what they lack."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa

from slotwise.errors import SchemaMismatch, SchemaMissing
from slotwise.store.schema.tables import SCHEMA_VERSION, tables

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
    """Raise SchemaMissing or SchemaMismatch, in one line with the mending command, unless all is in place."""
    found = current(connection, prefix=prefix, schema=schema)
    expected, upgrade = tables(prefix, schema, connection.dialect.name), _command("upgrade", prefix, schema)
    if found is None and not sa.inspect(connection).has_table(expected.slots.name, schema=schema):
        raise SchemaMissing(f"{_absent(connection, prefix, schema)}; run: {upgrade}")
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


def refuse_unversioned(connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None) -> None:
    """Raise SchemaMismatch for tables without alembic's note of their revision: an upgrade would make them again."""
    inspector, name = sa.inspect(connection), f"{prefix}alembic_version"
    full, revision = f"{schema}.{name}" if schema else name, f"sw{SCHEMA_VERSION:04d}"
    if not inspector.has_table(f"{prefix}meta", schema=schema):
        return
    if current(connection, prefix=prefix, schema=schema) != SCHEMA_VERSION:
        return
    if not inspector.has_table(name, schema=schema):
        cure = f"CREATE TABLE {full} (version_num varchar(32) PRIMARY KEY); INSERT INTO {full} VALUES ('{revision}')"
    elif connection.scalar(sa.select(sa.func.count()).select_from(sa.table(name, schema=schema))):
        return
    else:
        cure = f"INSERT INTO {full} VALUES ('{revision}')"
    raise SchemaMismatch(f"the tables are there, and {full} does not say of which revision; run in SQL: {cure}")


def _absent(connection: sa.Connection, prefix: str, schema: str | None) -> str:
    if schema is None:
        return f"the tables {prefix}* are missing in this database"
    there = ", ".join(_schemas(connection, prefix))
    return f"the tables {prefix}* are missing in the schema {schema}{f' (there are such in: {there})' if there else ''}"


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
