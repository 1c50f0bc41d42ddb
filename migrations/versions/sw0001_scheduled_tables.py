"""The tables: queue, ledger, gaps, workers, controls, calendars, starts, meta.

Forward-safe rule for every later revision: workers of the release before must go on working.

Revision ID: sw0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "sw0001"
down_revision = None
branch_labels = ("slotwise",)
depends_on = None

#: The columns that a table of db-scheduler has; a foreign table with exactly these may be adopted.
DB_SCHEDULER = (
    "task_name", "task_instance", "task_data", "execution_time", "picked", "picked_by", "last_success",
    "last_failure", "consecutive_failures", "last_heartbeat", "version", "priority",
)  # fmt: skip


def _names() -> tuple[str, str | None]:
    opts = op.get_context().opts
    return opts.get("slotwise_prefix", "scheduled_"), opts.get("slotwise_schema")


def _is_sqlite() -> bool:
    return op.get_context().dialect.name == "sqlite"


def _instant() -> sa.types.TypeEngine:
    return sa.BigInteger() if _is_sqlite() else sa.DateTime(timezone=True)


def _duration() -> sa.types.TypeEngine:
    return sa.BigInteger() if _is_sqlite() else sa.Interval()


def _quoted(table: str, schema: str | None) -> str:
    return op.get_context().dialect.identifier_preparer.format_table(sa.Table(table, sa.MetaData(), schema=schema))


def _own_task_columns() -> list[sa.Column]:
    zero = sa.text("0")
    return [
        sa.Column("kind", sa.Text, nullable=False, server_default=sa.text("'task'")),
        sa.Column("slot", _instant()),
        sa.Column("watermark", _instant()),
        sa.Column("next_slot", _instant()),
        sa.Column("schedule", sa.Text),
        sa.Column("fingerprint", sa.Text),
        sa.Column("revision", sa.Text),
        sa.Column("deployed", _instant()),
        sa.Column("runs_on", sa.Text),
        sa.Column("plan_instance", sa.Text),
        sa.Column("origin", sa.Text),
        sa.Column("collapsed", sa.BigInteger, nullable=False, server_default=zero),
        sa.Column("created_version", sa.BigInteger),
        sa.Column("attempt", sa.Integer, nullable=False, server_default=zero),
        sa.Column("lost_count", sa.Integer, nullable=False, server_default=zero),
        sa.Column("trying_since", _instant()),
        sa.Column("lease", _duration()),
        sa.Column("state", sa.Text),
        sa.Column("parked_due", _instant()),
        sa.Column("wanted_due", _instant()),
        sa.Column("waits_for", sa.Integer),
        sa.Column("cancel_requested", _instant()),
        sa.Column("catch_up_until", _instant()),
        sa.Column("unheld_since", _instant()),
        sa.Column("last_error", sa.Text),
        sa.Column("control", sa.BigInteger),
    ]


def upgrade() -> None:
    prefix, schema = _names()
    if op.get_context().opts.get("slotwise_adopt"):
        _adopt(prefix, schema)
    else:
        _create_tasks(prefix, schema)
    _index_tasks(prefix, schema)
    _create_ledger(prefix, schema)
    _create_bookkeeping(prefix, schema)
    _fill_meta(prefix, schema)


def _create_tasks(prefix: str, schema: str | None) -> None:
    op.create_table(
        f"{prefix}tasks",
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("task_data", sa.LargeBinary),
        sa.Column("execution_time", _instant(), nullable=False),
        sa.Column("picked", sa.Boolean, nullable=False),
        sa.Column("picked_by", sa.Text),
        sa.Column("last_success", _instant()),
        sa.Column("last_failure", _instant()),
        sa.Column("consecutive_failures", sa.Integer),
        sa.Column("last_heartbeat", _instant()),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("priority", sa.SmallInteger, server_default=sa.text("50")),
        *_own_task_columns(),
        schema=schema,
    )


def _adopt(prefix: str, schema: str | None) -> None:
    """Take over db-scheduler's table: add our columns, and refuse deletes of our rows by its clean-up."""
    table = f"{prefix}tasks"
    for column in _own_task_columns():
        op.add_column(table, column, schema=schema)
    if _is_sqlite():
        return
    op.alter_column(table, "priority", server_default=sa.text("50"), schema=schema)
    function = _quoted(f"{prefix}keep_rows", schema)
    # db-scheduler deletes rows of tasks that it does not know, also while somebody holds them. Ours are told apart by
    # their version, which is born from the clock (> 10^15) where Java's begins at 1; and our own deletes by
    # what our connections say, or the statement (a task cancelled in the caller's transaction), or an operator's mark.
    op.execute(
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN "
        "IF OLD.version > 1000000000000000 AND OLD.state IS DISTINCT FROM 'deleted' "
        "AND coalesce(current_setting('slotwise.delete', true), '') <> 'on' "
        "THEN RETURN NULL; END IF; RETURN OLD; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {prefix}keep_rows BEFORE DELETE ON {_quoted(table, schema)} "
        f"FOR EACH ROW EXECUTE FUNCTION {function}()"
    )


