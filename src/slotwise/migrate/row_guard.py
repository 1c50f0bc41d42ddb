"""The trigger that keeps other programs from deleting our rows: db-scheduler deletes the rows of
tasks that it does not know.
"""

from __future__ import annotations

import sqlalchemy as sa

from slotwise.store.schema.tables import tables

#: Versions of our rows are above: they are born from the clock, where db-scheduler's begin at 1.
OURS = 10**15

_HAS_TRIGGER = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_trigger AS t
    WHERE t.tgrelid = CAST(pg_catalog.to_regclass(CAST(:table AS text)) AS oid)
      AND t.tgname = CAST(:trigger AS name))"""


def guard_rows(connection: sa.Connection, *, prefix: str, schema: str | None) -> None:
    """Create the trigger on a table of our own, as the adoption of db-scheduler's does."""
    table, function = _names(connection, prefix, schema)
    connection.exec_driver_sql(
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql "
        "SET search_path = pg_catalog "
        f"AS $$ BEGIN IF OLD.version > {OURS} AND OLD.state IS DISTINCT FROM 'deleted' "
        "AND coalesce(pg_catalog.current_setting('slotwise.delete', true), '') <> 'on' "
        "THEN RETURN NULL; END IF; RETURN OLD; END $$"
    )
    connection.exec_driver_sql(
        f'CREATE OR REPLACE TRIGGER "{prefix}keep_rows" BEFORE DELETE ON {table} '
        f"FOR EACH ROW EXECUTE FUNCTION {function}()"
    )


def unguarded_warning(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> str | None:
    """Return a warning if another program writes rows into the queue, and may delete ours."""
    if connection.dialect.name != "postgresql":
        return None
    table, _ = _names(connection, prefix, schema)
    named = {"table": table, "trigger": f"{prefix}keep_rows"}
    if connection.scalar(sa.text(_HAS_TRIGGER), named):
        return None
    tasks = tables(prefix, schema).tasks
    foreign = sa.select(tasks.c.task_name).where(
        tasks.c.version < sa.literal(OURS, sa.BigInteger)
    )
    name = connection.scalar(foreign.limit(1))
    if name is None:
        return None
    return (
        f"another program writes rows into {tasks.fullname} (task {name!r:.80}); db-scheduler "
        "deletes the rows of tasks that it does not know; to keep ours, run: slotwise db upgrade "
        "--adopt"
    )


def _names(connection: sa.Connection, prefix: str, schema: str | None) -> tuple[str, str]:
    quote = connection.dialect.identifier_preparer.format_table
    return (
        quote(sa.table(f"{prefix}tasks", schema=schema)),
        quote(sa.table(f"{prefix}keep_rows", schema=schema)),
    )
