"""What all commands on one-time tasks have in common: whose rows, by which clock, and what a row becomes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeAlias

import sqlalchemy as sa

from slotwise.model.clock import Clock
from slotwise.model.records import Key, When
from slotwise.model.vocabulary import State
from slotwise.store.schema.column_types import Instant, to_micros
from slotwise.store.schema.tables import Tables, is_task

Status: TypeAlias = Literal["scheduled", "exists", "running", "cancelled", "gone"]


class QueueDialect(Protocol):
    """What the statements of the queue need of a dialect."""

    tables: Tables
    clock: Clock

    @property
    def insert(self) -> Any:
        """SQLAlchemy's insert that knows ON CONFLICT."""

    def now(self, connection: sa.Connection) -> datetime:
        """Return the database's time, or the test's."""

    def locked(self, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """Return whether a row is among those that ``found`` finds and locks."""


class QueueRows:
    """With ``wake`` each command says, at its commit, whose rows are due within that time."""

    def __init__(self, dialect: QueueDialect, wake: timedelta | None = None) -> None:
        self._dialect = dialect
        self._wake = wake
        self._tasks = dialect.tables.tasks
        self._statements: dict[tuple[Any, ...], Any] = {}

    def _answer(self, connection: Any, statement: Any, key: Key, *, absent: Status, **parameters: Any) -> Status:
        """Run a statement that returns whether the row it wrote is held; if it wrote none, look why.

        Only a statement of its own sees what somebody committed while the first one waited.
        """
        written = connection.execute(statement, parameters).fetchone()
        if written is not None:
            return "running" if written[0] else "scheduled"
        look = self._kept(("look",), lambda: sa.select(self._tasks.c.picked).where(*self._asked_key()))
        found = connection.execute(look, named(key)).fetchone()
        return absent if found is None else "running" if found[0] else "exists"

    def _moved(self, due: Any) -> dict[str, Any]:
        tasks = self._tasks
        waits, begun = ~tasks.c.picked & tasks.c.state.is_(None), tasks.c.picked | (tasks.c.attempt > 0)
        return {
            "wanted_due": sa.case((tasks.c.picked, due), else_=None),
            "execution_time": sa.case((waits, due), else_=tasks.c.execution_time),
            "parked_due": sa.case((waits | tasks.c.picked, tasks.c.parked_due), else_=due),
            "slot": sa.case((begun, tasks.c.slot), else_=due),
        }

    def _word(self) -> list[sa.ColumnElement[Any]]:
        """What a statement returns besides: a wake-up, where somebody could hear it."""
        return []

    def _at(self, key: Key) -> list[sa.ColumnElement[bool]]:
        return [self._tasks.c.task_name == key.task_name, self._tasks.c.task_instance == key.task_instance]

    def _plain(self) -> list[sa.ColumnElement[bool]]:
        """One-time tasks only."""
        return [is_task(self._tasks)]

    def _alive(self) -> list[sa.ColumnElement[bool]]:
        return [*self._plain(), self._tasks.c.state.is_distinct_from(State.DEAD)]

    def _may_delete(self) -> Any:
        return sa.true()

    def _now(self, connection: Any) -> Any:
        return sa.literal(self._dialect.now(connection), Instant)

    def _due(self, now: Any, when: When) -> Any:
        return sa.literal(when.at if when.at is not None else now.value + when.delay, Instant)

    def _born(self, now: Any) -> Any:
        return sa.literal(to_micros(now.value), sa.BigInteger)

    def _kept(self, shape: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The statement of this shape, made when it is first asked for: that takes longer than to run it."""
        if (found := self._statements.get(shape)) is None:
            found = self._statements[shape] = make()
        return found

    def _asked_key(self) -> list[sa.ColumnElement[bool]]:
        """As ``_at``, in a statement that is kept; ``named`` are its parameters."""
        tasks = self._tasks.c
        return [tasks.task_name == sa.bindparam("name"), tasks.task_instance == sa.bindparam("instance")]

    def _asked_due(self, is_at: bool) -> Any:
        """As ``_due``; ``_told_due`` are its parameters."""
        return sa.bindparam("due", type_=Instant)

    def _told_due(self, connection: Any, when: When) -> dict[str, Any]:
        return {"due": when.at or self._dialect.now(connection) + when.delay}

    def _key_columns(self) -> list[Any]:
        return [self._tasks.c.task_name, self._tasks.c.task_instance]


def named(key: Key) -> dict[str, Any]:
    return {"name": key.task_name, "instance": key.task_instance}
