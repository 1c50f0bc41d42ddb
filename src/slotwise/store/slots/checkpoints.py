"""Checkpoints: what a handler has saved for its next attempt.

One row for each slot, by its key in the ledger; for a one-time task, by its first version, so that
another life of an id does not find it. The row goes when the slot or the task succeeds. The pruner
deletes what is left of those that have ended otherwise and are gone.

Race: a checkpoint is written under the guard of its claim, in one transaction. A take-over waits
for that transaction, or comes before it; then the guard finds a stale token, and nothing is
written.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from slotwise.model.records import Claim, LedgerKey, Row, from_micros
from slotwise.model.vocabulary import Outcome
from slotwise.payload.checkpoints import encode_checkpoint
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Transaction
from slotwise.store.schema.tables import IS_TASK, Condition, Tables


def saved(claim: Claim, value: object) -> dict[str, object]:
    """Return the columns of a claim's checkpoint. Raises InvalidPayload."""
    return {
        **key_of(claim.row)._asdict(),
        "token": claim.token,
        "value": encode_checkpoint(value),
        "done": _count(value, "done"),
        "total": _count(value, "total"),
    }


def _count(value: object, name: str) -> int | None:
    """Return the whole number under this key of a dict, to be shown; None without one."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if type(found) is int and 0 <= found < 2**63 else None


def find(connection: sa.Connection, tables: Tables, row: Row) -> bytes | None:
    """Return the checkpoint of a row's slot or task; None without one."""
    value = sa.select(tables.checkpoints.c.value).where(*_of(tables, row))
    found: bytes | None = connection.scalar(value)
    return found


def is_of(at: Transaction, row: Row) -> bool:
    """Whether the holder of this row has written the checkpoint of its slot or task."""
    tables = at.dialect.tables
    mine = tables.checkpoints.c.token == row.version
    found = sa.select(sa.literal(1)).where(*_of(tables, row), mine)
    return at.connection.scalar(found) is not None


def forget(at: Transaction, rows: Iterable[Row]) -> None:
    """Delete the checkpoints of slots and tasks that succeed in this transaction."""
    tables = at.dialect.tables
    for row in rows:
        at.connection.execute(tables.checkpoints.delete().where(*_of(tables, row)))


def delete_orphans(at: Transaction, limit: int) -> int:
    """Delete checkpoints whose slot has succeeded or is gone, or whose task is gone; return how
    many.
    """
    tables = at.dialect.tables
    own, slots, tasks = tables.checkpoints.c, tables.slots.c, tables.tasks.c
    has_slot = sa.exists().where(
        *of_key(slots, own), slots.slot == own.slot, slots.outcome != Outcome.SUCCEEDED
    )
    has_task = sa.exists().where(*of_key(tasks, own), sa.text(IS_TASK))
    key = sa.select(*tables.checkpoints.primary_key)
    found = key.where(~has_slot, ~has_task).limit(limit)
    gone = tables.checkpoints.delete().where(at.dialect.locked(at.connection, found))
    return at.connection.execute(gone).rowcount


def key_of(row: Row) -> LedgerKey:
    """Return the key of the checkpoint of this row's slot or task."""
    born = from_micros(row.created_version or 0)
    return row.ledger_key or LedgerKey(row.task_name, row.task_instance, born)


def _of(tables: Tables, row: Row) -> list[Condition]:
    key = key_of(row)
    own = tables.checkpoints.c
    return [*of_key(own, key), own.slot == key.slot]
