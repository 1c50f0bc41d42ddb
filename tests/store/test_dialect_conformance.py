"""The conformance suite for authors of a dialect, on ours; and with each verb that is easily
forgotten replaced by its body for one writer.
"""

from __future__ import annotations

import inspect

import pytest
import sqlalchemy as sa

from slotwise.spi import Database, DatabaseClock, OneWriter, Tables
from slotwise.store.dialects.locking_postgresql import LockingPostgreSQL
from slotwise.store.dialects.postgresql.dialect import PostgreSQL
from slotwise.testing.dialects import DialectConformance

CHECKS = [
    name
    for name, check in inspect.getmembers(DialectConformance, inspect.isfunction)
    if name.startswith("test_")
]
FORGOTTEN = ("hold", "lock", "entries", "alone", "latch", "transaction_id")


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
def test_a_verb_for_one_writer_dies(
    kind: type[PostgreSQL | LockingPostgreSQL], verb: str, engine: sa.Engine
) -> None:
    """A dialect that inherits this verb from OneWriter would lose races in silence."""
    mutant = type("Mutant", (kind,), {verb: getattr(OneWriter, verb)})
    found = conformance(mutant, engine)
    killers = [check for check in CHECKS if not passes(found, check)]
    assert killers


def passes(conformance: DialectConformance, check: str) -> bool:
    try:
        getattr(conformance, check)()
    except AssertionError:
        return False
    return True
