"""Whether the tables are there, of the right version, and readable by this role."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from slotwise.errors import SchemaMismatch, SchemaMissing
from slotwise.migrate.target import Target, is_mysql
from slotwise.store.schema.tables import (
    SCHEMA_REVISION,
    SCHEMA_VERSION,
    Tables,
    tables,
)

_VERSION = re.compile("[1-9][0-9]{0,8}")

#: Our tables whose rows a policy may hide from this role; it reads the catalogue only.
_SECURED = sa.text(
    "SELECT c.relname::text, pg_catalog.current_setting('row_security') AS setting, "
    "current_user::text AS role "
    "FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.relname::text = ANY (CAST(:names AS text[])) AND c.relkind IN ('r', 'p') "
    "AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_catalog.pg_table_is_visible(c.oid) "
    "ELSE n.nspname::text = CAST(:schema AS text) END "
    "AND pg_catalog.row_security_active(c.oid) ORDER BY c.relname"
)


def current(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> int | None:
    """Return the tables' schema version; None without tables. Raises SchemaMismatch, SchemaMissing
    if hidden.
    """
    meta = tables(prefix, schema, connection.dialect.name).meta
    target = Target(prefix=prefix, schema=schema)
    with target.catalogue(connection) as where:
        is_there = sa.inspect(connection).has_table(meta.name, schema=where)
    if not is_there:
        _refuse_hidden_tables(connection, target)
        return None
    value = connection.scalar(
        sa.select(meta.c.value).where(meta.c.key == "schema_version")
    )
    if value is None:
        return None
    if _VERSION.fullmatch(value) is None:
        # The revisions would find nothing to do, so that an upgrade is no cure.
        raise SchemaMismatch(
            f"the schema_version in {meta.fullname} is {value!r:.60}, which is "
            "none; if this slotwise made the tables, "
            f"say so: UPDATE {meta.fullname} SET value = '{SCHEMA_VERSION}' WHERE "
            "key = 'schema_version'"
        )
    return int(value)


def check(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> None:
    """Raise SchemaMissing or SchemaMismatch, in one line with the command that cures it, unless
    all is in place. No cure loses data.
    """
    target = Target(prefix=prefix, schema=schema)
    secured = _secured(connection, target)
    if secured and secured[0].setting == "off":
        raise _hidden(target, secured)
    found = current(connection, prefix=prefix, schema=schema)
    there = target.columns(connection)
    if found is None and f"{prefix}slots" not in there:
        raise SchemaMissing(
            f"the tables {prefix}* are missing in {_place(connection, target)}; "
            f"run: {target.command('upgrade')}"
        )
    if found is None and secured:
        raise _hidden(target, secured)
    if found is not None and found != SCHEMA_VERSION:
        cure = f"knows {SCHEMA_VERSION}; upgrade slotwise here"
        if found < SCHEMA_VERSION:
            cure = f"needs {SCHEMA_VERSION}; run: {target.command('upgrade')}"
        raise SchemaMismatch(
            f"the tables are of schema version {found}, this slotwise {cure}"
        )
    _refuse_missing(connection, target, there, has_version=found is not None)


def _place(connection: sa.Connection, target: Target) -> str:
    if not target.schema:
        return "this database"
    others = ", ".join(_schemas(connection, target))
    return f"the schema {target.schema}" + (
        f" (there are such in: {others})" if others else ""
    )


def _refuse_missing(
    connection: sa.Connection,
    target: Target,
    there: Mapping[str, set[str]],
    *,
    has_version: bool,
) -> None:
    """Raise SchemaMismatch, with a cure that keeps what is there, for what somebody removed."""
    expected = tables(target.prefix, target.schema, connection.dialect.name)
    lost_tables, lost_columns, lost_indexes = _missing(
        connection, target, expected, there
    )
    found = [*lost_tables, *lost_columns, *lost_indexes]
    if found and has_version:
        from slotwise.migrate.revisions import (
            revision_warning,
        )  # late: it imports this

        if warning := revision_warning(connection, target):
            raise SchemaMismatch(
                f"missing in the database: {', '.join(found)}; {warning}"
            )
    sql = target.command("upgrade --sql")
    if lost_tables:
        cure = f"restore a backup, or make it again, empty, with its CREATE TABLE in: {sql}"
    elif lost_columns:
        cure = "restore a backup of its table"
    elif lost_indexes:
        cure = f"make it again with its CREATE INDEX in: {sql}"
    elif has_version:
        return
    else:
        meta = expected.meta.fullname
        found = [f"rows of table {expected.meta.name}"]
        cure = (
            "restore a backup of it; if this slotwise made the tables, say so: "
            f"INSERT INTO {meta} VALUES ('schema_version', '{SCHEMA_VERSION}')"
        )
    raise SchemaMismatch(f"missing in the database: {', '.join(found)}; {cure}")


def _missing(
    connection: sa.Connection,
    target: Target,
    expected: Tables,
    there: Mapping[str, set[str]],
) -> tuple[list[str], list[str], list[str]]:
    """Return the tables, columns and indexes that are missing."""
    with target.catalogue(connection) as schema:
        found = sa.inspect(connection).get_multi_indexes(
            schema=schema, filter_names=list(there)
        )
    known = {index["name"] for indexes in found.values() for index in indexes}
    every = expected.metadata.sorted_tables
    present = [table for table in every if table.name in there]
    return (
        [f"table {table.name}" for table in every if table.name not in there],
        [
            f"column {table.name}.{column.name}"
            for table in present
            for column in table.columns
            if column.name not in there[table.name]
        ],
        [
            f"index {index.name}"
            for table in present
            for index in table.indexes
            if index.name not in known
        ],
    )


class Secured(NamedTuple):
    """A table whose rows a policy may hide from this role, and the session's setting."""

    table: str
    setting: str
    role: str


