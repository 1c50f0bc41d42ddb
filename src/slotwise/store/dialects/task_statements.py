"""One-time tasks as new rows, inserted in the caller's transaction, and what other commands on
them are built from.

Each statement on one row is built once, with the values as parameters: building it takes longer
than running it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, cast

import sqlalchemy as sa

from slotwise.model.records import FOREVER, IfExists, Key, Wanted, When, to_micros
from slotwise.model.vocabulary import Kind, RowState
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.row_values import TRIES, GivenValues, Values
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.tables import Condition, Expression, is_task

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

    from slotwise.store.dialects.port import Dialect, NewRow

Status: TypeAlias = Literal["scheduled", "exists", "running", "cancelled", "gone"]
Parameters: TypeAlias = dict[str, object]
#: What is built once.
Statement = TypeVar("Statement")


#: The columns of a task that was never tried.
UNTRIED: Parameters = {
    "attempt": 0,
    "lost_count": 0,
    "pending": None,
    "consecutive_failures": 0,
}


class Taken(Exception):
    """An id of a chunk has a row already."""


class TaskStatements:
    """Commands by key, right in every database. They send no notification to other processes."""

    #: The type of due times as parameters.
    instant: ClassVar[TypeEngine[datetime]] = Instant()

    def __init__(self, dialect: Dialect) -> None:
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

    def notification(self) -> list[Expression]:
        """Return what a statement returns besides, to notify workers; empty if no worker could
        receive it.
        """
        return []

    def notify(self, connection: Joinable, word: str) -> None:
        """Notify workers with this payload at the commit."""
        return

    def may_delete(self) -> Condition:
        return sa.true()

    def put(
        self, connection: Joinable, name: str, wanted: Wanted, if_exists: IfExists
    ) -> Status:
        """Insert a row; ``if_exists`` decides about a row that has its id ("raise" is as "keep").

        Races: of two inserts of one id, the second waits for the first one's commit, and finds the
        row. A row that is claimed meanwhile is "running" and stays unchanged. If the task that had
        the id has ended since, it "exists".
        """
        new = self.new_row(name, wanted, self.dialect.now(connection))
        key = Key(name, wanted.instance)
        for _ in range(TRIES):
            found = self.picked(connection, key)
            if found is None:
                if self.dialect.insert_new(connection, self.tasks, new):
                    return "scheduled"
            elif if_exists in ("keep", "raise"):
                return "running" if found[0] else "exists"
            else:
                return self._change(connection, key, new, if_exists)
        return "exists"

    def _change(
        self, connection: Joinable, key: Key, new: Values, if_exists: IfExists
    ) -> Status:
        """Change the row that has the id; a row that has just gone "exists" no more."""
        tasks = self.tasks
        mine, columns = self._changes(GivenValues(tasks, new), if_exists)
        change = tasks.update().where(*of_key(tasks.c, key), *mine).values(**columns)
        written = self.dialect.reading(change, tasks.c.picked)(connection)
        return self.answer(connection, next(iter(written), None), key, absent="exists")

    def _changes(
        self, given: NewRow, if_exists: IfExists
    ) -> tuple[list[Condition], dict[str, Expression]]:
        """Return which rows may change, and the columns that they get."""
        if if_exists == "replace":
            tasks = self.tasks.c
            return [~tasks.picked, is_task(tasks)], self.replaced(given)
        moved = self.moved(given["execution_time"])
        return self.alive(), {**moved, "priority": given["priority"]}

    def new_row(self, name: str, wanted: Wanted, now: datetime) -> Values:
        due = now + wanted.when.delay if wanted.when.at is None else wanted.when.at
        row: Values = {
            "task_name": name,
            "task_instance": wanted.instance,
            "task_data": wanted.data,
            "execution_time": due,
            "slot": due,
            "picked": False,
            "kind": Kind.TASK,
            "version": to_micros(now),
            "created_version": to_micros(now),
            "priority": wanted.priority,
        }
        if wanted.waits_for > 0:  # other roles may not write these columns
            row |= {
                "execution_time": FOREVER,
                "state": RowState.BLOCKED,
                "parked_due": due,
                "waits_for": wanted.waits_for,
            }
        return row

    def put_many(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        if_exists: IfExists,
    ) -> int:
        """As ``put``, for a chunk of rows with different ids; return how many were scheduled.

        Race: in the order of ids, so that two chunks that meet in several cannot deadlock.
        """
        ordered = sorted(wanted, key=lambda one: one.instance)
        done = [self.put(connection, name, one, if_exists) for one in ordered]
        return done.count("scheduled")

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
        for place, one in enumerate(wanted):
            if self.put(connection, name, one, "keep") != "scheduled":
                mine = [before.instance for before in wanted[:place]]
                gone = self.tasks.delete().where(
                    self.tasks.c.task_name == name,
                    self.tasks.c.task_instance.in_(mine),
                )
                connection.execute(gone)
                raise Taken

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
        found = self.picked(connection, key)
        return absent if found is None else "running" if found[0] else "exists"

    def picked(self, connection: Joinable, key: Key) -> Sequence[Any] | None:
        """Return whether the row is held; None: there is none."""
        query = self.kept(
            "picked",
            lambda: sa.select(self.tasks.c.picked).where(*asked_key(self.tasks)),
        )
        return connection.execute(query, named(key)).fetchone()

    def due(self, is_at: bool) -> Expression:
        """Return the due time as a part of a statement; ``is_at``: it is given as an instant."""
        return sa.bindparam("due", type_=self.instant)

    def due_parameters(self, connection: Joinable, when: When) -> Parameters:
        """Return the parameters of ``due``."""
        now = self.dialect.now(connection)
        return {"due": when.at or now + when.delay, "now": now}

    def moved(self, due: Expression) -> dict[str, Expression]:
        """Return the columns of a row that is rescheduled. Of a held row only ``wanted_due``, for
        its settlement.
        """
        tasks = self.tasks.c
        waits = ~tasks.picked & tasks.state.is_(None)
        begun = tasks.picked | (tasks.attempt > 0)
        return {
            "wanted_due": sa.case((tasks.picked, due), else_=None),
            "execution_time": sa.case((waits, due), else_=tasks.execution_time),
            "parked_due": sa.case((waits | tasks.picked, tasks.parked_due), else_=due),
            "slot": sa.case((begun, tasks.slot), else_=due),
        }

    def replaced(self, new: NewRow) -> dict[str, Any]:
        """Return the columns of a row whose id gets a new task; tokens keep rising."""
        tasks = self.tasks.c
        parked = (tasks.state == RowState.PAUSED) | (new["state"] == RowState.BLOCKED)
        due = new["execution_time"]
        version = sa.case(
            (tasks.version >= new["version"], tasks.version + 1), else_=new["version"]
        )
        return {
            "task_data": new["task_data"],
            "slot": new["slot"],
            "priority": new["priority"],
            "version": version,
            "execution_time": sa.case(
                (parked, sa.literal(FOREVER, Instant)), else_=due
            ),
            "parked_due": sa.case(
                (parked, sa.func.coalesce(new["parked_due"], due)), else_=None
            ),
            "state": sa.case(
                (new["state"] == RowState.BLOCKED, RowState.BLOCKED.value),
                (parked, RowState.PAUSED.value),
                else_=None,
            ),
            "waits_for": new["waits_for"],
            "created_version": version,
            "last_error": None,
            **UNTRIED,
        }

    def alive(self) -> list[Condition]:
        return [
            is_task(self.tasks.c),
            self.tasks.c.state.is_distinct_from(RowState.DEAD),
        ]

    def kept(self, shape: Hashable, build: Callable[[], Statement]) -> Statement:
        """Return the statement of this shape, built when it is first asked for: that takes longer
        than to run it.
        """
        if (found := self._statements.get(shape)) is None:
            found = self._statements[shape] = build()
        return cast("Statement", found)


def asked_key(tasks: sa.Table) -> list[Condition]:
    """The condition of a key in a statement that is kept; ``named`` are its parameters."""
    return [
        tasks.c.task_name == sa.bindparam("name"),
        tasks.c.task_instance == sa.bindparam("instance"),
    ]


def named(key: Key) -> Parameters:
    return {"name": key.task_name, "instance": key.task_instance}
