"""A revision of the next release, for the test of upgrades only: a column in each hot table that
no release knows.

Revision ID: sw9999
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "sw9999"
down_revision = "sw0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("scheduled_witness", sa.Column("what", sa.Text))
    for name in ("tasks", "slots", "gaps", "workers", "meta"):
        # Before the last columns that the release has would be as good: no statement counts
        # columns.
        op.execute(
            f"ALTER TABLE scheduled_{name} ADD COLUMN flavour text NOT NULL "
            "DEFAULT md5(random()::text)"
        )
    op.create_index("scheduled_tasks_flavour", "scheduled_tasks", ["flavour"])
    op.execute(
        "CREATE FUNCTION scheduled_watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO scheduled_witness VALUES (TG_TABLE_NAME || ': ' || "
        "NEW.flavour); RETURN NEW; END $$"
    )
    for name in ("tasks", "slots", "gaps", "workers", "meta"):
        op.execute(
            f"CREATE TRIGGER scheduled_watch BEFORE UPDATE ON scheduled_{name} FOR EACH ROW "
            "WHEN (OLD.flavour IS DISTINCT FROM NEW.flavour) EXECUTE FUNCTION scheduled_watch()"
        )
        op.execute(f"ALTER TABLE scheduled_{name} ADD CHECK (length(flavour) = 32)")
    op.execute("UPDATE scheduled_meta SET value = '2' WHERE key = 'schema_version'")


def downgrade() -> None:
    raise NotImplementedError
