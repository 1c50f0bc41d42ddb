"""The commands on one-time tasks, each in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from slotwise.model.records import FOREVER, Key, When
from slotwise.model.vocabulary import ListedState, RowState
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.connect.notifications import OPERATIONS
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Reading
from slotwise.store.dialects.task_statements import (
    UNTRIED,
    Status,
    TaskStatements,
    asked_key,
    named,
)
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.tables import Columns, Condition, is_task

#: Rows that are retried, or removed, in one statement.
AT_ONCE = 500


class TaskCommands:
    """Moves, cancels, retries and removes one-time tasks, each in the caller's transaction.

    On a held row a command writes only columns that the settlement reads and clears
    (``wanted_due``, ``cancel_requested``). Jobs and their detached rows are never touched.
    """

    def __init__(self, rows: TaskStatements) -> None:
        self._rows = rows
        self._tasks = rows.tasks

    def move(
        self, connection: Joinable, key: Key, when: When, priority: int | None
    ) -> Status:
        """Change the due time of a waiting row; of a held one, that of the next attempt, if there
        is one.

        "exists" is a dead row, which stays as it is. Race: a row that is claimed just now is
        waited for, and is "running" then; if its settlement was first, it is "gone".
        """
        is_at = when.at is not None
        ranks = priority is not None
        move = self._rows.kept(
            ("move", is_at, ranks), lambda: self._move(is_at, ranks)
        )
        parameters = (
            named(key)
            | self._rows.due_parameters(connection, when)
            | ({"rank": priority} if ranks else {})
        )
        written = next(iter(move(connection, parameters)), None)
        return self._rows.answer(connection, written, key, absent="gone")

    def _move(self, is_at: bool, ranks: bool) -> Reading:
        tasks = self._tasks
        values = self._rows.moved(self._rows.due(is_at))
        if ranks:
            values["priority"] = sa.bindparam("rank", type_=sa.SmallInteger)
        statement = (
            tasks.update()
            .where(*asked_key(tasks), *self._rows.alive())
            .values(**values)
        )
        return self._rows.dialect.reading(
            statement, tasks.c.picked, *self._rows.notification()
        )

    def cancel(self, connection: Joinable, key: Key) -> Status:
        """Remove a row that waits, is paused or dead; ask the handler of a held one to stop.

        Race: a row that is claimed between both statements, or let go, is of neither kind: look
        again.
        """
        remove = self._rows.kept("remove", self._remove)
        stop = self._rows.kept("stop", self._stop)
        for _ in range(3):
            if connection.execute(remove, named(key)).rowcount:
                return "cancelled"
            if connection.execute(
                stop, named(key) | self._rows.time(connection)
            ).rowcount:
                self._rows.notify(connection, OPERATIONS)
                return "running"
            if self._rows.picked(connection, key) is None:
                break
        return "gone"

    def _remove(self) -> sa.Executable:
        mine = [*asked_key(self._tasks), is_task(self._tasks.c), ~self._tasks.c.picked]
        return self._tasks.delete().where(*mine, self._rows.may_delete())

    def _stop(self) -> sa.Executable:
        mine = [*asked_key(self._tasks), is_task(self._tasks.c), self._tasks.c.picked]
        return (
            self._tasks.update().where(*mine).values(cancel_requested=self._rows.now())
        )

    def stop_all(
        self,
        connection: Joinable,
        name: str,
        where: Sequence[Condition],
        most: int | None = None,
    ) -> int:
        """Ask the handlers of the held rows that meet these conditions to stop, of ``most``
        at most; return how many were not asked before.
        """
        tasks = self._tasks.c
        held = [tasks.task_name == name, is_task(tasks), tasks.picked, *where]
        held.append(tasks.cancel_requested.is_(None))
        # Race: settlements lock rows in the order of keys, and so does this.
        id = tasks.task_instance
        first = sa.select(id).where(*held).order_by(id).limit(most).with_for_update()
        ids = [one for (one,) in connection.execute(first).fetchall()]
        held.append(self._rows.dialect.among(id, ids))
        stop = (
            self._tasks.update().where(*held).values(cancel_requested=self._rows.now())
        )
        return connection.execute(stop, self._rows.time(connection)).rowcount

    def arrive(self, connection: Joinable, key: Key, count: int) -> bool:
        """Count down a blocked row by ``count``; at zero it waits for its due time only.

        Race: those that arrive at once change the row one after the other. False: no such row is
        blocked.
        """
        tasks = self._tasks.c
        last = tasks.waits_for <= count
        statement = (
            self._tasks.update()
            .where(*of_key(tasks, key), tasks.state == RowState.BLOCKED)
            .values(
                waits_for=tasks.waits_for - count,
                state=sa.case((last, None), else_=RowState.BLOCKED.value),
                execution_time=sa.case(
                    (last, tasks.parked_due), else_=tasks.execution_time
                ),
                parked_due=sa.case((last, None), else_=tasks.parked_due),
            )
        )
        return bool(connection.execute(statement).rowcount)

    def retry(
        self,
        connection: Joinable,
        name: str,
        instances: Sequence[str] | None,
        when: When,
        where: Sequence[Condition] = (),
        most: int = AT_ONCE,
        after: str | None = None,
    ) -> list[str]:
        """Let up to ``most`` dead rows of a task wait again, by id, as if they had never been
        tried; return their ids. ``where``: only those that meet these conditions. ``after``: only
        those with ids after this one.
        """
        tasks = self._tasks.c
        dead = [tasks.task_name == name, tasks.state == RowState.DEAD, is_task(tasks)]
        dead += where
        if after is not None:
            dead.append(tasks.task_instance > after)
        if instances is not None:
            dead.append(tasks.task_instance.in_(instances))
        again = self._tasks.update().where(self._some(connection, most, *dead))
        due = self._rows.due(when.at is not None)
        # A row with a key for its order waits until it is the first one of its key.
        is_ordered = tasks.order_key.is_not(None)
        again = again.values(
            state=sa.case((is_ordered, RowState.BLOCKED.value), else_=None),
            parked_due=sa.case((is_ordered, due), else_=None),
            execution_time=sa.case(
                (is_ordered, sa.literal(FOREVER, Instant)), else_=due
            ),
            slot=due,
            version=tasks.version + 1,
            **UNTRIED,
        )
        columns = tasks.task_instance, *self._rows.notification()
        read = self._rows.dialect.reading(again, *columns)
        told = self._rows.due_parameters(connection, when)
        return sorted(row[0] for row in read(connection, told))

    def _some(
        self, connection: Joinable, most: int, *conditions: Condition
    ) -> Condition:
        """Lock the first of these rows, by id, and return whether a row is one of them."""
        chosen = sa.select(*self._rows.key_columns).where(*conditions)
        first = chosen.order_by(self._tasks.c.task_instance).limit(most)
        return self._rows.dialect.locked(connection, first)

    def remove(
        self,
        connection: Joinable,
        name: str,
        state: str | None,
        after: str | None,
        where: Sequence[Condition] = (),
        most: int = AT_ONCE,
    ) -> list[str]:
        """Delete up to ``most`` rows that are not held, of one state or any, with ids after this
        one; return their ids. ``where``: only those that meet these conditions.

        Race: what is claimed just now is locked, and stays.
        """
        id = self._tasks.c.task_instance
        loose = [*self._loose(name, state), *where]
        if after is not None:  # another program may have written a blank id
            loose.append(id > after)
        some = self._some(connection, most, *loose)
        gone = self._tasks.delete().where(some, self._rows.may_delete())
        read = self._rows.dialect.reading(gone, id)
        return sorted(instance for (instance,) in read(connection))

    def _loose(self, name: str, state: str | None) -> list[Condition]:
        """Return the conditions of rows that are not held, of one state or any."""
        tasks = self._tasks.c
        states = in_state(tasks, state) if state else [~tasks.picked]
        return [tasks.task_name == name, is_task(tasks), *states]

    def taken(self, connection: Joinable, name: str, ids: Sequence[str]) -> list[str]:
        """Return those of these ids that a row has, whatever it is."""
        id = self._tasks.c.task_instance
        found = list[str]()
        for start in range(0, len(ids), AT_ONCE):
            statement = sa.select(id).where(
                self._tasks.c.task_name == name, id.in_(ids[start : start + AT_ONCE])
            )
            found += [
                instance for (instance,) in connection.execute(statement).fetchall()
            ]
        return found


def in_state(tasks: Columns, state: str) -> list[Condition]:
    """Return the conditions of a state as it is listed."""
    match state:
        case ListedState.RUNNING:
            return [tasks.picked]
        case ListedState.WAITING:
            return [~tasks.picked, tasks.state.is_(None)]
    return [~tasks.picked, tasks.state == state]
