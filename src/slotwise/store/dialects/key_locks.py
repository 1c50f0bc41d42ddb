"""Locks by name: each is the lock of a row of ``keys``."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from slotwise.store.dialects.port import Dialect
from slotwise.store.dialects.row_values import Values


class KeyLocks(Dialect):
    """The verbs that only one worker at a time may enter."""

    def alone(self, connection: sa.Connection, name: str) -> bool:
        """By the lock of a row of ``keys``, which only a worker's rights can lock.

        The first claim of all makes it.
        """
        mine, query = self._key_row(name, "turn")
        locked = query.with_for_update(skip_locked=True)
        if connection.execute(locked).first() is not None:
            return True
        if connection.execute(query).first() is not None:
            return False
        return self.insert_turn(connection, mine)

    def insert_turn(
        self, connection: sa.Connection, row: Mapping[str, object]
    ) -> bool:
        """Insert a row of ``keys``, once in the life of a name; return whether it was inserted.

        Race: of two that do it at once, the second waits for the first one's commit.
        """
        return self.insert_new(connection, self.tables.keys, row)

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        """By the lock of a row of ``keys``.

        Race: of two that make the row, the second waits for the first one's commit, also if both
        would share it; then it locks that row.
        """
        mine, query = self._key_row(name, "latch")
        query = query.with_for_update(read=shared)
        while connection.execute(query).fetchone() is None:
            if self.insert_new(connection, self.tables.keys, mine):
                return

    def _key_row(
        self, name: str, kind: str
    ) -> tuple[Values, sa.Select[tuple[object]]]:
        """Return a row of ``keys``, and a look for it."""
        keys = self.tables.keys
        row: Values = {"task_name": name, "kind": kind, "key": ""}
        mine = [keys.c[column] == value for column, value in row.items()]
        return row, sa.select(keys.c.running).where(*mine)
