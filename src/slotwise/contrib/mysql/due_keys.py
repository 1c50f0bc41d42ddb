"""Looks for due rows, without a lock: each reads the keys from one index, in its order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from slotwise.spi import ClaimRequest, Joinable, Key

if TYPE_CHECKING:
    from slotwise.contrib.mysql.dialect import MySQL

#: A part of a statement, a column, and a SELECT.
Expression: TypeAlias = "sa.ColumnElement[Any]"
Column: TypeAlias = "sa.Column[Any]"
Found: TypeAlias = "sa.Select[Any]"
#: Priority orders the oldest due slots only: so many of them.
WINDOW = 1000
#: Other claims may be taking rows: so many more keys are read than rows are wanted.
MORE = 50
#: Ranks are priorities, negated, of a smallint.
MOST_RANK = 2**15
#: Looks for heads that are sent as one statement.
UNITED = 20


class Look(NamedTuple):
    """Keys of due rows, in the order of a claim, of which it takes ``most``; looks of one
    ``group`` together.
    """

    group: str
    keys: Sequence[Key]
    most: int


class Head(NamedTuple):
    """One priority of a task, with its earliest due time."""

    rank: int
    name: str
    due: datetime


class DueKeys:
    """The looks of a dialect."""

    def __init__(self, dialect: MySQL) -> None:
        self._dialect = dialect
        self._conditions = dialect.conditions
        self._tasks = dialect.tables.tasks
        self._prefix = dialect.tables.prefix
        tasks = self._tasks.c
        self._name, self._instance = tasks.task_name, tasks.task_instance
        kind = tasks.execution_time.type
        self._slot = sa.literal_column("due_slot", kind)
        self._task = sa.literal_column("due_task", kind)
        self._lost = sa.literal_column("due_lost", kind)
        self._rank = sa.literal_column("priority_rank", sa.Integer)

    def asked(
        self,
        connection: Joinable,
        request: ClaimRequest,
        now: datetime,
        is_task: bool,
    ) -> Iterator[Look]:
        """Yield what a claim asks for: rows of dead holders, and others."""
        if request.instance is not None:
            keys = [Key(name, request.instance) for name in request.names]
            yield Look("", keys, request.limit)
            return
        if request.lost > 0:
            yield self._of_dead_holders(connection, request, now)
        if is_task:
            yield from self._of_tasks(connection, request, now)
        else:
            yield from self._of_slots(connection, request, now)

    def _of_dead_holders(
        self, connection: Joinable, request: ClaimRequest, now: datetime
    ) -> Look:
        query = self._look("lost", self._name, self._instance)
        query = query.where(self._lost <= now, *self._claimable(request.names, now))
        query = query.order_by(self._lost).limit(request.lost + MORE)
        keys = [Key(*row) for row in connection.execute(query).fetchall()]
        return Look("lost", keys, request.lost)

    def _of_slots(
        self, connection: Joinable, request: ClaimRequest, now: datetime
    ) -> Iterator[Look]:
        size = request.limit + MORE
        query = self._look("due", self._name, self._instance, self._rank)
        query = query.where(self._slot <= now, *self._claimable(request.names, now))
        if request.since is not None:
            query = query.where(self._slot >= request.since)
        most = size if request.is_level else max(size, WINDOW)
        query = query.order_by(self._slot).limit(most)
        found = connection.execute(query).fetchall()
        if not request.is_level:
            found = sorted(found, key=lambda row: int(row[2]))
        keys = [Key(name, instance) for name, instance, _ in found]
        for at in range(0, len(keys), size):
            yield Look("", keys[at : at + size], request.limit)

    def _of_tasks(
        self, connection: Joinable, request: ClaimRequest, now: datetime
    ) -> Iterator[Look]:
        """By priority, then by name as given, then by age."""
        places = {name: place for place, name in enumerate(request.names)}
        found = self._heads(connection, request.names)
        heads = self._awake(connection, [one for one in found if one.due <= now], now)
        heads.sort(key=lambda head: (head.rank, places[head.name]))
        for head in heads:
            query = self._look("queue", self._instance)
            query = query.where(
                self._name == head.name,
                self._rank == head.rank,
                self._task <= now,
                self._conditions.not_all_paused(),
            )
            for one in request.ranges or ():
                is_of_it = one.task_name == head.name and (
                    one.first <= head.rank <= one.last
                )
                if is_of_it and one.since is not None:
                    query = query.where(self._task >= one.since)
            query = query.order_by(self._task, self._instance)
            rows = connection.execute(query.limit(request.limit + MORE)).fetchall()
            keys = [Key(head.name, instance) for (instance,) in rows]
            most = request.most.get(head.name, request.limit)
            yield Look(head.name, keys, most)

    def _heads(self, connection: Joinable, names: Collection[str]) -> list[Head]:
        """Read the priorities of these tasks with their earliest due times: the first priority of
        each, then the next ones. One key is read of each; no statement could skip the others by
        itself.
        """
        found: list[Head] = []
        asked = dict.fromkeys(names, -MOST_RANK)
        while asked:
            begun = list(asked.items())[:UNITED]
            queries = [self._next_head(name, rank) for name, rank in begun]
            query = queries[0] if len(queries) == 1 else sa.union_all(*queries)
            heads = [Head(*row) for row in connection.execute(query).fetchall()]
            found += heads
            for name, _ in begun:
                del asked[name]
            asked |= {head.name: head.rank for head in heads}
        return found

    def _next_head(self, name: str, rank: int) -> Found:
        query = self._look("queue", self._rank, self._name, self._task)
        query = query.where(self._name == name, self._rank > rank)
        query = query.where(self._task.is_not(None))
        return query.order_by(self._name, self._rank, self._task).limit(1)

    def _awake(
        self, connection: Joinable, heads: list[Head], now: datetime
    ) -> list[Head]:
        """Return the heads of tasks that are not paused now."""
        if not heads:
            return heads
        query = self._conditions.paused_tasks(now)
        paused = {name for (name,) in connection.execute(query).fetchall()}
        return [head for head in heads if head.name not in paused]

    def names(
        self, connection: Joinable, now: datetime, limit: int
    ) -> Sequence[Sequence[object]]:
        """As ``Dialect.due_names``."""
        found: list[Sequence[object]] = []
        for index, due in (("due", self._slot), ("lost", self._lost)):
            rank = sa.func.coalesce(self._tasks.c.priority, 50)
            query = self._look(index, self._name, rank, due).where(due <= now)
            found += connection.execute(query.order_by(due).limit(limit)).fetchall()
        return found

    def first(
        self,
        connection: Joinable,
        slots: Collection[str],
        tasks: Collection[str],
        now: datetime,
    ) -> list[datetime]:
        """Return the earliest due times of slots, and of tasks."""
        found = self._earliest(connection, "due", self._slot, slots, now)
        heads = self._awake(connection, self._heads(connection, tasks), now)
        return found + [head.due for head in heads]

    def first_lost(
        self, connection: Joinable, names: Collection[str], now: datetime
    ) -> list[datetime]:
        """Return the earliest due time of rows of dead holders."""
        return self._earliest(connection, "lost", self._lost, names, now)

    def _earliest(
        self,
        connection: Joinable,
        index: str,
        due: sa.ColumnElement[datetime],
        names: Collection[str],
        now: datetime,
    ) -> list[datetime]:
        if not names:
            return []
        query = self._look(index, due)
        query = query.where(due.is_not(None), *self._claimable(names, now))
        row = connection.execute(query.order_by(due).limit(1)).fetchone()
        return [] if row is None else [row[0]]

    def _look(self, index: str, *columns: Expression) -> Found:
        hint = f"FORCE INDEX ({self._prefix}tasks_{index})"
        query = sa.select(*columns).select_from(self._tasks)
        return query.with_hint(self._tasks, hint)

    def _claimable(
        self, names: Collection[str], now: datetime
    ) -> list[sa.ColumnElement[bool]]:
        conditions = self._conditions
        is_awake = conditions.not_all_paused(), conditions.of_no_paused_tasks(now)
        return [self._dialect.among(self._name, names), *is_awake]
