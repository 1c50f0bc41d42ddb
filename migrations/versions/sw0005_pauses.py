"""Keep pauses, which may end by themselves, and incidents.

New tables only, so that workers of the release before run on beside them. Each step can be repeated, and looks
whether it is done. Nothing is locked that exists.

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
TABLES = ("pauses", "incidents", "silences")


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


def downgrade() -> None:
    for name in reversed(TABLES):
        op.drop_table(_name(name), schema=_schema(), if_exists=True)


def _create(name: str, columns: Sequence[sa.Column], instants: Sequence[str], index: tuple[str, str]) -> None:
    table = _name(name)
    context = op.get_context()
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
