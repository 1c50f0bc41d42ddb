"""The conformance suite for authors of a dialect, on ours; and with each verb that is easily
forgotten replaced by one that locks nothing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.ports import LockingPostgreSQL, PostgreSQL

from slotwise.spi import Database, DatabaseClock, OneWriter, Tables
from slotwise.testing.dialects import DialectConformance

CHECKS = [
    name
    for name, check in inspect.getmembers(DialectConformance, inspect.isfunction)
    if name.startswith("test_")
]
LOCK = re.compile(
    r"(\bFOR (NO KEY )?(UPDATE|SHARE)|\bLOCK IN SHARE MODE)( SKIP LOCKED)?"
)


def without_locks(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb, whose statements lock nothing."""

    def unlocked(
        self: Any, connection: sa.Connection, *args: Any, **kwargs: Any
    ) -> Any:
        def strip(
            _connection: Any, _cursor: Any, text: str, values: Any, *_: Any
        ) -> Any:
            return LOCK.sub("", text), values

        sa.event.listen(connection, "before_cursor_execute", strip, retval=True)
        try:
            return verb(self, connection, *args, **kwargs)
        finally:
            sa.event.remove(connection, "before_cursor_execute", strip)

    return unlocked


#: Verbs that are easily forgotten, each with what is made of it.
FORGOTTEN: dict[str, Callable[[Any], Any]] = {
    "hold": without_locks,
    "lock": without_locks,
    "entries": without_locks,
    "alone": without_locks,
    "latch": without_locks,
    "transaction_id": lambda _: OneWriter.transaction_id,
}


@pytest.fixture
def engine(pg_database: Database) -> sa.Engine:
    return pg_database.main


def conformance(
    kind: type[PostgreSQL | LockingPostgreSQL], engine: sa.Engine
) -> DialectConformance:
    found = DialectConformance()
    found.engine = engine
    found.dialect = kind(Tables(), DatabaseClock())
    return found


@pytest.mark.parametrize("kind", [PostgreSQL, LockingPostgreSQL])
@pytest.mark.parametrize("check", CHECKS)
def test_our_dialects_conform(
    kind: type[PostgreSQL | LockingPostgreSQL], check: str, engine: sa.Engine
) -> None:
    """Each by itself, as an author runs them."""
    getattr(conformance(kind, engine), check)()


@pytest.mark.parametrize("kind", [PostgreSQL, LockingPostgreSQL])
@pytest.mark.parametrize("verb", FORGOTTEN)
def test_a_verb_that_locks_nothing_dies(
    kind: type[PostgreSQL | LockingPostgreSQL], verb: str, engine: sa.Engine
) -> None:
    """A dialect whose verb is right with one writer only would lose races in silence."""
    mutant = type("Mutant", (kind,), {verb: FORGOTTEN[verb](getattr(kind, verb))})
    found = conformance(mutant, engine)
    killers = [check for check in CHECKS if not passes(found, check)]
    assert killers


def passes(conformance: DialectConformance, check: str) -> bool:
    try:
        getattr(conformance, check)()
    except AssertionError:
        return False
    return True
