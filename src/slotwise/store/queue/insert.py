"""One-time tasks as new rows, one or many; and what becomes of a row that has the id already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from slotwise.model.records import FOREVER, IfExists, Key, Wanted
from slotwise.model.vocabulary import State
from slotwise.store.queue.queue_rows import QueueRows, Status
from slotwise.store.schema.column_types import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """The result of scheduling many: how many were scheduled, and how many existed already and were kept."""

    scheduled: int = 0
    exists: int = 0

    @property
    def total(self) -> int:
        return self.scheduled + self.exists

    def __add__(self, other: BulkResult) -> BulkResult:
        return BulkResult(scheduled=self.scheduled + other.scheduled, exists=self.exists + other.exists)


class Taken(Exception):
    """An id of a chunk has a row already."""


class Puts(QueueRows):
    """Inserts rows."""

    def put(self, connection: Any, name: str, wanted: Wanted, if_exists: IfExists) -> Status:
        """Insert a row; what becomes of one that has its id, ``if_exists`` says ("raise" is as "keep").

        Races: of two that put the same id, the second waits for the first one's commit, and finds the row. A row
        that is claimed meanwhile is "running", and keeps what it was claimed with.
        """
        now = self._now(connection)
        row = self._row(
            name, wanted.instance, wanted.data, self._due(now, wanted.when), self._born(now), wanted.priority,
            wanted.waits_for,
        )  # fmt: skip
        insert = self._or(if_exists, self._dialect.insert(self._tasks).values(**row))
        return self._put(connection, insert.returning(self._tasks.c.picked), Key(name, wanted.instance))

    def _put(self, connection: Any, statement: Any, key: Key, **parameters: Any) -> Status:
        # Race: the task that had the id may have ended since. It was there.
        return self._answer(connection, statement, key, absent="exists", **parameters)

    def put_many(self, connection: Any, name: str, wanted: Sequence[Wanted], if_exists: IfExists) -> BulkResult:
        """As ``put``, for a chunk of rows with different ids."""
        scheduled = [self.put(connection, name, one, if_exists) for one in wanted].count("scheduled")
        return BulkResult(scheduled=scheduled, exists=len(wanted) - scheduled)

    def put_new(self, connection: Any, name: str, wanted: Sequence[Wanted], *, copy: bool = False) -> None:
        """Insert a chunk of rows whose ids must be new, by COPY if that is quick here. Raises Taken: some are not.

        Then nothing of it is written; on PostgreSQL, once the transaction is rolled back to where it was before.
        """
        for place, one in enumerate(wanted):
            if self.put(connection, name, one, "keep") != "scheduled":
                # No savepoint: in SQLite the end of one may end the caller's transaction.
                mine = self._tasks.c.task_instance.in_([before.instance for before in wanted[:place]])
                connection.execute(self._tasks.delete().where(self._tasks.c.task_name == name, mine))
                raise Taken

    def copy_ahead(self, connection: Any, name: str, wanted: Sequence[Wanted]) -> Callable[[], None] | None:
        """As ``put_new``, on a connection of our own; what is returned waits for the answer. None: all is done."""
        self.put_new(connection, name, wanted, copy=True)
        return None

    def taken(self, connection: Any, name: str, ids: Sequence[str]) -> list[str]:
        """Those of these ids that a row has, whatever it is."""
        tasks = self._tasks
        found = sa.select(tasks.c.task_instance).where(tasks.c.task_name == name, self._among(ids))
        return [instance for (instance,) in connection.execute(found).fetchall()]

    def _among(self, ids: Sequence[str]) -> sa.ColumnElement[bool]:
        return self._tasks.c.task_instance.in_(ids)

    def _row(
        self, name: Any, instance: Any, data: Any, due: Any, born: Any, priority: Any, waits_for: Any
    ) -> dict[str, Any]:
        """The columns of a new row; blocked, if it waits for others (else ``waits_for`` is zero)."""
        row = {
            "task_name": name, "task_instance": instance, "task_data": data, "execution_time": due, "slot": due,
            "picked": sa.false(), "version": born, "first_version": born, "priority": priority,
        }  # fmt: skip
        if isinstance(waits_for, int) and waits_for == 0:
            return row
        asleep = {"state": State.BLOCKED, "parked_due": due, "execution_time": sa.literal(FOREVER, Instant)}
        return {**row, **asleep, "waits_for": waits_for}

    def _or(self, if_exists: IfExists, insert: Any) -> Any:
        """The insert, and what it does with a row that is there."""
        match if_exists:
            case "replace":
                return self._or_replace(insert)
            case "reschedule":
                return self._or_move(insert)
        return insert.on_conflict_do_nothing()

    def _or_replace(self, insert: Any) -> Any:
        """A row begins anew under its id: another task, by its first version; tokens go on rising."""
        tasks, new = self._tasks, insert.excluded
        parked = (tasks.c.state == State.PAUSED) | (new.state == State.BLOCKED)
        version = sa.case((tasks.c.version >= new.version, tasks.c.version + 1), else_=new.version)
        values = {
            "task_data": new.task_data, "slot": new.slot, "priority": new.priority, "version": version,
            "execution_time": sa.case((parked, sa.literal(FOREVER, Instant)), else_=new.execution_time),
            "parked_due": sa.case((parked, sa.func.coalesce(new.parked_due, new.execution_time)), else_=None),
            "state": sa.case(
                (new.state == State.BLOCKED, State.BLOCKED.value), (parked, State.PAUSED.value), else_=None
            ),
            "waits_for": new.waits_for,
            "first_version": version, "attempt": 0, "lost_count": 0, "trying_since": None, "consecutive_failures": 0,
            "last_error": None,
        }  # fmt: skip
        return insert.on_conflict_do_update(
            index_elements=self._key_columns(), set_=values, where=sa.and_(~tasks.c.picked, *self._plain())
        )

    def _or_move(self, insert: Any) -> Any:
        new = insert.excluded
        return insert.on_conflict_do_update(
            index_elements=self._key_columns(),
            set_={**self._moved(new.execution_time), "priority": new.priority},
            where=sa.and_(*self._alive()),
        )
