"""One-time tasks as new rows, inserted in the caller's transaction, and what other commands on
them are built from.

Each statement on one row is built once, with the values as parameters: building it takes longer
than running it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, cast

import sqlalchemy as sa

from slotwise.model.records import FOREVER, IfExists, Key, Wanted, When
from slotwise.model.vocabulary import Kind, RowState
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.schema.column_types import Duration, Instant
from slotwise.store.schema.tables import is_task

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

    from slotwise.store.dialects.by_key import ByKey
    from slotwise.store.dialects.port import NewRow
    from slotwise.store.dialects.upserts import Upsert, Upserting

Status: TypeAlias = Literal["scheduled", "exists", "running", "cancelled", "gone"]
Parameters: TypeAlias = dict[str, object]
Expression: TypeAlias = sa.ColumnElement[Any]
#: What is built once.
Statement = TypeVar("Statement")


class Taken(Exception):
    """An id of a chunk has a row already."""


class TaskStatements(ABC):
    """What all dialects share: a helper of the bases. It sends no notification to other
    processes.
    """

    #: The types of due times and delays as parameters.
    instant: ClassVar[TypeEngine[datetime]] = Instant()
    delay: ClassVar[TypeEngine[timedelta]] = Duration()

    def __init__(self, dialect: ByKey) -> None:
        self.dialect = dialect
        self.tasks = dialect.tables.tasks
        self.key_columns = [self.tasks.c.task_name, self.tasks.c.task_instance]
        self._statements: dict[Hashable, object] = {}

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
        """Return what a statement returns besides, to notify workers; empty if no worker could
        receive it.
        """
        return []

    def notify(self, connection: Joinable, word: str) -> None:
        """Notify workers with this payload at the commit."""
        return

    def may_delete(self) -> sa.ColumnElement[bool]:
        return sa.true()

    @abstractmethod
    def put(
        self, connection: Joinable, name: str, wanted: Wanted, if_exists: IfExists
    ) -> Status:
        """Insert a row; ``if_exists`` decides about a row that has its id ("raise" is as "keep").

        Races: of two inserts of one id, the second waits for the first one's commit, and finds the
        row. A row that is claimed meanwhile is "running" and stays unchanged. If the task that had
        the id has ended since, it "exists".
        """

    @abstractmethod
    def put_many(
        self, connection: Joinable, name: str, wanted: Sequence[Wanted], if_exists: IfExists
    ) -> int:
        """As ``put``, for a chunk of rows with different ids; return how many were scheduled."""

    @abstractmethod
    def put_new(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        *,
        copy: bool = False,
    ) -> None:
        """Insert a chunk of rows whose ids must be new, by COPY if that is quick here. Raise Taken
        if some are not.

        Then nothing of it is written; on PostgreSQL, once the transaction is rolled back to where
        it was before.
        """

    def answer(
        self,
        connection: Joinable,
        written: Sequence[Any] | None,
        key: Key,
        *,
        absent: Status,
    ) -> Status:
        """Return the answer of a statement that returns whether the row it wrote is held; if it
        wrote none, read the row.

        Only a statement of its own sees what another transaction committed while the first one
        waited.
        """
        if written is not None:
            return "running" if written[0] else "scheduled"
        found = self.look(connection, key)
        return absent if found is None else "running" if found[0] else "exists"

    def look(self, connection: Joinable, key: Key) -> Sequence[Any] | None:
        """Return whether the row is held; None: there is none."""
        look = self.kept(
            "look", lambda: sa.select(self.tasks.c.picked).where(*asked_key(self.tasks))
        )
        return connection.execute(look, named(key)).fetchone()

    def due(self, is_at: bool) -> Expression:
        """Return the due time as a part of a statement: an instant, or a delay after now."""
        if is_at:
            return sa.bindparam("due", type_=self.instant)
        return self.now() + sa.bindparam("due", type_=self.delay)

    def due_parameters(self, connection: Joinable, when: When) -> Parameters:
        """Return the parameters of ``due`` and ``created``."""
        return {"due": when.delay if when.at is None else when.at, **self.time(connection)}

    def moved(self, due: Expression) -> dict[str, Expression]:
        """Return the columns of a row that is rescheduled. Of a held row only ``wanted_due``, for
        its settlement.
        """
        tasks = self.tasks
        waits = ~tasks.c.picked & tasks.c.state.is_(None)
        begun = tasks.c.picked | (tasks.c.attempt > 0)
        return {
            "wanted_due": sa.case((tasks.c.picked, due), else_=None),
            "execution_time": sa.case((waits, due), else_=tasks.c.execution_time),
            "parked_due": sa.case((waits | tasks.c.picked, tasks.c.parked_due), else_=due),
            "slot": sa.case((begun, tasks.c.slot), else_=due),
        }

    def replaced(self, new: NewRow) -> dict[str, Any]:
        """Return the columns of a row whose id gets a new task; tokens keep rising."""
        tasks = self.tasks
        parked = (tasks.c.state == RowState.PAUSED) | (new["state"] == RowState.BLOCKED)
        version = sa.case(
            (tasks.c.version >= new["version"], tasks.c.version + 1), else_=new["version"]
        )
        return {
            "task_data": new["task_data"],
            "slot": new["slot"],
            "priority": new["priority"],
            "version": version,
            "execution_time": sa.case(
                (parked, sa.literal(FOREVER, Instant)), else_=new["execution_time"]
            ),
            "parked_due": sa.case(
                (parked, sa.func.coalesce(new["parked_due"], new["execution_time"])),
                else_=None,
            ),
            "state": sa.case(
                (new["state"] == RowState.BLOCKED, RowState.BLOCKED.value),
                (parked, RowState.PAUSED.value),
                else_=None,
            ),
            "waits_for": new["waits_for"],
            "created_version": version,
            "attempt": 0,
            "lost_count": 0,
            "pending": None,
            "consecutive_failures": 0,
            "last_error": None,
        }

    def alive(self) -> list[sa.ColumnElement[bool]]:
        return [is_task(self.tasks), self.tasks.c.state.is_distinct_from(RowState.DEAD)]

    def kept(self, shape: Hashable, build: Callable[[], Statement]) -> Statement:
        """Return the statement of this shape, built when it is first asked for: that takes longer
        than to run it.
        """
        if (found := self._statements.get(shape)) is None:
            found = self._statements[shape] = build()
        return cast("Statement", found)


class UpsertingTasks(TaskStatements):
    """Commands of the bases that have ON CONFLICT: one statement each."""

    def __init__(self, dialect: Upserting) -> None:
        super().__init__(dialect)
        self.insert: Callable[[sa.Table], Upsert] = dialect.insert

    def put(
        self, connection: Joinable, name: str, wanted: Wanted, if_exists: IfExists
    ) -> Status:
        is_at = wanted.when.at is not None
        waits = wanted.waits_for > 0
        statement = self.kept(
            ("put", if_exists, is_at, waits), lambda: self._put(if_exists, is_at, waits)
        )
        key = Key(name, wanted.instance)
        parameters: Parameters = {
            "data": wanted.data,
            "rank": wanted.priority,
            **named(key),
        }
        parameters |= self.due_parameters(connection, wanted.when)
        if waits:
            parameters["count"] = wanted.waits_for
        written = connection.execute(statement, parameters).fetchone()
        return self.answer(connection, written, key, absent="exists")

    def _put(self, if_exists: IfExists, is_at: bool, waits: bool) -> sa.Executable:
        due = self.due(is_at)
        created = self.created()
        row: Parameters = {
            "task_name": sa.bindparam("name"),
            "task_instance": sa.bindparam("instance"),
            "task_data": sa.bindparam("data"),
            "execution_time": due,
            "slot": due,
            "picked": sa.false(),
            "kind": sa.literal_column(f"'{Kind.TASK}'"),
            "version": created,
            "created_version": created,
            "priority": sa.bindparam("rank", type_=sa.SmallInteger),
        }
        if waits:
            row |= {
                "state": RowState.BLOCKED,
                "parked_due": due,
                "execution_time": sa.literal(FOREVER, Instant),
                "waits_for": sa.bindparam("count", type_=sa.Integer),
            }
        insert = self.inserting(if_exists, self.insert(self.tasks).values(**row))
        return insert.returning(self.tasks.c.picked, *self.notification())

    def inserting(self, if_exists: IfExists, insert: Upsert) -> Upsert:
        """Return the insert, with the action for a row that has the id."""
        match if_exists:
            case "replace":
                return self._or_replace(insert)
            case "reschedule":
                return self._or_move(insert)
        return insert.on_conflict_do_nothing()

    def _or_replace(self, insert: Upsert) -> Upsert:
        tasks = self.tasks
        return insert.on_conflict_do_update(
            index_elements=self.key_columns,
            set_=self.replaced(insert.excluded),
            where=sa.and_(~tasks.c.picked, is_task(tasks)),
        )

    def _or_move(self, insert: Upsert) -> Upsert:
        new = insert.excluded
        return insert.on_conflict_do_update(
            index_elements=self.key_columns,
            set_={**self.moved(new["execution_time"]), "priority": new["priority"]},
            where=sa.and_(*self.alive()),
        )


class OneWriterTasks(UpsertingTasks):
    """Chunks row by row, where one transaction writes at a time."""

    def put_many(
        self, connection: Joinable, name: str, wanted: Sequence[Wanted], if_exists: IfExists
    ) -> int:
        return [self.put(connection, name, one, if_exists) for one in wanted].count(
            "scheduled"
        )

    def put_new(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        *,
        copy: bool = False,
    ) -> None:
        for place, one in enumerate(wanted):
            if self.put(connection, name, one, "keep") != "scheduled":
                # No savepoint: in SQLite the end of one may end the caller's transaction.
                mine = self.tasks.c.task_instance.in_(
                    [before.instance for before in wanted[:place]]
                )
                connection.execute(
                    self.tasks.delete().where(self.tasks.c.task_name == name, mine)
                )
                raise Taken


def asked_key(tasks: sa.Table) -> list[sa.ColumnElement[bool]]:
    """The condition of a key in a statement that is kept; ``named`` are its parameters."""
    return [
        tasks.c.task_name == sa.bindparam("name"),
        tasks.c.task_instance == sa.bindparam("instance"),
    ]


def named(key: Key) -> Parameters:
    return {"name": key.task_name, "instance": key.task_instance}
