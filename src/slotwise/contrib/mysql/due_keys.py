"""Looks for due rows, without a lock: each reads the keys from one index, in its order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from slotwise.spi import ClaimRequest, Joinable, Key

if TYPE_CHECKING:
    from slotwise.contrib.mysql.dialect import MySQL

#: A part of a statement, a column, and a SELECT.
Expression: TypeAlias = "sa.ColumnElement[Any]"
Column: TypeAlias = "sa.Column[Any]"
Found: TypeAlias = "sa.Select[Any]"
Parameters: TypeAlias = dict[str, object]
#: Before and after all due times.
EVER, NEVER = datetime(1900, 1, 1, tzinfo=UTC), datetime(9001, 12, 31, tzinfo=UTC)
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
    """The looks of a dialect. Each is built once: that takes longer than to run it."""

    def __init__(self, dialect: MySQL) -> None:
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
        self._now = sa.bindparam("now", type_=kind)
        self._since = sa.bindparam("since", type_=kind)
        self._until = sa.bindparam("until", type_=kind)
        self._most = sa.bindparam("most", type_=sa.Integer)
        self._of_dead = self._due("lost", self._lost)
        self._of_slots = self._due("due", self._slot)
        self._of_queue = self._due_tasks()
        self._heads_of = lru_cache(maxsize=UNITED)(self._unite_heads)
        self._paused = self._conditions.paused_tasks(self._now)

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
            given: Parameters = {"names": [*request.names], "since": EVER}
            given |= {"now": now, "until": now, "most": request.lost + MORE}
            found = connection.execute(self._of_dead, given).fetchall()
            yield Look("lost", [Key(*row[:2]) for row in found], request.lost)
        if is_task:
            yield from self._due_of_tasks(connection, request, now)
        else:
            yield from self._due_of_slots(connection, request, now)

    def _due_of_slots(
        self, connection: Joinable, request: ClaimRequest, now: datetime
    ) -> Iterator[Look]:
        size = request.limit + MORE
        most = size if request.is_level else max(size, WINDOW)
        given: Parameters = {"names": [*request.names], "now": now, "until": now}
        given |= {"since": request.since or EVER, "most": most}
        found = connection.execute(self._of_slots, given).fetchall()
        if not request.is_level:
            found = sorted(found, key=lambda row: int(row[2]))
        keys = [Key(*row[:2]) for row in found]
        for at in range(0, len(keys), size):
            yield Look("", keys[at : at + size], request.limit)

    def _due_of_tasks(
        self, connection: Joinable, request: ClaimRequest, now: datetime
    ) -> Iterator[Look]:
        """By priority, then by name as given, then by age."""
        places = {name: place for place, name in enumerate(request.names)}
        found = self._heads(connection, request.names)
        heads = self._awake(connection, [one for one in found if one.due <= now], now)
        heads.sort(key=lambda head: (head.rank, places[head.name]))
        for head in heads:
            since = [
                one.since
                for one in request.ranges or ()
                if one.task_name == head.name and one.first <= head.rank <= one.last
            ]
            given: Parameters = {"name": head.name, "rank": head.rank, "until": now}
            given["since"] = max((one for one in since if one), default=EVER)
            given["most"] = request.limit + MORE
            rows = connection.execute(self._of_queue, given).fetchall()
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
            given: Parameters = {}
            for place, (name, rank) in enumerate(begun):
                given |= {f"name_{place}": name, f"rank_{place}": rank}
                del asked[name]
            rows = connection.execute(self._heads_of(len(begun)), given).fetchall()
            heads = [Head(*row) for row in rows]
            found += heads
            asked |= {head.name: head.rank for head in heads}
        return found

    def _unite_heads(self, count: int) -> sa.Executable:
        """Find the next priority of so many tasks, each after one, with its first due time."""
        queries: list[Found] = []
        for place in range(count):
            query = self._look("queue", self._rank, self._name, self._task).where(
                self._name == sa.bindparam(f"name_{place}", type_=sa.Text),
                self._rank > sa.bindparam(f"rank_{place}", type_=sa.Integer),
                self._task.is_not(None),
                self._conditions.not_all_paused(),
            )
            queries.append(query.order_by(self._name, self._rank, self._task).limit(1))
        return queries[0] if count == 1 else sa.union_all(*queries)

    def _awake(
        self, connection: Joinable, heads: list[Head], now: datetime
    ) -> list[Head]:
        """Return the heads of tasks that are not paused now."""
        if not heads:
            return heads
        found = connection.execute(self._paused, {"now": now}).fetchall()
        paused = {name for (name,) in found}
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
        found = self._earliest(connection, self._of_slots, slots, now)
        heads = self._awake(connection, self._heads(connection, tasks), now)
        return found + [head.due for head in heads]

    def first_lost(
        self, connection: Joinable, names: Collection[str], now: datetime
    ) -> list[datetime]:
        """Return the earliest due time of rows of dead holders."""
        return self._earliest(connection, self._of_dead, names, now)

    def _earliest(
        self,
        connection: Joinable,
        look: Found,
        names: Collection[str],
        now: datetime,
    ) -> list[datetime]:
        """Return the first due time, if any, that a look finds at any time."""
        if not names:
            return []
        given: Parameters = {"names": [*names], "now": now}
        given |= {"since": EVER, "until": NEVER}
        row = connection.execute(look, {**given, "most": 1}).fetchone()
        return [] if row is None else [row[3]]

    def _due(self, index: str, due: sa.ColumnElement[datetime]) -> Found:
        """Find rows of these names that are due between two times, the oldest first."""
        query = self._look(index, self._name, self._instance, self._rank, due).where(
            due >= self._since,
            due <= self._until,
            self._name.in_(sa.bindparam("names", expanding=True)),
            self._conditions.not_all_paused(),
            self._conditions.of_no_paused_tasks(self._now),
        )
        return query.order_by(due).limit(self._most)

    def _due_tasks(self) -> Found:
        """Find the ids of due rows of a task with this priority, the oldest first."""
        query = self._look("queue", self._instance).where(
            self._name == sa.bindparam("name", type_=sa.Text),
            self._rank == sa.bindparam("rank", type_=sa.Integer),
            self._task >= self._since,
            self._task <= self._until,
            self._conditions.not_all_paused(),
        )
        return query.order_by(self._task, self._instance).limit(self._most)

    def _look(self, index: str, *columns: Expression) -> Found:
        hint = f"FORCE INDEX ({self._prefix}tasks_{index})"
        query = sa.select(*columns).select_from(self._tasks)
        return query.with_hint(self._tasks, hint)
