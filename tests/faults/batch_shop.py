"""The application of the proof of batches: tasks that give each eligible proposal a card."""

from __future__ import annotations

import os
import time
from typing import ClassVar

import sqlalchemy as sa

from slotwise import JobRegistry, Retry, TaskContext
from slotwise.contrib.batches import Batch, BatchTask

ENGINE = sa.create_engine(
    sa.make_url(os.environ.get("CAST_URL", "postgresql://")).set(
        drivername="postgresql+psycopg"
    ),
    pool_size=2,
)
PROPOSALS = sa.table("proposals", sa.column("id"), sa.column("status"))
PROPOSALS.primary_key = sa.PrimaryKeyConstraint()
CARDS = sa.table("cards", sa.column("proposal_id"), sa.column("token"))
SIZE = int(os.environ.get("CAST_SIZE", "50"))
SLOW = float(os.environ.get("CAST_SLOW", "0"))
#: The row that ends the process.
DEADLY = int(os.environ.get("CAST_DEADLY", "0"))


class AttachCards(BatchTask):
    """Several of these work on the same rows. Whether a card is there already is not asked: a row
    that is processed twice has two.
    """

    name = "attach-cards"
    max_lost = 100  # a loaded machine may need longer for a start than a worker lives
    retry = Retry(resets_on_progress=True)
    on = ENGINE
    options: ClassVar[dict[str, object]] = {"key": PROPOSALS.c.id, "size": SIZE}

    def select(self, ctx: TaskContext) -> sa.Select[tuple[int]]:
        return sa.select(PROPOSALS.c.id).where(PROPOSALS.c.status == "eligible")

    def process(self, batch: Batch) -> None:
        ids = [row.id for row in batch.rows]
        if DEADLY in ids:
            os._exit(9)
        cards = [{"proposal_id": id, "token": os.getpid()} for id in ids]
        batch.connection.execute(sa.insert(CARDS), cards)
        done = sa.update(PROPOSALS).where(PROPOSALS.c.id.in_(ids))
        batch.connection.execute(done.values(status="done"))
        time.sleep(SLOW)


registry = JobRegistry(tasks=[AttachCards])