def _index_tasks(prefix: str, schema: str | None) -> None:
    table = f"{prefix}tasks"
    waiting = "NOT picked AND state IS NULL"
    # SQLAlchemy cannot read an index of expressions back from SQLite, which owes no speed.
    rank = [] if _is_sqlite() else [sa.text("(-coalesce(priority, 50))")]
    for name, columns, condition in (
        ("due", ["execution_time"], f"{waiting} AND kind <> 'task'"),
        ("queue", ["task_name", *rank, "execution_time"], f"{waiting} AND kind = 'task'"),
        ("lost", ["execution_time"], f"{waiting} AND lost_count > 0"),
        ("held", ["picked_by"], "picked"),
        ("parked", ["state", "task_name", "task_instance"], "state IS NOT NULL"),
        ("beside", ["task_name", "plan_instance"], "plan_instance IS NOT NULL"),
    ):
        where = sa.text(condition)
        op.create_index(f"{table}_{name}", table, columns, schema=schema, postgresql_where=where, sqlite_where=where)
    if not _is_sqlite():
        # A queue is all churn: vacuum by a fixed number of dead rows, not by a share of the table, and leave
        # room on each page so that heartbeats (no indexed column changes) stay on their page.
        op.execute(
            f"ALTER TABLE {_quoted(table, schema)} SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, "
            "autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05, "
            "autovacuum_vacuum_cost_delay = 0)"
        )


def _create_ledger(prefix: str, schema: str | None) -> None:
    zero = sa.text("0")
    op.create_table(
        f"{prefix}slots",
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("slot", _instant(), primary_key=True, autoincrement=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("origin", sa.Text, nullable=False, server_default=sa.text("'schedule'")),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=zero),
        sa.Column("lost", sa.Integer, nullable=False, server_default=zero),
        sa.Column("aborted", sa.Integer, nullable=False, server_default=zero),
        sa.Column("collapsed", sa.BigInteger, nullable=False, server_default=zero),
        sa.Column("token", sa.BigInteger),
        sa.Column("worker", sa.Text),
        sa.Column("started", _instant()),
        sa.Column("started_before", _instant()),
        sa.Column("finished", _instant()),
        sa.Column("error", sa.Text),
        sa.Column("result", sa.LargeBinary),
        sa.Column("expires", _instant()),
        schema=schema,
    )
    kept = sa.text("expires IS NOT NULL")
    op.create_index(
        f"{prefix}slots_expires",
        f"{prefix}slots",
        ["expires"],
        schema=schema,
        postgresql_where=kept,
        sqlite_where=kept,
    )
    of_instances = sa.text("task_instance <> 'recurring'")
    op.create_index(
        f"{prefix}slots_of_instances",
        f"{prefix}slots",
        ["task_name", "slot"],
        schema=schema,
        postgresql_where=of_instances,
        sqlite_where=of_instances,
    )
    op.create_table(
        f"{prefix}gaps",
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("first_slot", _instant(), primary_key=True, autoincrement=False),
        sa.Column("last_slot", _instant(), nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created", _instant(), nullable=False),
        schema=schema,
    )
    op.create_index(f"{prefix}gaps_last", f"{prefix}gaps", ["task_name", "last_slot"], schema=schema)


def _create_bookkeeping(prefix: str, schema: str | None) -> None:
    op.create_table(
        f"{prefix}workers",
        sa.Column("worker", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("boot_id", sa.Text, nullable=False),
        sa.Column("tags", sa.Text),
        sa.Column("tasks", sa.Text),
        sa.Column("revision", sa.Text),
        sa.Column("refused", sa.Text),
        sa.Column("passed_over", sa.Text),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("capacity", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("started", _instant(), nullable=False),
        sa.Column("last_seen", _instant(), nullable=False),
        sa.Column("lease", _duration(), nullable=False),
        sa.Column("skew", sa.Float),
        schema=schema,
    )
    op.create_table(
        f"{prefix}controls",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("at", _instant(), nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("task_name", sa.Text),
        sa.Column("task_instance", sa.Text),
        sa.Column("slot", _instant()),
        sa.Column("arguments", sa.Text),
        sa.Column("note", sa.Text),
        schema=schema,
    )
    op.create_table(
        f"{prefix}calendars",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("weekend", sa.Text, nullable=False),
        sa.Column("days", sa.Text, nullable=False),
        sa.Column("updated", _instant(), nullable=False),
        schema=schema,
    )
    op.create_table(
        f"{prefix}starts",
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("at", _instant(), primary_key=True, autoincrement=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        schema=schema,
    )


def _fill_meta(prefix: str, schema: str | None) -> None:
    meta = op.create_table(
        f"{prefix}meta",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        schema=schema,
    )
    # The database that runs this makes the id: SQL that is run twice makes two installations.
    random = "lower(hex(randomblob(16)))" if _is_sqlite() else "gen_random_uuid()::text"
    op.execute(meta.insert().values(key="installation_id", value=sa.literal_column(random)))
    op.execute(meta.insert().values(key="schema_version", value="1"))


def downgrade() -> None:
    prefix, schema = _names()
    for name in ("meta", "starts", "calendars", "controls", "workers", "gaps", "slots", "tasks"):
        op.drop_table(f"{prefix}{name}", schema=schema, if_exists=True)  # somebody may have dropped one
    if not _is_sqlite():
        op.execute(f"DROP FUNCTION IF EXISTS {_quoted(f'{prefix}keep_rows', schema)}()")
