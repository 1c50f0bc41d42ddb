"""Held rows: mark them as running, renew them, read them again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from slotwise.model.records import Claim, Fence, Row
from slotwise.store.schema.rows import row_of
from slotwise.store.slots.settlement_values import claim_of

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store


class HeldRows:
    """What a worker does with its claims between claim and settlement; and what a reaper looks at."""

    def __init__(self, store: Store) -> None:
        self.database, self.dialect, self.tables = store.database, store.dialect, store.tables
        self.transaction = store.transaction

    def mark_running(self, claim: Claim) -> bool:
        """Record, before a handler that gives up starts, that it starts. True only after a durable commit."""
        if claim.row.ledger_key is None:
            return True
        with self.transaction() as connection:
            return self.dialect.mark_running(connection, claim)  # and the commit, on the way out, has not raised

    def beat(self, holder: str, claims: Sequence[Claim]) -> set[Fence]:
        """Renew claims on the heartbeats' own connection; those that are lost."""
        if not claims:
            return set()
        with self.database.heart.begin() as connection:
            renewed = self.dialect.beat(connection, holder, claims)
        missing = [claim for claim in claims if claim.fence not in renewed]
        if not missing:
            return set()
        with self.database.heart.begin() as connection:
            # Skipped is not lost: an operator's command may have locked the row for a moment.
            kept = self.dialect.still_held(connection, missing)
        return {claim.fence for claim in missing} - kept

    def look(self, names: Sequence[str]) -> tuple[datetime, list[Row]]:
        """All held rows of these tasks, for a reaper; and the time."""
        with self.transaction() as connection:
            return self.dialect.silent_rows(connection, names)

    def find_claim(self, name: str, instance: str, token: int, holder: str) -> Claim | None:
        """The claim of this fence, read again with its payload; None: it stands no more."""
        tasks = self.tables.tasks
        mine = [tasks.c.task_name == name, tasks.c.task_instance == instance, tasks.c.picked]
        statement = sa.select(*self.dialect.row_columns).where(
            *mine, tasks.c.version == token, tasks.c.picked_by == holder
        )
        with self.transaction() as connection:
            values = connection.execute(statement).first()
        return None if values is None else claim_of(row_of(values))

    def held_by(self, holder: str) -> list[Claim]:
        """Rows that the database says this worker holds, for finding claims that it does not know of."""
        with self.database.heart.begin() as connection:
            return [claim_of(row) for row in self.dialect.by_row.rows_of(connection, holder)]
