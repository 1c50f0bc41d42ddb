"""What a database must be able to do for the engine, said so that any SQL database understands it.

One row at a time, inside the caller's transaction: right everywhere, fast nowhere. A dialect that can do better
overrides; the conformance suite holds all of them to the same answers. Floors for this portable form: the
database allows one writer at a time (SQLite under BEGIN IMMEDIATE), so that reading is locking.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from slotwise.model.records import Claim, Fence, Row
from slotwise.model.vocabulary import Outcome
from slotwise.store.dialects.claims_by_row import ClaimsByRow
from slotwise.store.dialects.endings_by_row import EndingsByRow
from slotwise.store.schema.rows import hold_of


class Dialect(ClaimsByRow, EndingsByRow):
    """Row by row, portable."""

    def mark_running(self, connection: sa.Connection, claim: Claim) -> bool:
        """Write into the ledger that this slot, claimed and not yet marked, runs; whether it was there to be marked.

        The commit of this transaction must be durable: after a crash of the server the slot must not start again.
        """
        slots, key = self.tables.slots, claim.row.ledger_key
        assert key is not None
        statement = (
            slots.update()
            .where(slots.c.task_name == key.task_name, slots.c.task_instance == key.task_instance)
            .where(slots.c.slot == key.slot, slots.c.token == claim.token, slots.c.worker == claim.holder)
            .where(slots.c.outcome == Outcome.CLAIMED)
            .values(outcome=Outcome.RUNNING, started=self.now(connection))
        )
        return connection.execute(statement).rowcount == 1

    def beat(self, connection: sa.Connection, holder: str, claims: Sequence[Claim]) -> set[Fence]:
        """Renew these claims, never waiting; which were renewed. Whoever is missing must be read again."""
        tasks, now = self.tables.tasks, self.now(connection)
        renewed = set()
        for claim in claims:
            statement = tasks.update().where(*self._under(claim)).values(last_heartbeat=now)
            if connection.execute(statement).rowcount:
                renewed.add(claim.fence)
        return renewed

    def still_held(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        """Read, without a lock, which of these claims still stand."""
        tasks = self.tables.tasks
        return {
            claim.fence
            for claim in claims
            if connection.execute(sa.select(tasks.c.version).where(*self._under(claim))).first() is not None
        }

    def silent_rows(self, connection: sa.Connection, names: Sequence[str]) -> tuple[datetime, list[Row]]:
        """The holds on all held rows of these tasks, whoever holds them, and the time."""
        tasks = self.tables.tasks
        statement = sa.select(*self.hold_columns).where(tasks.c.picked, tasks.c.task_name.in_(list(names)))
        return self.now(connection), [hold_of(values) for values in connection.execute(statement)]

    def rows_of(self, connection: sa.Connection, holder: str) -> list[Row]:
        """The holds that the database has under this holder."""
        tasks = self.tables.tasks
        statement = sa.select(*self.hold_columns).where(tasks.c.picked, tasks.c.picked_by == holder)
        return [hold_of(values) for values in connection.execute(statement)]
