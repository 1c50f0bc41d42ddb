"""Keep histories of deploys and workers, and count slots by the hour.

Three new tables, so that workers of the release before run on beside them. Each step can be repeated, and looks
whether it is done. Nothing is locked that exists.

Revision ID: sw0004
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "sw0004"
down_revision = "sw0003"
branch_labels = None
depends_on = None

#: The instants that Python and every dialect can hold.
FIRST, END = "1900-01-01 00:00:00+00", "9002-01-01 00:00:00+00"
TABLES = ("deploys", "worker_history", "counts")


def upgrade() -> None:
    deploys = [
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("at", _instant(), primary_key=True),
        sa.Column("former", sa.Text),
        sa.Column("schedule", sa.Text, nullable=False),
        sa.Column("revision", sa.Text),
        sa.Column("worker", sa.Text, nullable=False),
    ]
    _create("deploys", deploys, ["at"], index=("at", "at"))
    history = [
        sa.Column("worker", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("revision", sa.Text),
        sa.Column("capacity", sa.Integer, nullable=False),
        sa.Column("tags", sa.Text),
        sa.Column("tasks", sa.Text),
        sa.Column("started", _instant(), nullable=False),
        sa.Column("drained", _instant()),
        sa.Column("ended", _instant()),
        sa.Column("outcome", sa.Text),
        sa.Column("reason", sa.Text),
    ]
    _create("worker_history", history, ["started", "drained", "ended"], index=("ended", "ended"))
    counts = [
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("hour", _instant(), primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("outcome", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("pruned", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    ]
    _create("counts", counts, ["hour"], index=("hour", "hour"))


def downgrade() -> None:
    for name in reversed(TABLES):
        op.drop_table(_name(name), schema=_schema(), if_exists=True)


def _create(name: str, columns: Sequence[sa.Column], instants: Sequence[str], index: tuple[str, str]) -> None:
    table = _name(name)
    context = op.get_context()
    if context.dialect.name in ("mysql", "mariadb"):
        from slotwise.contrib.mysql.ddl import create_table

        op.execute(create_table(context.dialect, _name(""), name, columns, index, schema=_schema()))
        return
    if not context.as_sql and sa.inspect(op.get_bind()).has_table(table, schema=_schema()):
        return
    check = sa.CheckConstraint(_are_known(instants), name=f"{table}_instants")
    op.create_table(table, *columns, check, schema=_schema())
    op.create_index(f"{table}_{index[0]}", table, [index[1]], schema=_schema())


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
