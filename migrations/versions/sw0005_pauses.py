"""Keep pauses, which may end by themselves, and incidents; find failing jobs by an index; mark the rows that
db-scheduler wrote for itself.

No column changes, so that workers of the release before run on beside it. Each step can be repeated, and looks
whether it is done.

Revision ID: sw0005
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "sw0005"
down_revision = "sw0004"
branch_labels = None
depends_on = None

#: The instants that Python and every dialect can hold.
FIRST, END = "1900-01-01 00:00:00+00", "9002-01-01 00:00:00+00"
TABLES = ("pauses", "incidents", "silences", "instances", "scopes")
#: How long a step waits for its lock, and others behind it.
LOCK_TIMEOUT = "5s"
#: Rows with a version above were made, or have been held, by us.
OURS = 10**15


def upgrade() -> None:
    pauses = [
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("created", _instant(), nullable=False),
        sa.Column("until", _instant()),
        sa.Column("missed", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("note", sa.Text),
    ]
    _create("pauses", pauses, ["created", "until"], index=("until", "until"))
    incidents = [
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("opened", _instant(), nullable=False),
        sa.Column("seen", _instant(), nullable=False),
        sa.Column("closed", _instant()),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("delivered", sa.Text, nullable=False),
        sa.Column("next_attempt", _instant()),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("error", sa.Text),
    ]
    _create("incidents", incidents, ["opened", "seen", "closed", "next_attempt"], index=("opened", "opened"))
    silences = [
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("created", _instant(), nullable=False),
        sa.Column("until", _instant(), nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("note", sa.Text),
    ]
    _create("silences", silences, ["created", "until"], index=("until", "until"))
    instances = [
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("tags", sa.Text),
        sa.Column("updated", _instant(), nullable=False),
    ]
    of_scope = ("of_scope", "task_name", "scope", "task_instance")
    _create("instances", instances, ["updated"], index=of_scope)
    scopes = [
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("begun", _instant(), nullable=False),
        sa.Column("finished", _instant()),
    ]
    _create("scopes", scopes, ["begun", "finished"])
    _index_failing()
    if op.get_context().dialect.name == "postgresql":
        _mark_foreign()  # last, since its lock lasts to the end of the transaction


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        _unmark_foreign()
    if op.get_context().dialect.name not in ("mysql", "mariadb"):
        op.drop_index(_name("tasks_failing"), _name("tasks"), schema=_schema(), if_exists=True)
    for name in reversed(TABLES):
        op.drop_table(_name(name), schema=_schema(), if_exists=True)


def _is_foreign(row: str) -> str:
    """Whether db-scheduler wrote a row for itself: with data in Java's serialization, or as a recurring task."""
    return (
        f"{row}created_version IS NULL AND {row}kind = 'task' AND ({row}task_instance = 'recurring' "
        f"OR pg_catalog.substring({row}task_data, 1, 2) = pg_catalog.decode('aced', 'hex'))"
    )


def _mark_foreign() -> None:
    # A Python task with the name of one of Java's must not take its rows. They are marked as they are inserted: no
    # claim ever sees one without its mark, and no statement of ours grows. To hand such a row back after the claim
    # would be no cure: the claim has raised its version, so that db-scheduler's own update of what it runs finds no
    # row, and it runs the task again. An AFTER trigger, since a BEFORE trigger makes a COPY insert row by row.
    table, function = _quoted("tasks"), _quoted("mark_foreign")
    # Race: who holds a row at this moment goes on, as its version stays; one that a worker of ours has claimed stays
    # ours. The trigger's lock waits for all who insert, so that the second look finds what was inserted since the first.
    present = (
        f"UPDATE {table} SET kind = 'foreign', state = 'foreign' "
        f"WHERE {_is_foreign('')} AND version < {OURS} AND state IS NULL"
    )
    is_online = not op.get_context().as_sql
    if is_online and _is_marking():
        return
    if is_online:
        before = op.get_bind().scalar(sa.text("SHOW lock_timeout"))
        op.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        op.execute(present)
    op.execute(
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$ "
        "BEGIN EXECUTE format('UPDATE %I.%I SET kind = ''foreign'', state = ''foreign'' WHERE task_name = $1 "
        "AND task_instance = $2', TG_TABLE_SCHEMA, TG_TABLE_NAME) USING NEW.task_name, NEW.task_instance; "
        "RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE OR REPLACE TRIGGER {_name('mark_foreign')} AFTER INSERT ON {table} FOR EACH ROW "
        f"WHEN ({_is_foreign('NEW.')}) EXECUTE FUNCTION {function}()"
    )
    if is_online:
        op.execute(present)
        op.execute(f"SET LOCAL lock_timeout = '{before}'")


