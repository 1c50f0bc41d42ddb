"""One-time tasks as rows: put, move, cancel, re-drive and read them, each in the caller's transaction.

Of a held row only columns of its own are written (``wanted_due``, ``cancel_requested``), which its settlement reads and
clears. Jobs and their detached rows are never touched. The form for SQLite, where whoever writes is alone; in
``postgresql_queue.py`` each command is one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from slotwise.execution import FOREVER, Key
from slotwise.sequel import IfExists, Wanted, When
from slotwise.store.dialect import Dialect
from slotwise.store.types import Instant, to_micros

Status: TypeAlias = Literal["scheduled", "exists", "running", "cancelled", "gone"]

#: The state of a row that waits for others to arrive.
BLOCKED = "blocked"
#: Rows that are re-driven, or removed, in one statement.
AT_ONCE = 500


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


class Queue:
    """Commands on one-time tasks. With ``wake`` each says, at its commit, whose rows are due within that time."""

    def __init__(self, dialect: Dialect, wake: timedelta | None = None) -> None:
        self._dialect = dialect
        self._wake = wake
        self._tasks = dialect.tables.tasks

    # -- put --------------------------------------------------------------------------------------------------

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

    def _answer(self, connection: Any, statement: Any, key: Key, absent: Status) -> Status:
        """Run a statement that returns whether the row it wrote is held; if it wrote none, look why.

        Only a statement of its own sees what somebody committed while the first one waited.
        """
        written = connection.execute(statement).fetchone()
        if written is not None:
            return "running" if written[0] else "scheduled"
        found = connection.execute(sa.select(self._tasks.c.picked).where(*self._at(key))).fetchone()
        return absent if found is None else "running" if found[0] else "exists"

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
            "first_version": version, "attempt": 0, "lost_count": 0, "consecutive_failures": 0, "last_error": None,
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

    def _key_columns(self) -> list[Any]:
        return [self._tasks.c.task_name, self._tasks.c.task_instance]

    # -- move, cancel, re-drive -------------------------------------------------------------------------------

    def move(self, connection: Any, key: Key, when: When, priority: int | None) -> Status:
        """Another due time for a waiting row; for a held one, for the attempt after this, if there is one.

        "exists" is a dead row, which stays as it is. Race: a row that is claimed just now is waited for, and is
        "running" then; if its settlement was first, it is "gone".
        """
        values = self._moved(self._due(self._now(connection), when))
        if priority is not None:
            values["priority"] = sa.literal(priority)
        statement = self._tasks.update().where(*self._at(key), *self._alive()).values(**values)
        return self._answer(connection, statement.returning(self._tasks.c.picked, *self._word()), key, absent="gone")

    def arrive(self, connection: Any, key: Key, count: int) -> bool:
        """So many that a blocked row waits for have arrived; after the last of them it waits for its due time only.

        Race: those that arrive at once change the row one after the other. False: no such row is blocked.
        """
        tasks = self._tasks
        last = tasks.c.waits_for <= count
        statement = (
            tasks.update()
            .where(*self._at(key), tasks.c.state == BLOCKED)
            .values(
                waits_for=tasks.c.waits_for - count,
                state=sa.case((last, None), else_=BLOCKED),
                execution_time=sa.case((last, tasks.c.parked_due), else_=tasks.c.execution_time),
                parked_due=sa.case((last, None), else_=tasks.c.parked_due),
            )
        )
        return bool(connection.execute(statement).rowcount)

    def _moved(self, due: Any) -> dict[str, Any]:
        tasks = self._tasks
        waits, begun = ~tasks.c.picked & tasks.c.state.is_(None), tasks.c.picked | (tasks.c.attempt > 0)
        return {
            "wanted_due": sa.case((tasks.c.picked, due), else_=None),
            "execution_time": sa.case((waits, due), else_=tasks.c.execution_time),
            "parked_due": sa.case((waits | tasks.c.picked, tasks.c.parked_due), else_=due),
            "slot": sa.case((begun, tasks.c.slot), else_=due),
        }

    def cancel(self, connection: Any, key: Key) -> Status:
        """Remove a row that waits, is paused or dead; ask the handler of a held one to stop."""
        tasks, mine = self._tasks, [*self._at(key), *self._plain()]
        told = tasks.update().where(*mine, tasks.c.picked).values(cancel_requested=self._now(connection))
        if connection.execute(told).rowcount:
            return "running"
        return "cancelled" if connection.execute(tasks.delete().where(*mine, ~tasks.c.picked)).rowcount else "gone"

    def redrive(self, connection: Any, name: str, instances: Sequence[str] | None, when: When) -> list[str]:
        """Dead rows of a task wait again, as if they had never been tried; up to 500 of them, by id."""
        tasks = self._tasks
        dead = [tasks.c.task_name == name, tasks.c.state == "dead", *self._plain()]
        if instances is not None:
            dead.append(tasks.c.task_instance.in_(instances))
        chosen = sa.select(tasks.c.task_instance).where(*dead).order_by(tasks.c.task_instance).limit(AT_ONCE)
        chosen = chosen.with_for_update(skip_locked=True)
        due = self._due(self._now(connection), when)
        statement = (
            tasks.update()
            .where(tasks.c.task_name == name, tasks.c.task_instance.in_(chosen), tasks.c.state == "dead")
            .values(
                state=None, parked_due=None, execution_time=due, slot=due, attempt=0, lost_count=0,
                version=tasks.c.version + 1,
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
        chosen = sa.select(id).where(*loose, id > after).order_by(id).limit(AT_ONCE).with_for_update(skip_locked=True)
        gone = tasks.delete().where(tasks.c.task_name == name, id.in_(chosen), ~tasks.c.picked, self._may_delete())
        return sorted(instance for (instance,) in connection.execute(gone.returning(id)).fetchall())

    # -- read -------------------------------------------------------------------------------------------------

    def find(self, connection: Any, key: Key) -> Any | None:
        """The columns of TASK_COLUMNS and the data; None if there is no such task."""
        columns = [*self._columns(), self._tasks.c.task_data]
        return connection.execute(sa.select(*columns).where(*self._at(key), *self._plain())).fetchone()

    def page(
        self, connection: Any, *, name: str | None, state: str | None, after: Key | None, size: int
    ) -> Sequence[Any]:
        """The next rows in the order of their keys, which never change: nothing is missed or seen twice."""
        tasks = self._tasks
        statement = sa.select(*self._columns()).where(*self._plain())
        if name is not None:
            statement = statement.where(tasks.c.task_name == name)
        if state is not None:
            statement = statement.where(*self._in_state(state))
        if after is not None:
            statement = statement.where(sa.tuple_(*self._key_columns()) > sa.tuple_(*map(sa.literal, after)))
        found: Sequence[Any] = connection.execute(statement.order_by(*self._key_columns()).limit(size)).fetchall()
        return found

    def ends(self, connection: Any, key: Key) -> Sequence[Any]:
        """What the ledger keeps of the tasks that have ended under this id, the newest first: END_COLUMNS."""
        slots = self._dialect.tables.slots
        statement = (
            sa.select(*(slots.c[name] for name in END_COLUMNS))
            .where(slots.c.task_name == key.task_name, slots.c.task_instance == key.task_instance)
            .where(slots.c.origin == "task", slots.c.finished.is_not(None))
            .where(slots.c.expires.is_(None) | (slots.c.expires > self._now(connection)))
            .order_by(slots.c.slot.desc())
        )
        found: Sequence[Any] = connection.execute(statement).fetchall()
        return found

    def _in_state(self, state: str) -> list[sa.ColumnElement[bool]]:
        tasks = self._tasks
        match state:
            case "running":
                return [tasks.c.picked]
            case "waiting":
                return [~tasks.c.picked, tasks.c.state.is_(None)]
        return [~tasks.c.picked, tasks.c.state == state]

    def _columns(self) -> list[Any]:
        return [self._tasks.c[name] for name in TASK_COLUMNS]

    def say(self, connection: Any, word: str) -> None:
        """Say this at the commit."""

    # -- parts ------------------------------------------------------------------------------------------------

    def _word(self) -> list[sa.ColumnElement[Any]]:
        """What a statement returns besides: a wake-up, where somebody could hear it."""
        return []

    def _at(self, key: Key) -> list[sa.ColumnElement[bool]]:
        return [self._tasks.c.task_name == key.task_name, self._tasks.c.task_instance == key.task_instance]

    def _plain(self) -> list[sa.ColumnElement[bool]]:
        """One-time tasks only."""
        return [self._tasks.c.schedule.is_(None), self._tasks.c.plan_instance.is_(None)]

    def _alive(self) -> list[sa.ColumnElement[bool]]:
        return [*self._plain(), self._tasks.c.state.is_distinct_from("dead")]

    def _may_delete(self) -> Any:
        return sa.true()

    def _now(self, connection: Any) -> Any:
        return sa.literal(self._dialect.now(connection), Instant)

    def _due(self, now: Any, when: When) -> Any:
        return sa.literal(when.at if when.at is not None else now.value + when.delay, Instant)

    def _born(self, now: Any) -> Any:
        return sa.literal(to_micros(now.value), sa.BigInteger)


#: What is read of an end, in this order.
END_COLUMNS = (
    "task_name", "task_instance", "outcome", "reason", "attempts", "worker", "started", "finished", "error", "expires",
    "result",
)  # fmt: skip
#: What is read of a task, in this order.
TASK_COLUMNS = (
    "task_name", "task_instance", "execution_time", "picked", "picked_by", "state", "parked_due", "priority", "attempt",
    "lost_count", "consecutive_failures", "last_failure", "last_error", "cancel_requested", "first_version",
)  # fmt: skip
