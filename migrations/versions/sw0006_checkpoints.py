"""Keep checkpoints: what a handler has saved for its next attempt.

No table changes, so that workers of the release before run on beside it. The step can be repeated.

Revision ID: sw0006
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "sw0006"
down_revision = "sw0005"
branch_labels = None
depends_on = None

#: The instants that Python and every dialect can hold.
FIRST, END = "1900-01-01 00:00:00+00", "9002-01-01 00:00:00+00"


def upgrade() -> None:
    if op.get_context().dialect.name in ("mysql", "mariadb"):
        _create_on_mysql()
        return
    if not op.get_context().as_sql and sa.inspect(op.get_bind()).has_table(_name(), schema=_schema()):
        return
    op.create_table(
        _name(),
        *_columns(),
        sa.CheckConstraint(_are_known("slot", "updated"), name=f"{_name()}_instants"),
        schema=_schema(),
    )


def _columns() -> list[sa.Column]:
    return [
        sa.Column("task_name", sa.Text, primary_key=True),
        sa.Column("task_instance", sa.Text, primary_key=True),
        sa.Column("slot", _instant(), primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("updated", _instant(), nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
    ]


def _create_on_mysql() -> None:
    from slotwise.contrib.mysql.ddl import create_table

    prefix = op.get_context().opts.get("slotwise_prefix", "scheduled_")
    op.execute(create_table(op.get_context().dialect, prefix, "checkpoints", _columns(), schema=_schema()))


def downgrade() -> None:
    op.drop_table(_name(), schema=_schema(), if_exists=True)


def _instant() -> sa.types.TypeEngine:
    return sa.BigInteger() if op.get_context().dialect.name == "sqlite" else sa.DateTime(timezone=True)


def _are_known(*instants: str) -> str:
    """Whether Python can hold these instants: no reader of the table would get past another one."""
    if op.get_context().dialect.name == "sqlite":
        first, end = (int(datetime.fromisoformat(text).timestamp()) * 1_000_000 for text in (FIRST, END))
        return " AND ".join(f"{name} >= {first} AND {name} < {end}" for name in instants)
    return " AND ".join(
        f"{name} >= timestamptz '{FIRST}' AND {name} < timestamptz '{END}'" for name in instants
    )


def _name() -> str:
    return f"{op.get_context().opts.get('slotwise_prefix', 'scheduled_')}checkpoints"


def _schema() -> str | None:
    return op.get_context().opts.get("slotwise_schema")
