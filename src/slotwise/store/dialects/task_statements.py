"""One-time tasks as rows: insert, move, cancel, retry and remove them, each in the caller's transaction.

On a held row a command writes only columns of its own (``wanted_due``, ``cancel_requested``), which the settlement
reads and clears. Jobs and their detached rows are never touched. Each command on one row is a statement that is built
once, with the values as parameters: to build one takes longer than to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

import sqlalchemy as sa

from slotwise.model.records import FOREVER, IfExists, Key, Wanted, When
from slotwise.model.vocabulary import Kind, State
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.connect.notifications import ORDERS
from slotwise.store.schema.column_types import Duration, Instant
from slotwise.store.schema.tables import is_task

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

    from slotwise.store.dialects.port import Dialect, Upsert

#: Rows that are retried, or removed, in one statement.
AT_ONCE = 500

Status: TypeAlias = Literal["scheduled", "exists", "running", "cancelled", "gone"]
Parameters: TypeAlias = dict[str, object]
Expression: TypeAlias = sa.ColumnElement[Any]


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


class TaskForm(Protocol):
    """What differs from database to database; by default the portable form.

    In that, workers of other processes receive no notification, and a chunk is written row by row.
    """

    dialect: Dialect
    rows: TaskStatements
    #: The types of due times and delays as parameters.
    instant: ClassVar[TypeEngine[datetime]] = Instant()
    delay: ClassVar[TypeEngine[timedelta]] = Duration()

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.rows = TaskStatements(dialect, self)

    def now(self) -> Expression:
        """Return the time as a part of a statement that is kept."""
        return sa.bindparam("now", type_=self.instant)

    def time(self, connection: Joinable) -> Parameters:
        """Return the parameters of ``now``."""
        return {"now": self.dialect.now(connection)}

    def created(self) -> Expression:
        """Return the version of a new row as a part of a statement."""
        return sa.cast(self.now(), sa.BigInteger)

    def notification(self) -> list[Expression]:
        """Return what a statement returns besides, to notify workers; empty if no worker could receive it."""
        return []

    def say(self, connection: Joinable, word: str) -> None:
        """Notify workers with this payload at the commit."""
        return

    def may_delete(self) -> sa.ColumnElement[bool]:
        """Return a condition of each deletion of rows."""
        return sa.true()

    def put_many(self, connection: Joinable, name: str, wanted: Sequence[Wanted], if_exists: IfExists) -> BulkResult:
        """As ``put``, for a chunk of rows with different ids."""
        scheduled = [self.rows.put(connection, name, one, if_exists) for one in wanted].count("scheduled")
        return BulkResult(scheduled=scheduled, exists=len(wanted) - scheduled)

    def put_new(self, connection: Joinable, name: str, wanted: Sequence[Wanted], *, copy: bool = False) -> None:
        """Insert a chunk of rows whose ids must be new, by COPY if that is quick here. Raise Taken if some are not.

        Then nothing of it is written; on PostgreSQL, once the transaction is rolled back to where it was before.
        """
        for place, one in enumerate(wanted):
            if self.rows.put(connection, name, one, "keep") != "scheduled":
                # No savepoint: in SQLite the end of one may end the caller's transaction.
                tasks = self.dialect.tables.tasks
                mine = tasks.c.task_instance.in_([before.instance for before in wanted[:place]])
                connection.execute(tasks.delete().where(tasks.c.task_name == name, mine))
                raise Taken


class PortableTasks(TaskForm):
    """The form of a database that does nothing in a way of its own."""


class TaskStatements:
    """Commands on one-time tasks; those on many new rows are its ``form``'s."""

    def __init__(self, dialect: Dialect, form: TaskForm) -> None:
        self._dialect, self.form = dialect, form
        self._tasks = dialect.tables.tasks
        self._key_columns = [self._tasks.c.task_name, self._tasks.c.task_instance]
        self._statements: dict[Hashable, sa.Executable] = {}
        self.say = form.say

    def put(self, connection: Joinable, name: str, wanted: Wanted, if_exists: IfExists) -> Status:
        """Insert a row; ``if_exists`` decides about a row that has its id ("raise" is as "keep").

        Races: of two inserts of one id, the second waits for the first one's commit, and finds the row. A row that is
        claimed meanwhile is "running" and stays unchanged. If the task that had the id has ended since, it "exists".
        """
        is_at, waits = wanted.when.at is not None, wanted.waits_for > 0
        statement = self.kept(("put", if_exists, is_at, waits), lambda: self._put(if_exists, is_at, waits))
        key = Key(name, wanted.instance)
        parameters: Parameters = {"data": wanted.data, "rank": wanted.priority, **named(key)}
        parameters |= self._due_parameters(connection, wanted.when)
        if waits:
            parameters["count"] = wanted.waits_for
        return self._answer(connection, statement, key, absent="exists", parameters=parameters)

    def _put(self, if_exists: IfExists, is_at: bool, waits: bool) -> sa.Executable:
        due, created = self.due(is_at), self.form.created()
        row: Parameters = {
            "task_name": sa.bindparam("name"), "task_instance": sa.bindparam("instance"),
            "task_data": sa.bindparam("data"), "execution_time": due, "slot": due, "picked": sa.false(),
            "kind": sa.literal_column(f"'{Kind.TASK}'"),
            "version": created, "created_version": created, "priority": sa.bindparam("rank", type_=sa.SmallInteger),
        }  # fmt: skip
        if waits:
            row |= {
                "state": State.BLOCKED, "parked_due": due, "execution_time": sa.literal(FOREVER, Instant),
                "waits_for": sa.bindparam("count", type_=sa.Integer),
            }  # fmt: skip
        insert = self.inserting(if_exists, self._dialect.insert(self._tasks).values(**row))
        return insert.returning(self._tasks.c.picked, *self.form.notification())

    def inserting(self, if_exists: IfExists, insert: Upsert) -> Upsert:
        """Return the insert, with the action for a row that has the id."""
        match if_exists:
            case "replace":
                return self._or_replace(insert)
            case "reschedule":
                return self._or_move(insert)
        return insert.on_conflict_do_nothing()

    def _or_replace(self, insert: Upsert) -> Upsert:
        """The row begins anew under its id: another task, by its created version; tokens keep rising."""
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
            "created_version": version, "attempt": 0, "lost_count": 0, "pending": None, "consecutive_failures": 0,
            "last_error": None,
        }  # fmt: skip
        return insert.on_conflict_do_update(
            index_elements=self._key_columns, set_=values, where=sa.and_(~tasks.c.picked, is_task(tasks))
        )

    def _or_move(self, insert: Upsert) -> Upsert:
        new = insert.excluded
        return insert.on_conflict_do_update(
            index_elements=self._key_columns,
            set_={**self._moved(new.execution_time), "priority": new.priority},
            where=sa.and_(*self._alive()),
        )

    def move(self, connection: Joinable, key: Key, when: When, priority: int | None) -> Status:
        """Change the due time of a waiting row; of a held one, that of the next attempt, if there is one.

        "exists" is a dead row, which stays as it is. Race: a row that is claimed just now is waited for, and is
        "running" then; if its settlement was first, it is "gone".
        """
        is_at, ranks = when.at is not None, priority is not None
        statement = self.kept(("move", is_at, ranks), lambda: self._move(is_at, ranks))
        parameters = named(key) | self._due_parameters(connection, when) | ({"rank": priority} if ranks else {})
        return self._answer(connection, statement, key, absent="gone", parameters=parameters)

    def _move(self, is_at: bool, ranks: bool) -> sa.Executable:
        tasks, values = self._tasks, self._moved(self.due(is_at))
        if ranks:
            values["priority"] = sa.bindparam("rank", type_=sa.SmallInteger)
        statement = tasks.update().where(*asked_key(tasks), *self._alive()).values(**values)
        return statement.returning(tasks.c.picked, *self.form.notification())

    def cancel(self, connection: Joinable, key: Key) -> Status:
        """Remove a row that waits, is paused or dead; ask the handler of a held one to stop.

        Race: a row that is claimed between both statements, or let go, is of neither kind: look again.
        """
        remove, stop = self.kept("remove", self._remove), self.kept("stop", self._stop)
        for _ in range(3):
            if connection.execute(remove, named(key)).rowcount:
                return "cancelled"
            if connection.execute(stop, named(key) | self.form.time(connection)).rowcount:
                self.say(connection, ORDERS)
                return "running"
            if self._look(connection, key) is None:
                break
        return "gone"

    def _remove(self) -> sa.Executable:
        mine = [*asked_key(self._tasks), is_task(self._tasks), ~self._tasks.c.picked]
        return self._tasks.delete().where(*mine, self.form.may_delete())

    def _stop(self) -> sa.Executable:
        mine = [*asked_key(self._tasks), is_task(self._tasks), self._tasks.c.picked]
        return self._tasks.update().where(*mine).values(cancel_requested=self.form.now())

    def arrive(self, connection: Joinable, key: Key, count: int) -> bool:
        """Count down a blocked row by ``count``; at zero it waits for its due time only.

        Race: those that arrive at once change the row one after the other. False: no such row is blocked.
        """
        tasks = self._tasks
        last = tasks.c.waits_for <= count
        statement = (
            tasks.update()
            .where(tasks.c.task_name == key.task_name, tasks.c.task_instance == key.task_instance)
            .where(tasks.c.state == State.BLOCKED)
            .values(
                waits_for=tasks.c.waits_for - count,
                state=sa.case((last, None), else_=State.BLOCKED.value),
                execution_time=sa.case((last, tasks.c.parked_due), else_=tasks.c.execution_time),
                parked_due=sa.case((last, None), else_=tasks.c.parked_due),
            )
        )
        return bool(connection.execute(statement).rowcount)

    def retry(self, connection: Joinable, name: str, instances: Sequence[str] | None, when: When) -> list[str]:
        """Let up to 500 dead rows of a task wait again, by id, as if they had never been tried; return their ids."""
        tasks = self._tasks
        dead = [tasks.c.task_name == name, tasks.c.state == State.DEAD, is_task(tasks)]
        if instances is not None:
            dead.append(tasks.c.task_instance.in_(instances))
        chosen = sa.select(*self._key_columns).where(*dead).order_by(tasks.c.task_instance).limit(AT_ONCE)
        due = self.due(when.at is not None)
        statement = (
            tasks.update()
            .where(self._dialect.locked(chosen))
            .values(
                state=None, parked_due=None, execution_time=due, slot=due, attempt=0, lost_count=0, pending=None,
                consecutive_failures=0, version=tasks.c.version + 1,
            )
            .returning(tasks.c.task_instance, *self.form.notification())
        )  # fmt: skip
        told = self._due_parameters(connection, when)
        return sorted(row[0] for row in connection.execute(statement, told).fetchall())

    def remove(self, connection: Joinable, name: str, state: str | None, after: str) -> list[str]:
        """Delete up to 500 rows that are not held, of one state or any, with ids after this one; return their ids.

        Race: what is claimed just now is locked, and stays.
        """
        tasks, id = self._tasks, self._tasks.c.task_instance
        loose = [tasks.c.task_name == name, ~tasks.c.picked, is_task(tasks), *(in_state(tasks, state) if state else ())]
        chosen = sa.select(*self._key_columns).where(*loose, id > after).order_by(id).limit(AT_ONCE)
        gone = tasks.delete().where(self._dialect.locked(chosen), self.form.may_delete())
        return sorted(instance for (instance,) in connection.execute(gone.returning(id)).fetchall())

    def taken(self, connection: Joinable, name: str, ids: Sequence[str]) -> list[str]:
        """Return those of these ids that a row has, whatever it is."""
        id, found = self._tasks.c.task_instance, list[str]()
        for start in range(0, len(ids), AT_ONCE):
            statement = sa.select(id).where(self._tasks.c.task_name == name, id.in_(ids[start : start + AT_ONCE]))
            found += [instance for (instance,) in connection.execute(statement).fetchall()]
        return found

    def _answer(
        self, connection: Joinable, statement: sa.Executable, key: Key, *, absent: Status, parameters: Parameters
    ) -> Status:
        """Run a statement that returns whether the row it wrote is held; if it wrote none, read the row.

        Only a statement of its own sees what another transaction committed while the first one waited.
        """
        written = connection.execute(statement, parameters).fetchone()
        if written is not None:
            return "running" if written[0] else "scheduled"
        found = self._look(connection, key)
        return absent if found is None else "running" if found[0] else "exists"

    def _look(self, connection: Joinable, key: Key) -> Sequence[Any] | None:
        """Return whether the row is held; None: there is none."""
        look = self.kept("look", lambda: sa.select(self._tasks.c.picked).where(*asked_key(self._tasks)))
        return connection.execute(look, named(key)).fetchone()

    def due(self, is_at: bool) -> Expression:
        """Return the due time as a part of a statement: an instant, or a delay after now."""
        if is_at:
            return sa.bindparam("due", type_=self.form.instant)
        return self.form.now() + sa.bindparam("due", type_=self.form.delay)

    def _due_parameters(self, connection: Joinable, when: When) -> Parameters:
        """Return the parameters of ``due`` and ``created``."""
        return {"due": when.delay if when.at is None else when.at, **self.form.time(connection)}

    def _moved(self, due: Expression) -> dict[str, Expression]:
        tasks = self._tasks
        waits, begun = ~tasks.c.picked & tasks.c.state.is_(None), tasks.c.picked | (tasks.c.attempt > 0)
        return {
            "wanted_due": sa.case((tasks.c.picked, due), else_=None),
            "execution_time": sa.case((waits, due), else_=tasks.c.execution_time),
            "parked_due": sa.case((waits | tasks.c.picked, tasks.c.parked_due), else_=due),
            "slot": sa.case((begun, tasks.c.slot), else_=due),
        }

    def _alive(self) -> list[sa.ColumnElement[bool]]:
        return [is_task(self._tasks), self._tasks.c.state.is_distinct_from(State.DEAD)]

    def kept(self, shape: Hashable, build: Callable[[], sa.Executable]) -> sa.Executable:
        """Return the statement of this shape, built when it is first asked for: that takes longer than to run it."""
        if (found := self._statements.get(shape)) is None:
            found = self._statements[shape] = build()
        return found


def asked_key(tasks: sa.Table) -> list[sa.ColumnElement[bool]]:
    """The condition of a key in a statement that is kept; ``named`` are its parameters."""
    return [tasks.c.task_name == sa.bindparam("name"), tasks.c.task_instance == sa.bindparam("instance")]


def named(key: Key) -> Parameters:
    return {"name": key.task_name, "instance": key.task_instance}


def in_state(tasks: sa.Table, state: str) -> list[sa.ColumnElement[bool]]:
    match state:
        case State.RUNNING:
            return [tasks.c.picked]
        case State.WAITING:
            return [~tasks.c.picked, tasks.c.state.is_(None)]
    return [~tasks.c.picked, tasks.c.state == state]
