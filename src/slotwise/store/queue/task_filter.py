"""Which one-time tasks of a name a listing or an operation is about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from slotwise.model.values import Value
from slotwise.store.schema.tables import Columns, Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter(Value):
    """Properties of one-time tasks; one that is None excludes no task.

    ``id`` is the whole id, ``begins`` its beginning. ``error`` is a part of the last error, in
    upper or lower case. ``since`` is the earliest due time, and tasks are due before ``until``.
    ``order_key``: of handlers of events, the key of the event.
    """

    id: str | None = None
    begins: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    order_key: str | None = None


def matching(tasks: Columns, where: TaskFilter) -> list[Condition]:
    """Return the conditions of a filter."""
    id = tasks.task_instance
    same = {id: where.id, tasks.order_key: where.order_key}
    found = [one == value for one, value in same.items() if value is not None]
    if where.begins:  # the range lets an index be searched
        found += [id >= where.begins, _begins_with(id, where.begins)]
    if where.error:
        found.append(tasks.last_error.icontains(where.error, autoescape=True))
    due = sa.func.coalesce(tasks.parked_due, tasks.execution_time)
    if where.since:
        found.append(due >= where.since)
    if where.until:
        found.append(due < where.until)
    return found


def _begins_with(column: sa.ColumnElement[str], text: str) -> Condition:
    return sa.func.substr(column, 1, len(text)) == text
