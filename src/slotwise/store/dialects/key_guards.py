"""The proof of a claim in a caller's transaction, by the key of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from slotwise.model.records import Claim
from slotwise.model.vocabulary import Outcome
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.row_values import Values

if TYPE_CHECKING:
    from slotwise.store.dialects.by_key import ByKey


def guard(
    dialect: ByKey, connection: Joinable, claim: Claim, saved: Values | None
) -> bool:
    """FOR SHARE; of a one-time task's row only the key, where the database has such locks.
    Elsewhere its heartbeats skip the row meanwhile.
    """
    dialect.begin_guard(connection, claim.lease)
    if connection.execute(_held(dialect, claim)).fetchone() is None:
        return False
    return saved is None or _save(dialect, connection, saved)


def _held(dialect: ByKey, claim: Claim) -> sa.Select[int]:
    tasks, slots = dialect.tables.tasks.c, dialect.tables.slots.c
    if claim.row.ledger_key is None:
        mine = dialect.conditions.under(claim.row, claim.holder)
        held = sa.select(tasks.version).where(*mine)
        return held.with_for_update(read=True, key_share=True)
    mine = dialect.conditions.entry_of(claim)
    held = sa.select(slots.token).where(*mine, slots.outcome == Outcome.RUNNING)
    return held.with_for_update(read=True)


def _save(dialect: ByKey, connection: Joinable, saved: Values) -> bool:
    """Write a checkpoint; return whether its row was written."""
    new = {**saved, "updated": dialect.ago(connection)}
    own = dialect.tables.checkpoints
    return dialect.upsert(
        connection, own, new, lambda row: {name: row[name] for name in new}
    )
