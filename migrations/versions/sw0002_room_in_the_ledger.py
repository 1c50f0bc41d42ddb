"""Room on the pages of the ledger, so that most settlements stay on their page (HOT); vacuum by two per cent.

It changes no column, so that the schema version stays, and workers run on beside it. It can be repeated. Its lock
(SHARE UPDATE EXCLUSIVE) blocks no reader and no writer. Pages that are full already keep their rows.

Revision ID: sw0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "sw0002"
down_revision = "sw0001"
branch_labels = None
depends_on = None

#: Each slot is inserted by its claim and updated by its settlement. Chosen by tests/store/test_growth.py.
STORAGE = {"fillfactor": "65", "autovacuum_vacuum_scale_factor": "0.02"}


def upgrade() -> None:
    _alter(f"SET ({', '.join(f'{name} = {value}' for name, value in STORAGE.items())})")


def downgrade() -> None:
    _alter(f"RESET ({', '.join(STORAGE)})")


def _alter(what: str) -> None:
    context = op.get_context()
    if context.dialect.name == "postgresql":
        name, schema = f"{context.opts.get('slotwise_prefix', 'scheduled_')}slots", context.opts.get("slotwise_schema")
        table = context.dialect.identifier_preparer.format_table(sa.Table(name, sa.MetaData(), schema=schema))
        op.execute(f"ALTER TABLE IF EXISTS {table} {what}")  # somebody may have dropped it
