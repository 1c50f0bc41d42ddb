"""The adoption of a table of db-scheduler's, in steps that hold up nobody who works with it.

Each step is a transaction of its own and can be repeated, so an adoption that was interrupted goes on where it stopped.
A step that blocks others waits for its lock for ``LOCK_TIMEOUT`` only, lets the others pass, and tries again. Indexes
are built concurrently.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.errors import SchemaMismatch
from slotwise.migrate.target import Target
from slotwise.store.connect.database_errors import is_locked

#: So long others may wait behind a step that waits, in seconds; and so often a step is tried, with a pause between.
LOCK_TIMEOUT, TRIES, PAUSE = 2.0, 60, 1.0


def adopt(connection: sa.Connection, target: Target, revision: Any, *, lock_timeout: float = LOCK_TIMEOUT) -> bool:
    """Take all steps that ``revision`` lists, over a connection of its own; return whether there was a table to adopt.

    Raises SchemaMismatch for a table that is not db-scheduler's, and if a step never gets its lock.
    """
    from alembic.operations import Operations  # late: every worker imports this package, few of them migrate
    from alembic.runtime.migration import MigrationContext

    with connection.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own, _alone(own, target):
        if not target.is_foreign(own):
            return False
        with Operations.context(MigrationContext.configure(own, opts=target.options())):
            steps = list(revision.module.adoption(target.prefix, target.schema, own.dialect))
        for index, statement in steps:
            if index and (is_valid := _is_valid(own, target, index)) is not None:
                if is_valid:
                    continue
                schema = f'"{target.schema}".' if target.schema else ""
                _take(own, f'DROP INDEX CONCURRENTLY {schema}"{index}"', 0)  # interrupted while it was built
            # These wait for others, and nobody who reads or writes waits for them.
            waits = bool(index) or " VALIDATE " in statement
            _take(own, statement, 0 if waits else lock_timeout)
    return True


def _take(own: sa.Connection, statement: str, lock_timeout: float) -> None:
    own.exec_driver_sql(f"SET lock_timeout = {int(lock_timeout * 1000)}")
    own.exec_driver_sql("SET statement_timeout = 0")
    for rest in reversed(range(TRIES)):
        try:
            own.exec_driver_sql(statement)
            return
        except DBAPIError as error:
            if not is_locked(error):
                raise
            if not rest:
                raise SchemaMismatch(
                    f"another transaction keeps the table locked: {statement:.60} found no gap in {TRIES} tries; end "
                    "that transaction (see pg_stat_activity) and run it again: it goes on from here"
                ) from error
        time.sleep(PAUSE)


def _is_valid(own: sa.Connection, target: Target, index: str) -> bool | None:
    """Whether an index was built to its end; None: there is none of this name."""
    found: bool | None = own.scalar(
        sa.text(
            "SELECT i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid "
            "WHERE c.relname = :index AND c.relnamespace = coalesce(:schema, current_schema())::regnamespace"
        ),
        {"index": index, "schema": target.schema},
    )
    return found


@contextmanager
def _alone(own: sa.Connection, target: Target) -> Iterator[None]:
    """One upgrade at a time. The lock is the session's: an index that is built concurrently ends the transaction."""
    key = {"name": target.lock_name}
    target.wait_for(lambda: own.scalar(sa.text("SELECT pg_try_advisory_lock(hashtext(:name))"), key))
    try:
        yield
    finally:
        if not own.invalidated:
            own.execute(sa.text("SELECT pg_advisory_unlock(hashtext(:name))"), key)
