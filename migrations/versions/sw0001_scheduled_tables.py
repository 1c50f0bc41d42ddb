"""The tables: queue, ledger, gaps, attempts, workers, controls, calendars, starts, keys, receipts, meta.

Revisions are append-only: this one never changes again. Forward-safe rule for every later revision: workers of the
release before must go on working. docs/schema.md says what each table, column and index is for.

Revision ID: sw0001
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "sw0001"
down_revision = None
branch_labels = ("slotwise",)
depends_on = None

#: The instants that Python and every dialect can hold, with room for "never"; and versions that can still rise.
FIRST, END, LAST_VERSION = "1900-01-01 00:00:00+00", "9002-01-01 00:00:00+00", 2**62
#: Rows with a version above were made by us: it is born from the clock, where Java's begins at 1.
OURS = 10**15


class _Micros(sa.BigInteger):
    """An instant in SQLite."""


def _names() -> tuple[str, str | None]:
    opts = op.get_context().opts
    return opts.get("slotwise_prefix", "scheduled_"), opts.get("slotwise_schema")


def _is_sqlite() -> bool:
    return op.get_context().dialect.name == "sqlite"


def _instant() -> sa.types.TypeEngine:
    return _Micros() if _is_sqlite() else sa.DateTime(timezone=True)


def _duration() -> sa.types.TypeEngine:
    return sa.BigInteger() if _is_sqlite() else sa.Interval()


def _quoted(table: str, schema: str | None) -> str:
    return op.get_context().dialect.identifier_preparer.format_table(sa.Table(table, sa.MetaData(), schema=schema))


def _zero() -> sa.TextClause:
    return sa.text("0")


# -- values that are stopped at the door ------------------------------------------------------------------------------


def _checks(table: str, columns: Sequence[sa.Column]) -> Iterator[sa.CheckConstraint]:
    """A value that Python cannot hold would keep a worker from reading any row of its batch."""
    if instants := [column.name for column in columns if isinstance(column.type, (sa.DateTime, _Micros))]:
        yield sa.CheckConstraint(_are_known(instants), name=f"{table}_instants")
    names = ("version", "created_version", "token")
    versions = [found.name for found in columns if found.name in names and isinstance(found.type, sa.BigInteger)]
    if versions:
        yield sa.CheckConstraint(" AND ".join(f"{name} < {LAST_VERSION}" for name in versions), f"{table}_versions")


def _are_known(instants: Sequence[str]) -> str:
    if _is_sqlite():
        first, end = (int(datetime.fromisoformat(text).timestamp()) * 1_000_000 for text in (FIRST, END))
        return " AND ".join(f"{name} >= {first} AND {name} < {end}" for name in instants)
    # Two comparisons for all of them, whatever is null: each UPDATE evaluates them.
    listed = ", ".join(instants)
    return f"least({listed}) >= timestamptz '{FIRST}' AND greatest({listed}) < timestamptz '{END}'"


def _is_mysql() -> bool:
    return op.get_context().dialect.name in ("mysql", "mariadb")


def _create(table: str, schema: str | None, *columns: sa.Column) -> None:
    if _is_mysql():
        from slotwise.contrib.mysql.ddl import create_table

        prefix, _ = _names()
        name = table.removeprefix(prefix)
        op.execute(create_table(op.get_context().dialect, prefix, name, columns, schema=schema))
        return
    op.create_table(table, *columns, *_checks(table, columns), schema=schema)


# -- the queue --------------------------------------------------------------------------------------------------------


def _db_scheduler_columns() -> list[sa.Column]:
    """Same name, type and meaning as in db-scheduler; a foreign table with exactly these may be adopted."""
    return [
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
    ]


def _own_task_columns() -> list[sa.Column]:
    return [
        sa.Column("kind", sa.Text, nullable=False, server_default=sa.text("'task'")),
        sa.Column("slot", _instant()),
        sa.Column("watermark", _instant()),
        sa.Column("next_slot", _instant()),
        sa.Column("schedule", sa.Text),
        sa.Column("plan", sa.JSON),
        sa.Column("plan_instance", sa.Text),
        sa.Column("origin", sa.Text),
        sa.Column("collapsed", sa.BigInteger, nullable=False, server_default=_zero()),
        sa.Column("created_version", sa.BigInteger),
        sa.Column("attempt", sa.Integer, nullable=False, server_default=_zero()),
        sa.Column("lost_count", sa.Integer, nullable=False, server_default=_zero()),
        sa.Column("lease", _duration()),
        sa.Column("state", sa.Text),
        sa.Column("parked_due", _instant()),
        sa.Column("wanted_due", _instant()),
        sa.Column("waits_for", sa.Integer),
        sa.Column("cancel_requested", _instant()),
        sa.Column("unheld_since", _instant()),
        sa.Column("last_error", sa.Text),
        sa.Column("control", sa.BigInteger),
        sa.Column("pending", sa.JSON),
        sa.Column("marked", _instant()),
        sa.Column("limit_key", sa.Text),
        sa.Column("order_key", sa.Text),
        sa.Column("period", _duration()),
        sa.Column("anchor", _instant()),
    ]


def _task_indexes(table: str) -> list[tuple[str, str, str]]:
    """Name, columns and rows of each."""
    waiting = "NOT picked AND state IS NULL"
    # SQLAlchemy cannot read an index of expressions back from SQLite, which owes no speed.
    rank = "" if _is_sqlite() else "(-coalesce(priority, 50)), "
    return [
        (f"{table}_due", "execution_time", f"{waiting} AND kind <> 'task'"),
        (f"{table}_queue", f"task_name, {rank}execution_time", f"{waiting} AND kind = 'task'"),
        (f"{table}_lost", "execution_time", f"{waiting} AND lost_count > 0"),
        (f"{table}_held", "picked_by", "picked"),
        (f"{table}_parked", "state, task_name, task_instance", "state IS NOT NULL"),
        (f"{table}_beside", "task_name, plan_instance", "plan_instance IS NOT NULL"),
        (f"{table}_ordered", "task_name, order_key, created_version", "order_key IS NOT NULL"),
    ]


def _create_tasks(prefix: str, schema: str | None) -> None:
    table = f"{prefix}tasks"
    _create(table, schema, *_db_scheduler_columns(), *_own_task_columns())
    if _is_mysql():
        return
    for name, columns, rows in _task_indexes(table):
        op.execute(f"CREATE INDEX {name} ON {_quoted(table, schema)} ({columns}) WHERE {rows}")
    if not _is_sqlite():
        op.execute(_storage(_quoted(table, schema)))


def _storage(table: str) -> str:
    # A queue is all churn: vacuum by a fixed number of dead rows, not by a share of the table, and leave
    # room on each page so that heartbeats (no indexed column changes) stay on their page.
    return (
        f"ALTER TABLE {table} SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, "
        "autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)"
    )


# -- a table of db-scheduler's ----------------------------------------------------------------------------------------


def _adopt(prefix: str, schema: str | None) -> None:
    """In one transaction; ``migrate.apply`` has taken the steps before, one by one, where it could."""
    table = f"{prefix}tasks"
    if _is_sqlite():
        for column in _own_task_columns():
            op.add_column(table, column, schema=schema)
        for name, columns, rows in _task_indexes(table):
            op.execute(f"CREATE INDEX {name} ON {_quoted(table, schema)} ({columns}) WHERE {rows}")
        return
    for _, statement in adoption(prefix, schema, op.get_context().dialect):
        op.execute(statement.replace(" CONCURRENTLY", ""))


def adoption(prefix: str, schema: str | None, dialect: sa.Dialect) -> Iterator[tuple[str, str]]:
    """The steps of the adoption in PostgreSQL, with the index that a step builds or "". Each can be repeated.

    None rewrites the table. All but the indexes and the validation take a lock that blocks others, for a moment.
    """
    name, quote = f"{prefix}tasks", dialect.identifier_preparer.format_table
    table = quote(sa.Table(name, sa.MetaData(), schema=schema))
    function = quote(sa.Table(f"{prefix}keep_rows", sa.MetaData(), schema=schema))
    columns = [sa.schema.CreateColumn(column).compile(dialect=dialect) for column in _own_task_columns()]
    yield "", f"ALTER TABLE {table} {', '.join(f'ADD COLUMN IF NOT EXISTS {column}' for column in columns)}"
    yield "", f"ALTER TABLE {table} ALTER COLUMN priority SET DEFAULT 50"
    # Java writes its columns in its rows as it likes; in ours nobody may write what we cannot read.
    instants = [column.name for column in _own_task_columns() if isinstance(column.type, sa.DateTime)]
    theirs = [column.name for column in _db_scheduler_columns() if isinstance(column.type, sa.DateTime)]
    for what, condition in (
        ("instants", f"{_are_known(instants)} AND (version < {OURS} OR {_are_known(theirs)})"),
        ("versions", f"created_version < {LAST_VERSION}"),
    ):
        yield (
            "",
            f"DO $$ BEGIN ALTER TABLE {table} ADD CONSTRAINT {name}_{what} CHECK ({condition}) NOT VALID; "
            "EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        )
        yield "", f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}_{what}"
    # db-scheduler deletes rows of tasks that it does not know, also while somebody holds them. Our own deletes are
    # told apart by what our connections say, or the statement (a task cancelled in the caller's transaction), or an
    # operator's mark.
    yield (
        "",
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT "
        f"AS $$ BEGIN IF OLD.version > {OURS} AND OLD.state IS DISTINCT FROM 'deleted' "
        "AND coalesce(current_setting('slotwise.delete', true), '') <> 'on' "
        "THEN RETURN NULL; END IF; RETURN OLD; END $$",
    )
    yield (
        "",
        f"CREATE OR REPLACE TRIGGER {prefix}keep_rows BEFORE DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {function}()",
    )
    yield "", _storage(table)
    for index, keys, rows in _task_indexes(name):
        yield index, f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {index} ON {table} ({keys}) WHERE {rows}"


# -- all others -------------------------------------------------------------------------------------------------------


def upgrade() -> None:
    prefix, schema = _names()
    opts = op.get_context().opts
    if not opts.get("slotwise_adopt"):
        _create_tasks(prefix, schema)
    elif not opts.get("slotwise_adopted"):
        _adopt(prefix, schema)
    _create_ledger(prefix, schema)
    _create_bookkeeping(prefix, schema)
    _fill_meta(prefix, schema)


def _create_ledger(prefix: str, schema: str | None) -> None:
    slots = f"{prefix}slots"
    _create(
        slots,
        schema,
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("slot", _instant(), primary_key=True, autoincrement=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("origin", sa.Text, nullable=False, server_default=sa.text("'schedule'")),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=_zero()),
        sa.Column("lost", sa.Integer, nullable=False, server_default=_zero()),
        sa.Column("aborted", sa.Integer, nullable=False, server_default=_zero()),
        sa.Column("collapsed", sa.BigInteger, nullable=False, server_default=_zero()),
        sa.Column("token", sa.BigInteger),
        sa.Column("worker", sa.Text),
        sa.Column("started", _instant()),
        sa.Column("started_before", _instant()),
        sa.Column("finished", _instant()),
        sa.Column("error", sa.Text),
        sa.Column("result", sa.LargeBinary),
        sa.Column("expires", _instant()),
    )
    quoted = _quoted(slots, schema)
    if not _is_mysql():
        op.execute(f"CREATE INDEX {slots}_expires ON {quoted} (expires) WHERE expires IS NOT NULL")
        op.execute(
            f"CREATE INDEX {slots}_of_instances ON {quoted} (task_name, slot) WHERE task_instance <> 'recurring'"
        )
    _create(
        f"{prefix}gaps",
        schema,
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("first_slot", _instant(), primary_key=True, autoincrement=False),
        sa.Column("last_slot", _instant(), nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created", _instant(), nullable=False),
    )
    _create_index(f"{prefix}gaps", "last", ["task_name", "last_slot"], schema)
    _create(
        f"{prefix}attempts",
        schema,
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("slot", _instant(), primary_key=True, autoincrement=False),
        sa.Column("token", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("worker", sa.Text),
        sa.Column("claimed", _instant()),
        sa.Column("started", _instant()),
        sa.Column("ended", _instant()),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("error", sa.Text),
    )
    _create_index(f"{prefix}attempts", "ended", ["ended"], schema)


def _create_bookkeeping(prefix: str, schema: str | None) -> None:
    _create(
        f"{prefix}workers",
        schema,
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
    )
    _create(
        f"{prefix}controls",
        schema,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("at", _instant(), nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("task_name", sa.Text),
        sa.Column("slot", _instant()),
        sa.Column("arguments", sa.Text),
        sa.Column("note", sa.Text),
    )
    _create(
        f"{prefix}calendars",
        schema,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("weekend", sa.Text, nullable=False),
        sa.Column("days", sa.Text, nullable=False),
        sa.Column("updated", _instant(), nullable=False),
    )
    _create(
        f"{prefix}starts",
        schema,
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("at", _instant(), primary_key=True, autoincrement=False),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    _create(
        f"{prefix}keys",
        schema,
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("head", sa.Text),
        sa.Column("running", sa.Integer, nullable=False, server_default=_zero()),
        sa.Column("full_until", _instant()),
    )
    _create(
        f"{prefix}receipts",
        schema,
        sa.Column("receipt", sa.Text, primary_key=True),
        sa.Column("answer", sa.JSON),
        sa.Column("created", _instant(), nullable=False),
        sa.Column("expires", _instant(), nullable=False),
    )
    _create_index(f"{prefix}receipts", "expires", ["expires"], schema)


def _create_index(table: str, name: str, columns: list[str], schema: str | None) -> None:
    if not _is_mysql():  # there, a table comes with its indexes
        op.create_index(f"{table}_{name}", table, columns, schema=schema)


def _fill_meta(prefix: str, schema: str | None) -> None:
    if _is_mysql():
        key = sa.Column("key", sa.Text, primary_key=True)
        _create(f"{prefix}meta", schema, key, sa.Column("value", sa.Text, nullable=False))
        for name, value in (("installation_id", "uuid()"), ("schema_version", "'1'")):
            op.execute(f"INSERT IGNORE INTO {_quoted(f'{prefix}meta', schema)} VALUES ('{name}', {value})")
        return
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
    is_ours = _is_mysql() or _is_ours(f"{prefix}tasks", schema)
    tables = ("meta", "receipts", "keys", "starts", "calendars", "controls", "workers", "attempts", "gaps", "slots")
    for name in tables:
        op.drop_table(f"{prefix}{name}", schema=schema, if_exists=True)  # somebody may have dropped one
    if is_ours:
        op.drop_table(f"{prefix}tasks", schema=schema, if_exists=True)
    else:
        _give_back(prefix, schema)
    if not _is_sqlite() and not _is_mysql():
        op.execute(f"DROP FUNCTION IF EXISTS {_quoted(f'{prefix}keep_rows', schema)}()")


def _is_ours(table: str, schema: str | None) -> bool:
    """Whether we have made the table: its check of instants is then there from the start, and of each row."""
    if op.get_context().as_sql:
        raise CommandError("the database decides what is dropped, as an adopted table stays: run it without --sql")
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table(table, schema=schema):
        return True
    checks = inspector.get_check_constraints(table, schema=schema)
    return any(check["name"] == f"{table}_instants" and "version" not in check["sqltext"] for check in checks)


def _give_back(prefix: str, schema: str | None) -> None:
    """Leave a table that was adopted as it was, with its rows; a paused task gets its due time back."""
    table, name = _quoted(f"{prefix}tasks", schema), f"{prefix}tasks"
    if "kind" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns(name, schema=schema)}:
        return  # somebody has made the table again
    if not _is_sqlite():
        for trigger in ("keep_rows", "refuse_rows"):  # the second one is of `slotwise db grants`
            op.execute(f'DROP TRIGGER IF EXISTS "{prefix}{trigger}" ON {table}')
    op.execute(f"DELETE FROM {table} WHERE kind <> 'task'")
    op.execute(
        f"UPDATE {table} SET execution_time = parked_due WHERE parked_due IS NOT NULL AND coalesce(state, '') <> 'dead'"
    )
    for index, _, _ in _task_indexes(name):
        op.drop_index(index, table_name=name, schema=schema, if_exists=True)
    for column in _own_task_columns():  # and with them the checks
        op.drop_column(name, column.name, schema=schema)
    if not _is_sqlite():
        op.execute(
            f"ALTER TABLE {table} RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, "
            "autovacuum_analyze_scale_factor, autovacuum_vacuum_cost_delay)"
        )