def _is_marking() -> bool:
    """Whether the trigger is there."""
    found = sa.text(
        "SELECT count(*) FROM pg_catalog.pg_trigger AS t WHERE t.tgname = CAST(:trigger AS name) "
        "AND t.tgrelid = CAST(pg_catalog.to_regclass(CAST(:table AS text)) AS oid)"
    )
    return bool(op.get_bind().scalar(found, {"table": _quoted("tasks"), "trigger": _name("mark_foreign")}))


def _unmark_foreign() -> None:
    table, function = _quoted("tasks"), _quoted("mark_foreign")
    found = sa.inspect(op.get_bind()).get_multi_columns(schema=_schema(), filter_names=[_name("tasks")])
    if not any(column["name"] == "kind" for columns in found.values() for column in columns):
        return  # somebody has dropped the table, or made it again
    op.execute(f"DROP TRIGGER IF EXISTS {_name('mark_foreign')} ON {table}")
    op.execute(f"DROP FUNCTION IF EXISTS {function}()")
    op.execute(f"UPDATE {table} SET kind = 'task', state = NULL WHERE kind = 'foreign'")


def _index_failing() -> None:
    """Find failing jobs and tasks without a look at the other rows. A row has its entry only while it is failing."""
    if op.get_context().dialect.name in ("mysql", "mariadb"):
        return  # there, the table came with this index
    table = _name("tasks")
    rows = sa.text("consecutive_failures > 0")
    is_locked = op.get_context().dialect.name == "postgresql" and not op.get_context().as_sql
    if is_locked:
        before = op.get_bind().scalar(sa.text("SHOW lock_timeout"))
        op.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    op.create_index(
        f"{table}_failing",
        table,
        ["task_name"],
        schema=_schema(),
        if_not_exists=True,
        postgresql_where=rows,
        sqlite_where=rows,
    )
    if is_locked:
        op.execute(f"SET LOCAL lock_timeout = '{before}'")


def _create(
    name: str,
    columns: Sequence[sa.Column],
    instants: Sequence[str],
    index: Sequence[str] = (),
) -> None:
    table = _name(name)
    context = op.get_context()
    if context.dialect.name in ("mysql", "mariadb"):
        from slotwise.contrib.mysql.ddl import create_table

        op.execute(create_table(context.dialect, _name(""), name, columns, *([index] if index else []), schema=_schema()))
        return
    if not context.as_sql and sa.inspect(op.get_bind()).has_table(table, schema=_schema()):
        return
    check = sa.CheckConstraint(_are_known(instants), name=f"{table}_instants")
    op.create_table(table, *columns, check, schema=_schema())
    if index:
        op.create_index(f"{table}_{index[0]}", table, list(index[1:]), schema=_schema())


def _instant() -> sa.types.TypeEngine:
    return sa.BigInteger() if op.get_context().dialect.name == "sqlite" else sa.DateTime(timezone=True)


def _are_known(instants: Sequence[str]) -> str:
    """Whether Python can hold these instants: no reader of the table would get past another one."""
    if op.get_context().dialect.name == "sqlite":
        first, end = (int(datetime.fromisoformat(text).timestamp()) * 1_000_000 for text in (FIRST, END))
        return " AND ".join(f"{name} >= {first} AND {name} < {end}" for name in instants)
    return " AND ".join(
        f"{name} >= timestamptz '{FIRST}' AND {name} < timestamptz '{END}'" for name in instants
    )


def _name(name: str) -> str:
    return f"{op.get_context().opts.get('slotwise_prefix', 'scheduled_')}{name}"


def _schema() -> str | None:
    return op.get_context().opts.get("slotwise_schema")


def _quoted(name: str) -> str:
    table = sa.Table(_name(name), sa.MetaData(), schema=_schema())
    return op.get_context().dialect.identifier_preparer.format_table(table)
