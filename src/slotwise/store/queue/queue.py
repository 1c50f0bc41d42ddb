"""One-time tasks: the commands of this database on them, and what reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from slotwise.model.records import IfExists, Key, Wanted, When
from slotwise.model.vocabulary import Origin
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.port import Dialect
from slotwise.store.dialects.task_statements import BulkResult, Status, asked_key, in_state, named, plain

#: What is read of an end, in this order.
END_COLUMNS = (
    "task_name", "task_instance", "outcome", "reason", "attempts", "worker", "started", "finished", "error", "expires",
    "result",
)  # fmt: skip
#: What is read of a task, in this order.
TASK_COLUMNS = (
    "task_name", "task_instance", "execution_time", "picked", "picked_by", "state", "parked_due", "priority", "attempt",
    "lost_count", "consecutive_failures", "last_failure", "last_error", "cancel_requested", "created_version",
)  # fmt: skip


class Inserted(NamedTuple):
    """A one-time task that is being inserted. ``priority``: 0 to 100; ``when``: its due time, or the delay until then.

    A task whose id existed already is among them, too: only the database knows which of them ``if_exists`` has kept.
    """

    task: str
    id: str
    when: When
    priority: int
    data: bytes | None


#: ``at_insert(rows, tx)`` is called after each statement that inserts one-time tasks, in its transaction, which may be
#: the caller's: what it writes is committed with the rows, or not at all. An error that it raises is the call's.
AtInsert: TypeAlias = Callable[[Sequence[Inserted], Joinable], None]


class Queue:
    """Its parts: ``tasks`` for commands on one row or on those of a task, ``chunks`` for many new rows, ``reader``.

    With ``wake`` each command says, at its commit, whose rows are due within that time. Rows are inserted by the
    methods of this class, which call the hooks ``at_insert``.
    """

    def __init__(self, dialect: Dialect, wake: timedelta | None = None, at_insert: Sequence[AtInsert] = ()) -> None:
        self.tasks, self.chunks = dialect.task_statements(wake)
        self.reader = TaskReader(dialect)
        self._at_insert = at_insert

    def put(self, connection: Joinable, name: str, wanted: Wanted, if_exists: IfExists) -> Status:
        """Insert a row, as ``TaskStatements.put``."""
        status = self.tasks.put(connection, name, wanted, if_exists)
        self._inserted(connection, name, [wanted])
        return status

    def put_many(self, connection: Joinable, name: str, wanted: Sequence[Wanted], if_exists: IfExists) -> BulkResult:
        """Insert a chunk of rows, as ``Chunks.put_many``."""
        found = self.chunks.put_many(connection, name, wanted, if_exists)
        self._inserted(connection, name, wanted)
        return found

    def put_new(self, connection: Joinable, name: str, wanted: Sequence[Wanted], *, copy: bool = False) -> None:
        """Insert a chunk of rows whose ids must be new, as ``Chunks.put_new``."""
        self.chunks.put_new(connection, name, wanted, copy=copy)
        self._inserted(connection, name, wanted)

    def copy_ahead(self, connection: sa.Connection, name: str, wanted: Sequence[Wanted]) -> Callable[[], None] | None:
        """As ``Chunks.copy_ahead``; with hooks the COPY is waited for, as they need its transaction."""
        if not self._at_insert:
            return self.chunks.copy_ahead(connection, name, wanted)
        self.put_new(connection, name, wanted, copy=True)
        return None

    def _inserted(self, connection: Joinable, name: str, wanted: Sequence[Wanted]) -> None:
        if not self._at_insert:
            return
        rows = [Inserted(name, one.instance, one.when, one.priority, one.data) for one in wanted]
        for hook in self._at_insert:
            hook(rows, connection)


@lru_cache(maxsize=16)
def queue_of(dialect: Dialect, wake: timedelta | None = None, at_insert: tuple[AtInsert, ...] = ()) -> Queue:
    """The queue of this database; arguments as for a Queue. It keeps its statements, and so it is kept: a process has
    few.
    """
    return Queue(dialect, wake, at_insert)


class TaskReader:
    """Reads one-time tasks without a lock: one, a page of them, how they have ended."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._tasks = dialect.tables.tasks
        columns = [*self._columns(), self._tasks.c.task_data]
        #: Made once: that takes longer than to run it.
        self._find = sa.select(*columns).where(*asked_key(self._tasks), *plain(self._tasks))

    def find(self, connection: Any, key: Key) -> Any | None:
        """The columns of TASK_COLUMNS and the data; None if there is no such task."""
        return connection.execute(self._find, named(key)).fetchone()

    def page(
        self, connection: Any, *, name: str | None, state: str | None, after: Key | None, size: int
    ) -> Sequence[Any]:
        """The next rows in the order of their keys, which never change: nothing is missed or seen twice."""
        tasks = self._tasks
        statement = sa.select(*self._columns()).where(*plain(tasks))
        if name is not None:
            statement = statement.where(tasks.c.task_name == name)
        if state is not None:
            statement = statement.where(*in_state(tasks, state))
        key = (tasks.c.task_name, tasks.c.task_instance)
        if after is not None:
            statement = statement.where(sa.tuple_(*key) > sa.tuple_(*map(sa.literal, after)))
        found: Sequence[Any] = connection.execute(statement.order_by(*key).limit(size)).fetchall()
        return found

    def ends(self, connection: Any, key: Key) -> Sequence[Any]:
        """What the ledger keeps of the tasks that have ended under this id, the newest first: END_COLUMNS."""
        slots = self._dialect.tables.slots
        statement = (
            sa.select(*(slots.c[name] for name in END_COLUMNS))
            .where(slots.c.task_name == key.task_name, slots.c.task_instance == key.task_instance)
            .where(slots.c.origin == Origin.TASK, slots.c.finished.is_not(None))
            .where(slots.c.expires.is_(None) | (slots.c.expires > self._dialect.ago(connection)))
            .order_by(slots.c.slot.desc())
        )
        found: Sequence[Any] = connection.execute(statement).fetchall()
        return found

    def _columns(self) -> list[Any]:
        return [self._tasks.c[name] for name in TASK_COLUMNS]
