"""Guard our rows against deletes by other programs, and write reasons with underscores.

It changes no column, so that workers of the release before run on beside it: their connections say that they delete,
and readers know both forms of a reason. Each step can be repeated, and looks whether it is done.

Revision ID: sw0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "sw0003"
down_revision = "sw0002"
branch_labels = None
depends_on = None

#: How long a step waits for its lock, and others behind it.
LOCK_TIMEOUT = "5s"
#: The reasons of the core that had blanks, and the tables that have them.
REASONS = {"may still be running": "may_still_be_running", "next slot": "next_slot"}
TABLES = ("slots", "attempts")
#: Rows with a version above were made by us: it is born from the clock, where Java's begins at 1.
OURS = 10**15

#: A row of the trigger as this revision makes it: with a condition, so that a delete of our own calls no function.
IS_GUARDED = """
SELECT t.tgqual IS NOT NULL FROM pg_catalog.pg_trigger AS t
WHERE t.tgrelid = CAST(pg_catalog.to_regclass(CAST(:table AS text)) AS oid) AND t.tgname = CAST(:trigger AS name)"""


def upgrade() -> None:
    context = op.get_context()
    is_online = not context.as_sql
    is_postgresql = context.dialect.name == "postgresql"
    if is_online:  # a database that is made by a script has no rows, and no users
        before = op.get_bind().scalar(sa.text("SHOW lock_timeout")) if is_postgresql else None
        if is_postgresql:
            op.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        _rewrite_reasons()
    if is_postgresql and not (is_online and _is_guarded()):
        _guard()  # last, since its lock lasts to the end of the transaction
    if is_online and before is not None:
        op.execute(f"SET LOCAL lock_timeout = '{before}'")


def downgrade() -> None:
    """Workers of the release before read these reasons, and delete under the trigger."""


def _rewrite_reasons() -> None:
    for name in TABLES:
        table = sa.table(_name(name), sa.column("reason", sa.Text), schema=_schema())
        if not sa.inspect(op.get_bind()).has_table(_name(name), schema=_schema()):
            continue  # somebody may have dropped it
        now = sa.case(*((table.c.reason == old, new) for old, new in REASONS.items()))
        op.execute(table.update().where(table.c.reason.in_(list(REASONS))).values(reason=now))


def _is_guarded() -> bool:
    named = {"table": _quoted("tasks"), "trigger": _name("keep_rows")}
    return bool(op.get_bind().scalar(sa.text(IS_GUARDED).bindparams(**named)))


def _guard() -> None:
    # db-scheduler deletes rows of tasks that it does not know, also while somebody holds them. Our own deletes are
    # told apart by what our connections say, or the statement (a task cancelled in the caller's transaction), or an
    # operator's mark. Rows of dead tasks may be deleted by hand. In an adopted table this replaces a trigger without
    # a condition, and a function that named current_setting without its schema.
    function = _quoted("keep_rows")
    op.execute(
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog "
        "AS $$ BEGIN RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE OR REPLACE TRIGGER {_name('keep_rows')} BEFORE DELETE ON {_quoted('tasks')} FOR EACH ROW "
        f"WHEN (OLD.version > {OURS} AND coalesce(OLD.state, '') NOT IN ('deleted', 'dead') "
        "AND pg_catalog.current_setting('slotwise.delete', true) IS DISTINCT FROM 'on') "
        f"EXECUTE FUNCTION {function}()"
    )


def _name(name: str) -> str:
    return f"{op.get_context().opts.get('slotwise_prefix', 'scheduled_')}{name}"


def _schema() -> str | None:
    return op.get_context().opts.get("slotwise_schema")


def _quoted(name: str) -> str:
    table = sa.Table(_name(name), sa.MetaData(), schema=_schema())
    return op.get_context().dialect.identifier_preparer.format_table(table)
