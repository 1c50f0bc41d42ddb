"""Rows that another program, such as Java's db-scheduler, wrote for itself."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from slotwise.model.vocabulary import RowState
from slotwise.store.schema.tables import Tables


def foreign_rows(
    connection: sa.Connection, tables: Tables, names: Collection[str]
) -> dict[str, int]:
    """Return which of these names such rows have, and how many."""
    tasks = tables.tasks.c
    counted = sa.select(tasks.task_name, sa.func.count().label("rows"))
    found = counted.where(tasks.state == RowState.FOREIGN).group_by(tasks.task_name)
    rows = connection.execute(found.order_by(tasks.task_name))
    return {row.task_name: row.rows for row in rows if row.task_name in names}


def told_foreign(name: str, count: int) -> str:
    """Say what becomes of such rows, and what to do about a task that has their name."""
    rows = "a row" if count == 1 else f"{count:,} rows"
    return (
        f"task {name!r} has {rows} of another program, such as Java's db-scheduler: slotwise "
        "leaves them alone; give the Python task another name, since rows without data, or with "
        "JSON, cannot be told apart"
    )
