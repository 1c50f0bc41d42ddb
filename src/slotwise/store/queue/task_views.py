"""One-time tasks as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from slotwise.model.vocabulary import State
from slotwise.payload.payload import plain
from slotwise.store.queue.queue import END_COLUMNS, TASK_COLUMNS
from slotwise.store.schema.column_types import from_micros
from slotwise.store.schema.rows import utc


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """A one-time task that has not succeeded. ``state``: waiting, running, paused, blocked or dead."""

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

    @property
    def data(self) -> Any:
        """The payload as plain values, of the version in which it was stored. Raises InvalidPayload."""
        return plain(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """How a one-time task ended, if its ``history`` or ``result_retention`` records it."""

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
        return plain(self.stored)


def task_result(values: Sequence[Any]) -> TaskResult:
    """An end of the columns that the queue reads."""
    row = dict(zip(END_COLUMNS, map(utc, values), strict=True))
    stored = row.pop("result")
    return TaskResult(
        task=row.pop("task_name"), id=row.pop("task_instance"), stored=None if stored is None else bytes(stored), **row
    )


def task_info(values: Sequence[Any]) -> TaskInfo:
    """A line of the columns that the queue reads; the payload may follow them."""
    row = dict(zip(TASK_COLUMNS, map(utc, values), strict=False))
    payload = values[len(TASK_COLUMNS)] if len(values) > len(TASK_COLUMNS) else None
    state = State.RUNNING if row["picked"] else row["state"] or State.WAITING
    due = row["parked_due"] if state in (State.PAUSED, State.BLOCKED) else row["execution_time"]
    born = row["created_version"]
    return TaskInfo(
        task=row["task_name"], id=row["task_instance"], state=state, due=None if state == State.DEAD else due,
        priority=50 if row["priority"] is None else row["priority"], attempt=row["attempt"], worker=row["picked_by"],
        scheduled=from_micros(born) if born is not None and born > 1_000_000_000_000_000 else None,
        last_failure=row["last_failure"], last_error=row["last_error"], cancel_requested=row["cancel_requested"],
        payload=None if payload is None else bytes(payload),
    )  # fmt: skip
