"""Tell whether a table is db-scheduler's, and whether both can share it."""

from __future__ import annotations

from typing import Protocol

import sqlalchemy as sa

from slotwise import SchemaMismatch
from slotwise.spi import Tables

#: The columns of db-scheduler's table, in its order.
COLUMNS = (
    "task_name",
    "task_instance",
    "task_data",
    "execution_time",
    "picked",
    "picked_by",
    "last_success",
    "last_failure",
    "consecutive_failures",
    "last_heartbeat",
    "version",
    "priority",
)


class Target(Protocol):
    """Which table is in the place of the queue, as the core says it."""

    @property
    def tables(self) -> Tables: ...
    @property
    def schema(self) -> str | None: ...
    @property
    def adopt(self) -> bool: ...
    def full(self, name: str) -> str: ...


def is_theirs(connection: sa.Connection, target: Target, there: set[str]) -> bool:
    """Whether the table in the place of the queue, with the columns ``there``, is db-scheduler's
    and is to be adopted. Raises SchemaMismatch for one of db-scheduler's that is not.

    db-scheduler itself needs no ``priority``, and writes beside columns of the team's own.
    """
    missing = set(COLUMNS) - there
    if missing - {"priority"}:
        return False
    name = target.tables.tasks.name
    if connection.dialect.name in ("mysql", "mariadb"):
        raise SchemaMismatch(
            f"table {name} exists and is db-scheduler's (its columns match), and only on "
            "PostgreSQL can both share a table; choose another name with --table-prefix, and "
            "copy its rows, as the page on migrating says"
        )
    if missing:
        raise SchemaMismatch(
            f"table {name} is db-scheduler's and has no column priority, which slotwise "
            f"needs; run: ALTER TABLE {target.full(name)} ADD COLUMN priority smallint"
        )
    _refuse_needed_columns(connection, target)
    if not target.adopt:
        raise SchemaMismatch(
            f"table {name} exists and is db-scheduler's (its columns match): "
            "adopt it with `slotwise db upgrade "
            "--adopt`, or choose another name with --table-prefix"
        )
    return True


def _refuse_needed_columns(connection: sa.Connection, target: Target) -> None:
    """Raise SchemaMismatch for a column that rows of slotwise's would have no value for."""
    tasks = target.tables.tasks
    ours = set(tasks.c.keys())
    found = sa.inspect(connection).get_columns(tasks.name, schema=target.schema)
    for column in found:
        is_needed = not column["nullable"] and column["default"] is None
        if column["name"] not in ours and is_needed:
            raise SchemaMismatch(
                f"table {tasks.name} is db-scheduler's, and no row of slotwise's would have a "
                f"value in its column {column['name']}, which is NOT NULL; run: ALTER TABLE "
                f"{target.full(tasks.name)} ALTER COLUMN {column['name']} DROP NOT NULL"
            )
