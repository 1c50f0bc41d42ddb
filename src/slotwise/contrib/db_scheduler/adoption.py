"""Adopt a table of db-scheduler, while its own programs and others go on to use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise import SchemaMismatch
from slotwise.spi import is_locked

#: So long others may wait behind a step that waits, in seconds; and so often a step is tried, with
#: a pause between.
LOCK_TIMEOUT = 2.0
TRIES = 60
PAUSE = 1.0


class Target(Protocol):
    """Which table is adopted, as the core says it."""

    @property
    def prefix(self) -> str: ...
    @property
    def schema(self) -> str | None: ...
    @property
    def lock_name(self) -> str: ...
    def is_foreign(self, connection: sa.Connection) -> bool: ...
    def options(self) -> dict[str, object]: ...
    def wait_for(self, is_locked: Callable[[], bool | None]) -> None: ...


_IS_VALID = sa.text(
    "SELECT i.indisvalid FROM pg_catalog.pg_index AS i "
    "JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid WHERE c.relname = :index "
    "AND c.relnamespace = coalesce(:schema, pg_catalog.current_schema())::regnamespace"
)


def adopt_table(own: sa.Connection, target: Target, revision: Any) -> bool:
    """Take all steps that ``revision`` lists, on a connection in autocommit; return whether there
    was a table to adopt.

    Each step is a transaction that can be repeated. A step that blocks others waits for its lock
    for ``LOCK_TIMEOUT``, lets the others pass, and tries again. Raises SchemaMismatch.
    """
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    with _alone(own, target):
        if not target.is_foreign(own):
            return False
        context = MigrationContext.configure(own, opts=target.options())
        with Operations.context(context):
            steps = list(
                revision.module.adoption(target.prefix, target.schema, own.dialect)
            )
        for index, statement in steps:
            is_valid = _is_valid(own, target, index) if index else None
            if is_valid:
                continue
            if is_valid is False:  # interrupted while it was built
                schema = f'"{target.schema}".' if target.schema else ""
                _take(own, f'DROP INDEX CONCURRENTLY {schema}"{index}"', 0)
            # These wait for others, and nobody who reads or writes waits for them.
            waits = bool(index) or " VALIDATE " in statement
            _take(own, statement, 0 if waits else LOCK_TIMEOUT)
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
                    f"another transaction keeps the table locked: {statement:.60} "
                    f"found no gap in {TRIES} tries; end "
                    "that transaction (see pg_stat_activity) and run it again: it goes on from here"
                ) from error
        time.sleep(PAUSE)


def _is_valid(own: sa.Connection, target: Target, index: str) -> bool | None:
    """Whether an index was built to its end; None: there is none of this name."""
    found: bool | None = own.scalar(
        _IS_VALID, {"index": index, "schema": target.schema}
    )
    return found


@contextmanager
def _alone(own: sa.Connection, target: Target) -> Iterator[None]:
    """One upgrade at a time. The lock is the session's: an index that is built concurrently ends
    the transaction.
    """
    key = {"name": target.lock_name}
    lock = sa.text(
        "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtext(:name))"
    )
    unlock = sa.text(
        "SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtext(:name))"
    )
    target.wait_for(lambda: own.scalar(lock, key))
    try:
        yield
    finally:
        if not own.invalidated:
            own.execute(unlock, key)
