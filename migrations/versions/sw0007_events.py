"""Keep events and their handlers, and rows that batches have set aside.

No column changes its meaning, so that workers of the release before run on beside it. Each step can be repeated,
and looks whether it is done.

Revision ID: sw0007
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "sw0007"
down_revision = "sw0006"
branch_labels = None
depends_on = None

#: The instants that Python and every dialect can hold.
FIRST, END = "1900-01-01 00:00:00+00", "9002-01-01 00:00:00+00"
TABLES = ("events", "event_handlers", "set_aside")
#: How long a step waits for its lock, and others behind it.
LOCK_TIMEOUT = "5s"
LONGEST_NAME, LONGEST_KEY = 100, 200
#: What the batches of a handler have done, beside its checkpoint.
PROGRESS = ("done", "total")


def upgrade() -> None:
    events = [
        sa.Column("id", _number(), sa.Identity(), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("data", sa.LargeBinary),
        sa.Column("published", _instant(), nullable=False),
        sa.Column("fanned_out", _instant()),
        sa.Column("handlers", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.CheckConstraint(
            f"length(name) BETWEEN 1 AND {LONGEST_NAME} AND length(key) <= {LONGEST_KEY}",
            name=_name("events_lengths"),
        ),
    ]
    # a number is never given twice, so that it tells which of two events came later
    if _create("events", events, ["published", "fanned_out"], sqlite_autoincrement=True):
        _index("events_waiting", "events", ["id"], "fanned_out IS NULL")
        _index("events_unhandled", "events", ["name", "id"], "fanned_out IS NOT NULL AND handlers = 0")
    handlers = [
        sa.Column("handler", sa.Text, primary_key=True),
        sa.Column("event", sa.Text, primary_key=True),
        sa.Column("since_id", sa.BigInteger, nullable=False),
        sa.Column("on_failure", sa.Text, nullable=False),
        sa.Column("priority", sa.SmallInteger),
        sa.Column("former", sa.Text),
        sa.Column("created", _instant(), nullable=False),
        sa.Column("retired", _instant()),
    ]
    _create("event_handlers", handlers, ["created", "retired"])
    set_aside = [
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("row_key", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("first_failed", _instant(), nullable=False),
        sa.Column("last_failed", _instant(), nullable=False),
    ]
    _create("set_aside", set_aside, ["first_failed", "last_failed"])
    _add_progress()


def downgrade() -> None:
    for name in reversed(TABLES):
        op.drop_table(_name(name), schema=_schema(), if_exists=True)
    there = _columns("checkpoints")
    for column in PROGRESS:
        if column in there:
            op.drop_column(_name("checkpoints"), column, schema=_schema())


def _add_progress() -> None:
    is_online = not op.get_context().as_sql
    is_locked = is_online and op.get_context().dialect.name == "postgresql"
    there = _columns("checkpoints") if is_online else set()
    missing = [column for column in PROGRESS if column not in there]
    if is_locked and missing:
        before = op.get_bind().scalar(sa.text("SHOW lock_timeout"))
        op.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    for column in missing:
        op.add_column(_name("checkpoints"), sa.Column(column, sa.BigInteger), schema=_schema())
    if is_locked and missing:
        op.execute(f"SET LOCAL lock_timeout = '{before}'")


def _columns(name: str) -> set[str]:
    found = sa.inspect(op.get_bind()).get_multi_columns(schema=_schema(), filter_names=[_name(name)])
    return {column["name"] for columns in found.values() for column in columns}


def _create(
    name: str,
    columns: Sequence[sa.Column | sa.CheckConstraint],
    instants: Sequence[str],
    **options: object,
) -> bool:
    """Create a table; return False if it is there."""
    table = _name(name)
    if op.get_context().dialect.name in ("mysql", "mariadb"):
        from slotwise.contrib.mysql.ddl import create_table

        op.execute(create_table(op.get_context().dialect, _name(""), name, columns, schema=_schema()))
        return False  # it came with its indexes
    if not op.get_context().as_sql and sa.inspect(op.get_bind()).has_table(table, schema=_schema()):
        return False
    check = sa.CheckConstraint(_are_known(instants), name=f"{table}_instants")
    op.create_table(table, *columns, check, schema=_schema(), **options)
    return True


def _index(name: str, table: str, columns: Sequence[str], rows: str) -> None:
    op.create_index(
        _name(name),
        _name(table),
        list(columns),
        schema=_schema(),
        postgresql_where=sa.text(rows),
        sqlite_where=sa.text(rows),
    )


def _number() -> sa.types.TypeEngine:
    return sa.BigInteger().with_variant(sa.Integer, "sqlite")


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
