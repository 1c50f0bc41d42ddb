"""Reads which rows are due, and when the next one is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from slotwise.store.queue.queue_cursors import LOOK_BACK, SHARE
from slotwise.store.schema.tables import WINDOW
from slotwise.store.slots.tuning import FEW, FULL_PAUSE, LONGEST_REST, MANY, SHARED

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store


class DueNames(NamedTuple):
    """Names that have due rows, whether these have all one priority, and since when the oldest of
    them is due.
    """

    names: Sequence[str]
    is_level: bool
    since: datetime | None


class Due:
    """Reads what waits, and when the next of it is due.

    Due slots of a service that no worker runs stay at the front of the index. If many lie there,
    claims and looks begin behind them, where the last full look found the first own slot. Race: a
    slot may become due before that, put back by a hand-back or an operation. The next full look
    finds it, at most once in ``LOOK_BACK``. A claim may come before the look, but only one: the
    slot for which a worker has slept starts first.
    """

    def __init__(self, store: Store) -> None:
        self.database = store.database
        self.dialect = store.dialect
        self.definitions = store.definitions
        self.full = store.gates.full
        #: The names that a worker asks for, always the same, as a set.
        self._asked: tuple[Sequence[str], frozenset[str]] = ((), frozenset())
        #: Where these names begin, until when that holds, in elapsed seconds, and whether a claim
        #: has come since.
        self._begin: tuple[Sequence[str], datetime | None] = ((), None)
        #: Whether ``since`` is worth a call.
        self.is_behind_others = False
        self._until = 0.0
        self._is_overdue = False
        #: When a worker without jobs looks for slots again, in elapsed seconds.
        self._slots_again_at = 0.0
        #: The names of rows that were due, for how many more claims, and until when.
        self._found = DueNames((), is_level=False, since=None)
        self._left = 0
        self._shared_until = 0.0

    def next_due(
        self,
        names: Sequence[str],
        tasks: Sequence[str] | None = None,
        *,
        lost: int = 1,
    ) -> timedelta | None:
        """Return the time until the next slot of ``names``, or task of ``tasks``, is due; None:
        nothing waits.

        A row of a task at its limit is not due before the next count.
        """
        tasks = self.tasks_of(names) if tasks is None else tasks
        if not self.full.until or not (full := self.full.names()):
            return self._next_due(names, tasks, lost)
        due = self._next_due(without(names, full), without(tasks, full), lost)
        later = self._next_due(_only(names, full), _only(tasks, full), lost)
        return _earliest(due, None if later is None else max(later, FULL_PAUSE))

    def _next_due(
        self, names: Sequence[str], tasks: Sequence[str], lost: int
    ) -> timedelta | None:
        began = self.dialect.clock.elapsed()
        left = self._until - began
        since = self._begin[1] if left > 0 and self._begin[0] is names else None
        begin = None
        due = self._first(names, lost, since)
        if due is None or tasks:
            is_known = due is not None
            # A task may have recurring instances, whose rows wait for slots as those of jobs do.
            has_jobs = len(tasks) < len(names)
            is_too_soon = not has_jobs and began < self._slots_again_at
            no_slots = is_known or not names or is_too_soon
            unknown = () if is_known else names
            with self.reading() as connection:
                later, begin = self.dialect.next_due(
                    connection,
                    unknown,
                    tasks,
                    lost=lost,
                    since=since,
                    no_slots=no_slots,
                )
            due = _earliest(due, later)
            if is_too_soon:
                rest = self._slots_again_at - began
                due = _earliest(due, timedelta(seconds=rest))
            elif not (no_slots or has_jobs):
                self._rest_from_slots(began)
        if since is not None:  # it may have passed over a slot
            return _earliest(due, timedelta(seconds=left))
        if begin is not None or self._begin[0] is names:
            took = self.dialect.clock.elapsed() - began
            self._begin = (names, begin)
            self.is_behind_others = begin is not None
            self._until = began + max(LOOK_BACK, SHARE * took)
            self._is_overdue = False
        return due

    def _rest_from_slots(self, began: float) -> None:
        """Look for slots of tasks again after a while. Where no task has an instance, a look reads
        all that wait of others.
        """
        now = self.dialect.clock.elapsed()
        self._slots_again_at = now + min(SHARE * (now - began), LONGEST_REST)

    def _first(
        self, names: Sequence[str], lost: int, since: datetime | None
    ) -> timedelta | None:
        """Return the time until the first slot of many names is due, if it is among the first
        few of all.
        """
        if len(names) <= MANY:
            return None
        with self.reading() as connection:
            first = self.dialect.first_slots(connection, FEW, lost=lost, since=since)
        self._ask(names)
        return min(
            (due for name, due in first if name in self._asked[1]), default=None
        )

    def since(self, names: Sequence[str]) -> datetime | None:
        """Return from which due time on a claim of these slots searches; None: from the
        beginning.
        """
        if self._begin[1] is None or self._begin[0] is not names:
            return None
        if self.dialect.clock.elapsed() >= self._until:
            if self._is_overdue:
                self._next_due(names, (), lost=1)
            self._is_overdue = True
        return self._begin[1]

    def names(
        self, names: Sequence[str], limit: int, since: datetime | None = None
    ) -> DueNames:
        """Return those of many names that have due rows; all, if rows of unknown tasks fill the
        window.

        Full claims share an answer, and begin where it begins: dead entries of the index lie
        before. Race: a row may come due after the answer that is more urgent, or older. It waits
        for ``SHARED`` at most.
        """
        began = self.dialect.clock.elapsed()
        if (
            self._asked[0] is names
            and self._left >= limit
            and began < self._shared_until
        ):
            self._left -= limit
            return self._found
        with self.reading() as connection:
            due = self.dialect.due_names(connection, WINDOW, since)
        self._ask(names)
        found = {name for name, _, _ in due}
        own = found & self._asked[1]
        if len(own) < len(found) and len(due) >= WINDOW:
            self._left = 0
            return DueNames(names, is_level=False, since=since)
        is_level = len({priority for _, priority, _ in due}) < 2
        self._found = DueNames(
            sorted(own), is_level, min((at for _, _, at in due), default=since)
        )
        self._left = len(due) - limit
        self._shared_until = began + SHARED
        return self._found

    def _ask(self, names: Sequence[str]) -> None:
        if self._asked[0] is not names:
            self._asked = (names, frozenset(names))
            self._left = 0

    def forget(self) -> None:
        """Look for names again before the next claim."""
        self._left = 0

    def tasks_of(self, names: Sequence[str]) -> list[str]:
        """Return those of these names that are not jobs."""
        return [name for name in names if not self._is_job(name)]

    def _is_job(self, name: str) -> bool:
        return (known := self.definitions.get(name)) is not None and known.is_job

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Return a connection for one statement."""
        return self.database.autocommit(self.database.claims)


def _earliest(*dues: timedelta | None) -> timedelta | None:
    return min((due for due in dues if due is not None), default=None)


def _only(names: Sequence[str], full: frozenset[str]) -> Sequence[str]:
    return [name for name in names if name in full]


def without(names: Sequence[str], full: frozenset[str]) -> Sequence[str]:
    return [name for name in names if name not in full] if full else names
