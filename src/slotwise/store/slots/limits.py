"""How many more of a task may start now: ``concurrency`` by live claims, ``rate_limit`` by the last starts.

A claim writes how many it has started in its own transaction: both stand, or neither. Nothing is counted down: a start
counts until its window has passed, by the database's time, whatever becomes of it and of whoever made it.

Race: two claims that count at once would both find the last place. Only who gets the lock of the task's name may count,
until its transaction has ended; the other does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import Rate
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.column_types import from_micros, to_micros

_MICROSECOND = timedelta(microseconds=1)


class Limits:
    """Of the tasks that this process knows. Such a task is claimed by itself; of others nothing is asked."""

    def __init__(self, dialect: Dialect, definitions: Mapping[str, Definition]) -> None:
        self._dialect = dialect
        self._limited = {name: found for name, found in definitions.items() if found.is_limited}

    def are_on(self, names: Sequence[str]) -> bool:
        """Whether these are counted: a lock, a look, and a note of what was claimed, in one transaction."""
        return self._task(names) is not None

    def room(self, connection: sa.Connection, names: Sequence[str], limit: int) -> int:
        """How many may be claimed, at most ``limit``; zero: ask later."""
        task = self._task(names)
        if task is None:
            return limit
        if not self._dialect.alone(connection, task.name):
            return 0
        if task.concurrency is not None:
            limit = min(limit, task.concurrency - self._running(connection, task.name))
        if task.rate_limit is not None and limit > 0:
            limit = min(limit, task.rate_limit.count - self._started(connection, task.name, task.rate_limit))
        return max(limit, 0)

    def note(self, connection: sa.Connection, names: Sequence[str], count: int, now: datetime | None) -> None:
        """So many have been claimed at ``now``."""
        task = self._task(names)
        if task is None or task.rate_limit is None or now is None or not count:
            return
        starts, rate = self._dialect.tables.starts, task.rate_limit
        mine = starts.c.task_name == task.name
        connection.execute(starts.delete().where(mine, ~self._counts(rate, now)))
        row = {"task_name": task.name, "at": _later(now, rate.grain), "count": count}
        self._dialect.by_row.upsert(connection, starts, row, lambda new: {"count": starts.c.count + new["count"]})

    def _task(self, names: Sequence[str]) -> Definition | None:
        return self._limited.get(names[0]) if self._limited and len(names) == 1 else None

    def _running(self, connection: sa.Connection, name: str) -> int:
        tasks = self._dialect.tables.tasks
        held = sa.select(sa.func.count()).where(tasks.c.picked, tasks.c.task_name == name)
        return int(connection.scalar(held) or 0)

    def _started(self, connection: sa.Connection, name: str, rate: Rate) -> int:
        starts = self._dialect.tables.starts
        within = [starts.c.task_name == name, self._counts(rate, self._dialect.now(connection))]
        return int(connection.scalar(sa.select(sa.func.sum(starts.c.count)).where(*within)) or 0)

    def _counts(self, rate: Rate, now: datetime) -> sa.ColumnElement[bool]:
        """Within the window; not either, if the database's clock was put back by more than that."""
        at = self._dialect.tables.starts.c.at
        return (at > now - rate.window) & (at < now + rate.window)


def _later(instant: datetime, grain: timedelta) -> datetime:
    """Rounded up, so that no start ever counts for too short a time."""
    width = grain // _MICROSECOND
    return from_micros(-(-to_micros(instant) // width) * width)
