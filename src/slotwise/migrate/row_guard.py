"""The trigger that keeps other programs from deleting our rows: db-scheduler deletes the rows of
tasks that it does not know. Revision ``sw0003`` makes it.
"""

from __future__ import annotations

import sqlalchemy as sa

from slotwise.migrate.target import Target

_IS_GUARDED = sa.text(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger AS t "
    "WHERE t.tgrelid = CAST(pg_catalog.to_regclass(CAST(:table AS text)) AS oid) "
    "AND t.tgname = CAST(:trigger AS name) AND t.tgenabled IN ('O', 'A'))"
)


def unguarded_warning(
    connection: sa.Connection, *, prefix: str = "scheduled_", schema: str | None = None
) -> str | None:
    """Return a warning if somebody has dropped or disabled the trigger."""
    if connection.dialect.name != "postgresql":
        return None
    target = Target(prefix=prefix, schema=schema)
    trigger = f"{prefix}keep_rows"
    quote = connection.dialect.identifier_preparer.format_table
    named = {"table": quote(target.tables.tasks), "trigger": trigger}
    if connection.scalar(_IS_GUARDED, named):
        return None
    table = target.full(f"{prefix}tasks")
    return (
        f"the trigger {trigger} of {table} is missing or disabled: db-scheduler would delete the "
        f"rows of tasks that it does not know; enable it (ALTER TABLE {table} ENABLE TRIGGER "
        f"{trigger}), or make it again with its CREATE TRIGGER in: {target.command('sql')}"
    )
