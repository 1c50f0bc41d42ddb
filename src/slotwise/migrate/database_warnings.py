"""What to fix in a database whose tables are in order."""

from __future__ import annotations

import sqlalchemy as sa

from slotwise.migrate.target import Target

#: Owners of a schema and of our tables, and superusers, need no such trick.
_CREATORS = """
SELECT n.nspname::text, CASE a.grantee WHEN 0::oid THEN 'PUBLIC'
    ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)::text) END AS role
FROM pg_catalog.pg_namespace AS n
CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) AS a
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.grantee
WHERE (n.nspname = ANY (pg_catalog.current_schemas(false)) OR n.nspname = CAST(:schema AS name))
  AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner AND r.rolsuper IS NOT TRUE
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_class AS c
    WHERE c.relname = CAST(:tasks AS name) AND c.relnamespace = n.oid AND c.relowner = a.grantee)
ORDER BY n.nspname, role"""


def creators_warning(connection: sa.Connection, target: Target) -> str | None:
    """Return a warning if other roles may create functions in a schema of the search_path.

    Schemas that this session searches, and that of the tables, are read; without PostgreSQL there
    are none.
    """
    if connection.dialect.name != "postgresql":
        return None
    named = {"schema": target.schema, "tasks": target.tables.tasks.name}
    found = connection.execute(sa.text(_CREATORS), named).all()
    if not found:
        return None
    who = " and ".join(f"{role} in {where}" for where, role in found)
    cures = "; ".join(
        f"REVOKE CREATE ON SCHEMA {where} FROM {role}" for where, role in found
    )
    return (
        f"other roles may create functions where sessions search for names: {who}; what they put "
        f"there may run with the rights of others; run: {cures}"
    )


_IS_GUARDED = sa.text(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger AS t "
    "WHERE t.tgrelid = CAST(pg_catalog.to_regclass(CAST(:table AS text)) AS oid) "
    "AND t.tgname = CAST(:trigger AS name) AND t.tgenabled IN ('O', 'A'))"
)


def unguarded_warning(connection: sa.Connection, target: Target) -> str | None:
    """Return a warning if somebody has dropped or disabled the trigger that keeps our rows.

    db-scheduler deletes the rows of tasks that it does not know. Revision ``sw0003`` makes it.
    """
    if connection.dialect.name != "postgresql":
        return None
    trigger = f"{target.prefix}keep_rows"
    quote = connection.dialect.identifier_preparer.format_table
    named = {"table": quote(target.tables.tasks), "trigger": trigger}
    if connection.scalar(_IS_GUARDED, named):
        return None
    table = target.full(target.tables.tasks.name)
    return (
        f"the trigger {trigger} of {table} is missing or disabled: db-scheduler would delete the "
        f"rows of tasks that it does not know; enable it (ALTER TABLE {table} ENABLE TRIGGER "
        f"{trigger}), or make it again with its CREATE TRIGGER in: "
        f"{target.command('upgrade --sql')}"
    )
