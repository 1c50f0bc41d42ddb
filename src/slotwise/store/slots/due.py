"""What is due: looked at, and not taken."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from slotwise.store.schema.tables import WINDOW

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store


class Due:
    """Says what waits, and when the next of it is due."""

    def __init__(self, store: Store) -> None:
        self.database, self.dialect, self.definitions = store.database, store.dialect, store.definitions
        #: The names that a worker asks for, always the same, as a set.
        self._asked: tuple[Sequence[str], frozenset[str]] = ((), frozenset())

    def due_tasks(self, names: Sequence[str]) -> set[str]:
        """Those of these tasks that have due rows."""
        with self.look() as connection:
            return self.dialect.due_tasks(connection, names)

    def next_due(self, names: Sequence[str], tasks: Sequence[str] | None = None, *, lost: int = 1) -> timedelta | None:
        """How long until the next waiting row of these tasks is due; zero or less: now; None: nothing waits.

        ``tasks``: one-time tasks of these alone count, beside the slots of ``names``. ``lost`` = 0: of the rows that
        a claim would then take.
        """
        tasks = self.tasks_of(names) if tasks is None else tasks
        with self.look() as connection:
            return self.dialect.next_due(connection, names, tasks, lost=lost)

    def names(self, names: Sequence[str]) -> tuple[Sequence[str], bool]:
        """Those of many names that have the next due rows: to send, and to compare with, ten thousand takes its time.

        All of them, where rows of others are so many that they would hide ours. And whether those rows are all of one
        priority, so that a claim need not sort them. Race: a more urgent one may come due before the claim; the next
        one takes it.
        """
        with self.look() as connection:
            due = self.dialect.due_names(connection, WINDOW)
        if self._asked[0] is not names:
            self._asked = names, frozenset(names)
        found = {name for name, _ in due}
        own = found & self._asked[1]
        if len(own) < len(found) and len(due) >= WINDOW:
            return names, False
        return sorted(own), len({priority for _, priority in due}) < 2

    def tasks_of(self, names: Sequence[str]) -> list[str]:
        """Those that are no jobs, whatever else we know of them."""
        return [name for name in names if (known := self.definitions.get(name)) is None or not known.is_job]

    def look(self) -> AbstractContextManager[sa.Connection]:
        """As ``statement``; plans of claims, and of looks for what is due, were tried with any values."""
        return self.database.alone(self.database.claims)
