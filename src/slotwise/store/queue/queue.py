"""One-time tasks: the commands on them, what handlers leave behind, the queries, and the values
that these return.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from slotwise.model.records import (
    FOREVER,
    Follow,
    FollowUps,
    IfExists,
    Key,
    Wanted,
    When,
    from_micros,
    to_micros,
)
from slotwise.model.values import Value
from slotwise.model.vocabulary import ListedState, Origin, RowState
from slotwise.payload.payload import plain as plain_data
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Dialect
from slotwise.store.dialects.task_statements import (
    Status,
    asked_key,
    named,
)
from slotwise.store.queue.task_commands import TaskCommands, in_state
from slotwise.store.queue.task_filter import TaskFilter, matching
from slotwise.store.schema.rows import filled, utc
from slotwise.store.schema.tables import is_task

logger = logging.getLogger(__name__)

#: The columns of a row, in the order of a statement.
Values: TypeAlias = Sequence[Any]
#: What is read of an end, in this order.
END_COLUMNS = (
    "task_name",
    "task_instance",
    "result",
    "outcome",
    "reason",
    "attempts",
    "worker",
    "started",
    "finished",
    "error",
    "expires",
)
#: What is read of a task, in this order; in a page without its data.
TASK_COLUMNS = (
    "task_name",
    "task_instance",
    "execution_time",
    "picked",
    "picked_by",
    "state",
    "parked_due",
    "priority",
    "attempt",
    "lost_count",
    "consecutive_failures",
    "last_failure",
    "last_error",
    "cancel_requested",
    "created_version",
    "order_key",
    "task_data",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo(Value):
    """A one-time task that has not succeeded. ``state``: waiting, running, paused, blocked or
    dead; in ``slotwise.inspect`` also, where it is due, "no_live_worker", or unroutable.
    """

    task: str
    id: str
    state: str
    #: When it may start next; None for a dead one.
    due: datetime | None
    priority: int
    #: How often its handler has been started.
    attempt: int
    worker: str | None
    #: Since when it is scheduled; None for a row of another program.
    scheduled: datetime | None
    last_failure: datetime | None
    last_error: str | None
    cancel_requested: datetime | None
    payload: bytes | None = field(default=None, repr=False)
    #: Why no live worker takes it although it is due; only ``slotwise.inspect`` tells.
    reason: str | None = None
    #: Of handlers of events, the key of the event: tasks with the same one run in order.
    order_key: str | None = None

    @property
    def data(self) -> Any:
        """The payload as plain values, of the version in which it was stored. Raises
        InvalidPayload.
        """
        return plain_data(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(Value):
    """How a one-time task ended, if its ``record`` or ``result_retention`` keeps it."""

    task: str
    id: str
    #: succeeded, failed, dead, lost or cancelled.
    outcome: str
    reason: str | None
    attempts: int
    worker: str | None
    started: datetime | None
    finished: datetime
    #: Why it did not succeed, or why its result was not kept.
    error: str | None
    #: When its result goes.
    expires: datetime | None
    stored: bytes | None = field(default=None, repr=False)

    @property
    def result(self) -> Any:
        """What the handler returned, as plain values; None if nothing is stored."""
        return plain_data(self.stored)


def _task_result(values: Values) -> TaskResult:
    row = dict(zip(END_COLUMNS, values, strict=True))
    stored = None if row["result"] is None else bytes(row["result"])
    return filled(
        TaskResult, row, task=row["task_name"], id=row["task_instance"], stored=stored
    )


def _task_info(values: Values) -> TaskInfo:
    row = dict(zip(TASK_COLUMNS, map(utc, values), strict=False))
    payload = row.get("task_data")
    state = (
        ListedState.RUNNING if row["picked"] else row["state"] or ListedState.WAITING
    )
    return filled(
        TaskInfo,
        row,
        task=row["task_name"],
        id=row["task_instance"],
        state=state,
        due=_due_in(row, state),
        priority=50 if row["priority"] is None else row["priority"],
        worker=row["picked_by"],
        scheduled=_instant_of(row["created_version"] or 0),
        payload=None if payload is None else bytes(payload),
    )


def _due_in(row: Mapping[str, Any], state: str) -> datetime | None:
    if state == RowState.DEAD:
        return None
    is_parked = state in (RowState.PAUSED, RowState.BLOCKED)
    due: datetime | None = row["parked_due" if is_parked else "execution_time"]
    return due


def _instant_of(version: int) -> datetime | None:
    """Return when a row was created; None for a version of another program."""
    is_ours = 1_000_000_000_000_000 < version < to_micros(FOREVER)
    return from_micros(version) if is_ours else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """The result of scheduling many: how many were scheduled, and how many existed already and
    were kept.
    """

    scheduled: int = 0
    exists: int = 0

    @property
    def total(self) -> int:
        return self.scheduled + self.exists

    def __add__(self, other: BulkResult) -> BulkResult:
        return BulkResult(
            scheduled=self.scheduled + other.scheduled,
            exists=self.exists + other.exists,
        )


class Inserted(NamedTuple):
    """A one-time task after an insert statement; with ``if_exists`` its id may have existed, and
    the row was kept.
    """

    task: str
    id: str
    when: When
    priority: int
    data: bytes | None


def inserted(task: str, row: Wanted) -> Inserted:
    return Inserted(task, row.instance, row.when, row.priority, row.data)


#: ``at_insert(rows, tx)`` is called after each statement that inserts one-time tasks, in its
#: transaction, which may be the caller's: what it writes is committed with the rows, or not at
#: all. An error that it raises is the call's.
AtInsert: TypeAlias = Callable[[Sequence[Inserted], Joinable], None]


class Queue:
    """Its parts: ``rows`` inserts, ``tasks`` for commands, ``reader``; inserts call hooks
    ``at_insert``.

    With ``wake`` each command notifies workers, at its commit, of rows that are due within that
    time.
    """

    def __init__(
        self,
        dialect: Dialect,
        wake: timedelta | None = None,
        at_insert: Sequence[AtInsert] = (),
    ) -> None:
        self.rows = dialect.task_statements(wake)
        self.tasks = TaskCommands(self.rows)
        self.reader = TaskReader(dialect)
        self._at_insert = at_insert
        #: Inserts a row, as ``TaskStatements.put``.
        self.put: Callable[[Joinable, str, Wanted, IfExists], Status] = (
            self._put if at_insert else self.rows.put
        )

    def _put(
        self, connection: Joinable, name: str, wanted: Wanted, if_exists: IfExists
    ) -> Status:
        status = self.rows.put(connection, name, wanted, if_exists)
        self._inserted(connection, name, [wanted])
        return status

    def put_many(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        if_exists: IfExists,
    ) -> BulkResult:
        """Insert a chunk of rows, as ``TaskStatements.put_many``."""
        scheduled = self.rows.put_many(connection, name, wanted, if_exists)
        self._inserted(connection, name, wanted)
        return BulkResult(scheduled=scheduled, exists=len(wanted) - scheduled)

    def put_new(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        *,
        copy: bool = False,
    ) -> None:
        """Insert a chunk of rows whose ids must be new, as ``TaskStatements.put_new``."""
        self.rows.put_new(connection, name, wanted, copy=copy)
        self._inserted(connection, name, wanted)

    def _inserted(
        self, connection: Joinable, name: str, wanted: Sequence[Wanted]
    ) -> None:
        for hook in self._at_insert:
            hook([inserted(name, one) for one in wanted], connection)


#: The queue of a database, with the arguments of Queue. It keeps its statements, and so it is
#: kept: a process has few.
queue_of = lru_cache(maxsize=16)(Queue)


def write_follow_ups(
    connection: sa.Connection, queue: Queue, succeeded: Sequence[FollowUps]
) -> set[str]:
    """Write the follow-ups of these handlers; return the tasks that may be due by it.

    Race: in the order of keys, so that two settlements cannot deadlock; those of one id keep the
    order of their calls.
    """
    follows = [follow for one in succeeded for follow in one.follows]
    for (_, name, if_exists, blocked), some in sorted(_groups(follows).items()):
        if not blocked:
            queue.put_many(connection, name, some, if_exists)
            continue
        for wanted in sorted(some):
            queue.put(connection, name, wanted, if_exists)
    return {follow.task for follow in follows} | _count_down(
        connection, queue, succeeded
    )


def _count_down(
    connection: sa.Connection, queue: Queue, succeeded: Sequence[FollowUps]
) -> set[str]:
    """Count down the tasks that these handlers name, each handler once; return the names."""
    arrivals = Counter[Key]()
    for one in succeeded:
        arrivals.update(set(one.arrivals))
    for key, count in sorted(arrivals.items()):
        if not queue.tasks.arrive(connection, key, count):
            logger.warning(
                "ctx.count_down: no task %r with the id %r is blocked; this "
                "arrival counts for nothing",
                *key,
            )
    return {key.task_name for key in arrivals}


def _groups(
    follows: Sequence[Follow],
) -> dict[tuple[int, str, IfExists, bool], list[Wanted]]:
    """Return what one statement can write together: by the ordinal of the id's call, the task,
    ``if_exists``, and whether it is blocked.
    """
    turns = Counter[Key]()
    groups: dict[tuple[int, str, IfExists, bool], list[Wanted]] = {}
    for name, wanted, if_exists in follows:
        key = Key(name, wanted.instance)
        turns[key] += 1
        group = turns[key], name, if_exists, wanted.waits_for > 0
        groups.setdefault(group, []).append(wanted)
    return groups


class TaskReader:
    """Reads one-time tasks without a lock: one, a page of them, how they have ended."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._tasks = dialect.tables.tasks
        self._columns = [self._tasks.c[name] for name in TASK_COLUMNS]
        # Built once: that takes longer than to run it.
        self._find = sa.select(*self._columns).where(
            *asked_key(self._tasks), is_task(self._tasks.c)
        )

    def find(self, connection: Joinable, key: Key) -> TaskInfo | None:
        """Return a task with its data; None if there is none."""
        found = connection.execute(self._find, named(key)).fetchone()
        return None if found is None else _task_info(found)

    def page(
        self,
        connection: Joinable,
        *,
        name: str | None,
        state: str | None,
        after: Key | None,
        size: int,
        where: TaskFilter | None = None,
    ) -> list[TaskInfo]:
        """Return the next rows in the order of their keys, which never change: none is missed or
        seen twice.
        """
        tasks = self._tasks.c
        statement = sa.select(*self._columns[:-1]).where(is_task(tasks))
        if name is not None:
            statement = statement.where(tasks.task_name == name)
        if state is not None:
            statement = statement.where(*in_state(tasks, state))
        if where is not None:
            statement = statement.where(*matching(tasks, where))
        key = sa.tuple_(tasks.task_name, tasks.task_instance)
        if after is not None:
            statement = statement.where(key > sa.tuple_(*map(sa.literal, after)))
        page = statement.order_by(*key.clauses).limit(size)
        return [_task_info(row) for row in connection.execute(page).fetchall()]

    def ends(self, connection: Joinable, key: Key) -> list[TaskResult]:
        """Return what the ledger keeps of the tasks that have ended under this id, the newest
        first.
        """
        slots = self._dialect.tables.slots.c
        statement = (
            sa.select(*(slots[name] for name in END_COLUMNS))
            .where(
                *of_key(slots, key),
                slots.origin == Origin.TASK,
                slots.finished.is_not(None),
            )
            .where(
                slots.expires.is_(None)
                | (slots.expires > self._dialect.ago(connection))
            )
            .order_by(slots.slot.desc())
        )
        return list(map(_task_result, connection.execute(statement).fetchall()))