def _secured(connection: sa.Connection, target: Target) -> list[Secured]:
    """Return our tables whose rows a policy may hide from this role."""
    if connection.dialect.name != "postgresql":
        return []
    named = {"names": sorted(target.table_names), "schema": target.schema}
    return [Secured(*row) for row in connection.execute(_SECURED, named)]


def _hidden(target: Target, secured: list[Secured]) -> SchemaMismatch:
    names = [target.full(one.table) for one in secured]
    cures = "; ".join(
        f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY" for name in names
    )
    return SchemaMismatch(
        f"row-level security hides rows of {', '.join(names)} from role {secured[0].role!r}; "
        f"run as the owner of the tables: {cures}; or let tenants see their rows, as the page on "
        "security says"
    )


def refuse_unversioned(
    connection: sa.Connection, target: Target, heads: tuple[str, ...] | None
) -> None:
    """Raise SchemaMismatch for tables without alembic's note of their revision: an upgrade would
    make them again. ``heads``: what is noted, None if this role may not read it.
    """
    if heads is None or heads or is_mysql(connection):
        return  # on MariaDB each step can be repeated, also after a kill before the note
    there = target.columns(connection)
    if f"{target.prefix}meta" not in there:
        return
    version = current(connection, prefix=target.prefix, schema=target.schema)
    if version != SCHEMA_VERSION:
        return
    full = target.full(target.version_table)
    cure = f"INSERT INTO {full} VALUES ('{SCHEMA_REVISION}')"
    if target.version_table not in there:
        cure = f"CREATE TABLE {full} (version_num varchar(32) PRIMARY KEY); {cure}"
    raise SchemaMismatch(
        f"the tables are there, and {full} does not say of which revision; run in SQL: {cure}"
    )


def _refuse_hidden_tables(connection: sa.Connection, target: Target) -> None:
    """Where no schema was named, the tables may be in one that the search path leaves out, or the
    role's rights.
    """
    if connection.dialect.name != "postgresql":
        return
    slots = f"{target.prefix}slots"
    is_seen = target.schema is not None or slots in target.columns(connection)
    found = [] if is_seen else _schemas(connection, target)
    if not found:
        return
    role, path = connection.execute(
        sa.text("SELECT current_user, pg_catalog.current_setting('search_path')")
    ).one()
    where = f"the tables {target.prefix}* are in the schema {' and '.join(found)}, and"
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


def _schemas(connection: sa.Connection, target: Target) -> list[str]:
    """Where there are such tables, whoever may use them."""
    with target.catalogue(connection):
        inspector = sa.inspect(connection)
        return sorted(
            one
            for one in inspector.get_schema_names()
            if inspector.has_table(f"{target.prefix}slots", schema=one)
        )


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
