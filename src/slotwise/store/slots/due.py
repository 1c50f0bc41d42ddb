"""What is due, and when the next row is: read before and between claims."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from slotwise.store.queue.queue_cursors import LOOK_BACK, SHARE
from slotwise.store.schema.tables import WINDOW

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

#: With more names than this, the names of due rows are read before the claim.
MANY = 200
#: For how long, in seconds, full claims share the names that were found due.
SHARED = 0.1


class DueNames(NamedTuple):
    """Names that have due rows, whether these have all one priority, and since when the oldest of them is due."""

    names: Sequence[str]
    is_level: bool
    since: datetime | None


class Due:
    """Reads what waits, and when the next of it is due.

    Due slots of a service that no worker runs stay at the front of the index. If many lie there, claims and looks begin
    behind them, where the last full look found the first own slot. Race: a slot may become due before that, put back by
    a hand-back or an operation. The next full look finds it, at most once in ``LOOK_BACK``. A claim may come before the
    look, but only one: the slot for which a worker has slept starts first.
    """

    def __init__(self, store: Store) -> None:
        self.database, self.dialect, self.definitions = store.database, store.dialect, store.definitions
        #: The names that a worker asks for, always the same, as a set.
        self._asked: tuple[Sequence[str], frozenset[str]] = ((), frozenset())
        #: Where these names begin, until when that holds, in elapsed seconds, and whether a claim has come since.
        self._begin: tuple[Sequence[str], datetime | None] = ((), None)
        self._until, self._is_overdue = 0.0, False
        #: Whether others' due slots lie in front.
        self.is_behind = False
        #: The names of rows that were due, for how many more claims, and until when.
        self._found = DueNames((), is_level=False, since=None)
        self._left, self._shared_until = 0, 0.0

    def due_tasks(self, names: Sequence[str]) -> set[str]:
        """Return those of these tasks that have due rows."""
        with self.look() as connection:
            return self.dialect.due_tasks(connection, names)

    def next_due(self, names: Sequence[str], tasks: Sequence[str] | None = None, *, lost: int = 1) -> timedelta | None:
        """Return the time until the next slot of ``names``, or task of ``tasks``, is due; None: nothing waits."""
        tasks = self.tasks_of(names) if tasks is None else tasks
        left = self._until - (began := self.dialect.clock.elapsed())
        since = self._begin[1] if left > 0 and self._begin[0] is names else None
        with self.look() as connection:
            due, begin = self.dialect.next_due(connection, names, tasks, lost=lost, since=since)
        if since is not None:  # it may have passed over a slot
            return timedelta(seconds=left) if due is None else min(due, timedelta(seconds=left))
        if begin is not None or self._begin[0] is names:
            took = self.dialect.clock.elapsed() - began
            self._begin, self._until, self._is_overdue = (names, begin), began + max(LOOK_BACK, SHARE * took), False
            self.is_behind = begin is not None
        return due

    def since(self, names: Sequence[str]) -> datetime | None:
        """Return from which due time on a claim of these slots searches; None: from the beginning."""
        if self._begin[1] is None or self._begin[0] is not names:
            return None
        if self.dialect.clock.elapsed() >= self._until:
            if self._is_overdue:
                self.next_due(names, ())
            self._is_overdue = True
        return self._begin[1]

    def names(self, names: Sequence[str], limit: int, since: datetime | None = None) -> DueNames:
        """Return those of many names that have due rows; all, if rows of unknown tasks fill the window.

        Full claims share an answer, and begin where it begins: dead entries of the index lie before. Race: a row may
        come due after the answer that is more urgent, or older. It waits for ``SHARED`` at most.
        """
        began = self.dialect.clock.elapsed()
        if self._asked[0] is names and self._left >= limit and began < self._shared_until:
            self._left -= limit
            return self._found
        with self.look() as connection:
            due = self.dialect.due_names(connection, WINDOW, since)
        if self._asked[0] is not names:
            self._asked = names, frozenset(names)
        found = {name for name, _, _ in due}
        own = found & self._asked[1]
        if len(own) < len(found) and len(due) >= WINDOW:
            self._left = 0
            return DueNames(names, is_level=False, since=since)
        is_level = len({priority for _, priority, _ in due}) < 2
        self._found = DueNames(sorted(own), is_level, min((at for _, _, at in due), default=since))
        self._left, self._shared_until = len(due) - limit, began + SHARED
        return self._found

    def forget(self) -> None:
        """Look for names again before the next claim."""
        self._left = 0

    def tasks_of(self, names: Sequence[str]) -> list[str]:
        """Return those of these names that are not jobs."""
        return [name for name in names if (known := self.definitions.get(name)) is None or not known.is_job]

    def look(self) -> AbstractContextManager[sa.Connection]:
        """Return a connection for one statement."""
        return self.database.alone(self.database.claims)
