"""Locks by name: each is the lock of a row of ``keys``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from slotwise.store.dialects.row_values import Values
from slotwise.store.schema.tables import Tables

if TYPE_CHECKING:
    from slotwise.store.dialects.by_key import ByKey


def alone(dialect: ByKey, connection: sa.Connection, name: str) -> bool:
    """By the lock of a row of ``keys``, which only a worker's rights can lock.

    The first claim of all makes it.
    """
    mine, query = _key_row(dialect.tables, name, "turn")
    locked = query.with_for_update(skip_locked=True)
    if connection.execute(locked).first() is not None:
        return True
    if connection.execute(query).first() is not None:
        return False
    return dialect.insert_turn(connection, mine)


def latch(
    dialect: ByKey, connection: sa.Connection, name: str, *, shared: bool
) -> None:
    """By the lock of a row of ``keys``.

    Race: of two that make the row, the second waits for the first one's commit, also if both
    would share it; then it locks that row. Two transactions of callers that make the rows of two
    names in opposite order deadlock, once in the life of an installation: the database ends one of
    them, and its repetition finds both rows.
    """
    keys = dialect.tables.keys
    mine, query = _key_row(dialect.tables, name, "latch")
    query = query.with_for_update(read=shared)
    while connection.execute(query).fetchone() is None:
        if dialect.insert_new(connection, keys, mine):
            return


def _key_row(
    tables: Tables, name: str, kind: str
) -> tuple[Values, sa.Select[tuple[object]]]:
    """Return a row of ``keys``, and a look for it."""
    keys = tables.keys
    row: Values = {"task_name": name, "kind": kind, "key": ""}
    mine = [keys.c[column] == value for column, value in row.items()]
    return row, sa.select(keys.c.running).where(*mine)
