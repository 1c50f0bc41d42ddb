"""One-time tasks as new rows, one or many; and what becomes of a row that has the id already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from slotwise.execution import FOREVER, Key
from slotwise.sequel import IfExists, Wanted
from slotwise.store.queue_rows import BLOCKED, QueueRows, Status
from slotwise.store.types import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of many: so many are scheduled now; so many were left as they are, for their ids are taken."""

    scheduled: int = 0
    exists: int = 0

    @property
    def total(self) -> int:
        return self.scheduled + self.exists

    def __add__(self, other: Tally) -> Tally:
        return Tally(scheduled=self.scheduled + other.scheduled, exists=self.exists + other.exists)


class Puts(QueueRows):
    """Inserts rows."""

    def put(self, connection: Any, name: str, wanted: Wanted, if_exists: IfExists) -> Status:
        """Insert a row; what becomes of one that has its id, ``if_exists`` says ("raise" is as "keep").

        Races: of two that put the same id, the second waits for the first one's commit, and finds the row. A row
        that is claimed meanwhile is "running", and keeps what it was claimed with.
        """
        insert = self._insert(connection, name, wanted)
        match if_exists:
            case "replace":
                insert = self._or_replace(insert)
            case "reschedule":
                insert = self._or_move(insert)
            case _:
                insert = insert.on_conflict_do_nothing()
        key = Key(name, wanted.instance)
        # Race: the task that had the id may have ended since. It was there.
        return self._answer(connection, insert.returning(self._tasks.c.picked, *self._word()), key, absent="exists")

    def put_many(self, connection: Any, name: str, wanted: Sequence[Wanted], if_exists: IfExists) -> Tally:
        """As ``put``, for a chunk of rows with different ids."""
        scheduled = [self.put(connection, name, one, if_exists) for one in wanted].count("scheduled")
        return Tally(scheduled=scheduled, exists=len(wanted) - scheduled)

    def copy(self, connection: Any, name: str, wanted: Sequence[Wanted]) -> None:
        """Insert a chunk the fastest way there is; an id that is taken is an IntegrityError."""
        for one in wanted:
            connection.execute(self._insert(connection, name, one))

    def _insert(self, connection: Any, name: str, wanted: Wanted) -> Any:
        now = self._now(connection)
        due, born = self._due(now, wanted.when), self._born(now)
        row = {
            "task_name": name, "task_instance": wanted.instance, "task_data": wanted.data, "execution_time": due,
            "slot": due, "picked": sa.false(), "version": born, "first_version": born, "priority": wanted.priority,
        }  # fmt: skip
        if wanted.waits_for:
            asleep = {"state": BLOCKED, "parked_due": due, "execution_time": sa.literal(FOREVER, Instant)}
            row |= {**asleep, "waits_for": wanted.waits_for}
        return self._dialect.insert(self._tasks).values(**row)

    def _or_replace(self, insert: Any) -> Any:
        """A row begins anew under its id: another task, by its first version; tokens go on rising."""
        tasks, new = self._tasks, insert.excluded
        parked = (tasks.c.state == "paused") | (new.state == BLOCKED)
        version = sa.case((tasks.c.version >= new.version, tasks.c.version + 1), else_=new.version)
        values = {
            "task_data": new.task_data, "slot": new.slot, "priority": new.priority, "version": version,
            "execution_time": sa.case((parked, sa.literal(FOREVER, Instant)), else_=new.execution_time),
            "parked_due": sa.case((parked, sa.func.coalesce(new.parked_due, new.execution_time)), else_=None),
            "state": sa.case((new.state == BLOCKED, BLOCKED), (parked, "paused"), else_=None),
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
