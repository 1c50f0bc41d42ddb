"""One-time tasks as rows: put, move, cancel, retry and read them, each in the caller's transaction.

Of a held row only columns of its own are written (``wanted_due``, ``cancel_requested``), which its settlement reads and
clears. Jobs and their detached rows are never touched. The form for SQLite, where whoever writes is alone; in
``postgresql_queue.py`` each command is one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from slotwise.model.records import Key, When
from slotwise.model.vocabulary import State
from slotwise.store.queue.insert import Puts
from slotwise.store.queue.queue_rows import Status, named
from slotwise.store.queue.task_reader import TaskReader

#: Rows that are retried, or removed, in one statement.
AT_ONCE = 500


class Queue(Puts, TaskReader):
    """Commands on one-time tasks."""

    def move(self, connection: Any, key: Key, when: When, priority: int | None) -> Status:
        """Another due time for a waiting row; for a held one, for the attempt after this, if there is one.

        "exists" is a dead row, which stays as it is. Race: a row that is claimed just now is waited for, and is
        "running" then; if its settlement was first, it is "gone".
        """
        is_at, ranks = when.at is not None, priority is not None
        statement = self._kept(("move", is_at, ranks), lambda: self._move(is_at, ranks))
        parameters = named(key) | self._told_due(connection, when) | ({"rank": priority} if ranks else {})
        return self._answer(connection, statement, key, absent="gone", **parameters)

    def _move(self, is_at: bool, ranks: bool) -> Any:
        values = self._moved(self._asked_due(is_at))
        if ranks:
            values["priority"] = sa.bindparam("rank", type_=sa.SmallInteger)
        statement = self._tasks.update().where(*self._asked_key(), *self._alive()).values(**values)
        return statement.returning(self._tasks.c.picked, *self._word())

    def arrive(self, connection: Any, key: Key, count: int) -> bool:
        """So many that a blocked row waits for have arrived; after the last of them it waits for its due time only.

        Race: those that arrive at once change the row one after the other. False: no such row is blocked.
        """
        tasks = self._tasks
        last = tasks.c.waits_for <= count
        statement = (
            tasks.update()
            .where(*self._at(key), tasks.c.state == State.BLOCKED)
            .values(
                waits_for=tasks.c.waits_for - count,
                state=sa.case((last, None), else_=State.BLOCKED.value),
                execution_time=sa.case((last, tasks.c.parked_due), else_=tasks.c.execution_time),
                parked_due=sa.case((last, None), else_=tasks.c.parked_due),
            )
        )
        return bool(connection.execute(statement).rowcount)

    def cancel(self, connection: Any, key: Key) -> Status:
        """Remove a row that waits, is paused or dead; ask the handler of a held one to stop."""
        tasks, mine = self._tasks, [*self._at(key), *self._plain()]
        told = tasks.update().where(*mine, tasks.c.picked).values(cancel_requested=self._now(connection))
        if connection.execute(told).rowcount:
            return "running"
        return "cancelled" if connection.execute(tasks.delete().where(*mine, ~tasks.c.picked)).rowcount else "gone"

    def retry(self, connection: Any, name: str, instances: Sequence[str] | None, when: When) -> list[str]:
        """Dead rows of a task wait again, as if they had never been tried; up to 500 of them, by id."""
        tasks = self._tasks
        dead = [tasks.c.task_name == name, tasks.c.state == State.DEAD, *self._plain()]
        if instances is not None:
            dead.append(tasks.c.task_instance.in_(instances))
        chosen = sa.select(*self._key_columns()).where(*dead).order_by(tasks.c.task_instance).limit(AT_ONCE)
        due = self._due(self._now(connection), when)
        statement = (
            tasks.update()
            .where(self._dialect.locked(chosen))
            .values(
                state=None, parked_due=None, execution_time=due, slot=due, attempt=0, lost_count=0, trying_since=None,
                consecutive_failures=0, version=tasks.c.version + 1,
            )
            .returning(tasks.c.task_instance, *self._word())
        )  # fmt: skip
        return sorted(row[0] for row in connection.execute(statement).fetchall())

    def remove(self, connection: Any, name: str, state: str | None, after: str) -> list[str]:
        """Up to 500 rows that nobody holds, of one state or of any, with ids after this one; their ids.

        Race: what is claimed just now is locked, and stays.
        """
        tasks, id = self._tasks, self._tasks.c.task_instance
        loose = [tasks.c.task_name == name, ~tasks.c.picked, *self._plain(), *(self._in_state(state) if state else ())]
        chosen = sa.select(*self._key_columns()).where(*loose, id > after).order_by(id).limit(AT_ONCE)
        gone = tasks.delete().where(self._dialect.locked(chosen), self._may_delete())
        return sorted(instance for (instance,) in connection.execute(gone.returning(id)).fetchall())

    def say(self, connection: Any, word: str) -> None:
        """Say this at the commit."""
