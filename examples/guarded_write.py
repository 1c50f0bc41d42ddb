"""Writes that fail after a lost claim: `guard`, and `complete_in`, which also settles the slot.

    python examples/guarded_write.py

prints, on a new database:

    interest: balance 10
    interest: balance 20
    as many days closed as slots succeeded: True

Kill it at any moment and start it again on the same DATABASE_URL: the last line stays true,
because each row and its slot's success are one commit.
"""

from __future__ import annotations

import threading

import sqlalchemy as sa
from _database import application_engine, database_url, make_tables

from slotwise import DistributedJob, Every, JobContext, JobRegistry

metadata = sa.MetaData()
account = sa.Table(
    "example_account",
    metadata,
    sa.Column("slot", sa.Text, primary_key=True),
    sa.Column("euro", sa.Integer),
)
days = sa.Table("example_days", metadata, sa.Column("slot", sa.Text, primary_key=True))


class Interest(DistributedJob):
    """A write under `guard`, which keeps the claim valid until the transaction ends."""

    name = "example-interest"
    schedule = Every("1s")

    def __init__(self, engine: sa.Engine, done: threading.Semaphore) -> None:
        self._engine = engine
        self._done = done

    def execute(self, ctx: JobContext) -> None:
        with self._engine.begin() as connection:
            ctx.guard(
                connection
            )  # raises ClaimLost if another worker has the slot: the transaction rolls back
            euro = (
                connection.scalar(sa.select(sa.func.max(account.c.euro))) or 0
            ) + 10
            connection.execute(
                account.insert().values(slot=ctx.slot.isoformat(), euro=euro)
            )
        print("interest: balance", euro)
        self._done.release()


class CloseDay(DistributedJob):
    """A write under `complete_in`: the row and the slot's success commit together, or neither
    does.
    """

    name = "example-close-day"
    schedule = Every("1s")

    def __init__(self, engine: sa.Engine, done: threading.Semaphore) -> None:
        self._engine = engine
        self._done = done

    def execute(self, ctx: JobContext) -> None:
        with self._engine.begin() as connection:
            connection.execute(days.insert().values(slot=ctx.slot.isoformat()))
            ctx.complete_in(connection)
        self._done.release()


def closed_as_succeeded(engine: sa.Engine) -> bool:
    """Return whether the application's rows match the ledger."""
    succeeded = (
        "SELECT count(*) FROM scheduled_slots WHERE task_name = 'example-close-day' "
        "AND outcome = 'succeeded'"
    )
    with engine.connect() as connection:
        closed = connection.scalar(sa.select(sa.func.count()).select_from(days))
        return bool(closed == connection.scalar(sa.text(succeeded)))


def main() -> None:
    engine = application_engine()
    interest = threading.Semaphore(0)
    closing = threading.Semaphore(0)
    metadata.create_all(engine)
    registry = JobRegistry(
        jobs=[Interest(engine, interest), CloseDay(engine, closing)],
        database_url=database_url(),
        poll_interval="1s",
    )
    make_tables(registry)
    with registry:
        for done in (interest, interest, closing, closing):
            assert done.acquire(timeout=30), "no slot has run"
    print("as many days closed as slots succeeded:", closed_as_succeeded(engine))
    engine.dispose()


if __name__ == "__main__":
    main()
