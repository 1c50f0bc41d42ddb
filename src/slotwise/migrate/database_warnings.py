"""What to fix in a database whose tables are in order."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from slotwise.migrate.target import Target
from slotwise.store.operations.transaction import registered
from slotwise.store.reading.foreign import foreign_rows, told_foreign

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


#: The triggers that keep our rows and another program's apart, and what happens without each.
_TRIGGERS = {
    "keep_rows": "db-scheduler would delete the rows of tasks that it does not know",
    "mark_foreign": "a task with the name of one of db-scheduler's would take its rows",
}


def unguarded_warnings(connection: sa.Connection, target: Target) -> Iterator[str]:
    """Yield a warning for each trigger that somebody has dropped or disabled. Revisions ``sw0003``
    and ``sw0005`` make them.
    """
    if connection.dialect.name != "postgresql":
        return
    quoted = connection.dialect.identifier_preparer.format_table(target.tables.tasks)
    for name, danger in _TRIGGERS.items():
        trigger = f"{target.prefix}{name}"
        if not connection.scalar(_IS_GUARDED, {"table": quoted, "trigger": trigger}):
            yield _missing_trigger(target, trigger, danger)


def _missing_trigger(target: Target, trigger: str, danger: str) -> str:
    table = target.full(target.tables.tasks.name)
    return (
        f"the trigger {trigger} of {table} is missing or disabled: {danger}; enable it "
        f"(ALTER TABLE {table} ENABLE TRIGGER {trigger}), or make it again with its CREATE "
        f"TRIGGER in: {target.command('upgrade --sql')}"
    )


def foreign_warnings(connection: sa.Connection, target: Target) -> Iterator[str]:
    """Yield a warning for each task of a live worker whose name rows of another program have."""
    workers = target.tables.workers
    quoted = connection.dialect.identifier_preparer.format_table(workers)
    may_read = sa.func.pg_catalog.has_table_privilege(quoted, "SELECT")
    if connection.dialect.name != "postgresql" or not connection.scalar(may_read):
        return
    now = connection.scalar(sa.func.pg_catalog.statement_timestamp())
    known = registered(connection, target.tables, now)
    for name, count in foreign_rows(connection, target.tables, known).items():
        yield told_foreign(name, count)
