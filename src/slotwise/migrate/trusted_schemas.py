"""Which roles may put functions and operators where the sessions of workers look for names."""

from __future__ import annotations

import sqlalchemy as sa

from slotwise.store.schema.tables import tables

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


def creators_warning(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> str | None:
    """Return a warning if other roles may create functions in a schema of the search_path.

    Schemas that this session searches, and that of the tables, are read; without PostgreSQL there
    are none.
    """
    if connection.dialect.name != "postgresql":
        return None
    found = connection.execute(
        sa.text(_CREATORS), {"schema": schema, "tasks": tables(prefix, schema).tasks.name}
    ).all()
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
