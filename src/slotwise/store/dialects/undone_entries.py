"""Entries of the ledger whose slots never began."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from slotwise.model.records import Row
from slotwise.model.vocabulary import Outcome

if TYPE_CHECKING:
    from slotwise.store.dialects.by_key import ByKey


def undo_entry(dialect: ByKey, connection: sa.Connection, row: Row) -> None:
    """Restore the ledger to its state before this claim entered its row's slot, which never
    began.

    An entry of such a claim alone is deleted. An entry that stays gets the token of the
    waiting row. Race: a mark of this claim that arrives late then finds nothing.
    """
    slots = dialect.tables.slots
    mine = dialect.conditions.open_entry(row)
    first_attempt = sa.and_(
        slots.c.attempts <= 1, slots.c.lost == 0, slots.c.aborted == 0
    )
    if connection.execute(slots.delete().where(*mine, first_attempt)).rowcount:
        return
    restored = slots.update().values(
        outcome=Outcome.CLAIMED,
        attempts=slots.c.attempts - 1,
        started=slots.c.started_before,
        token=slots.c.token + 1,
    )
    connection.execute(restored.where(*mine))
