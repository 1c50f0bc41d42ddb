"""Inserts of the base ``Locking``: what fails, and what they need."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from tests.kit.connections import sqlstate
from tests.kit.ports import LockingPostgreSQL
from tests.kit.records import Wanted, When

from slotwise.migrate.grants import WRITTEN
from slotwise.spi import Database, DatabaseClock, Tables

WHEN = When(at=datetime(2020, 1, 1, tzinfo=UTC))
WANTED = Wanted(instance="1", data=None, when=WHEN, priority=50)


@pytest.fixture
def dialect() -> LockingPostgreSQL:
    return LockingPostgreSQL(Tables(), DatabaseClock())


def test_an_insert_raises_its_own_error(
    dialect: LockingPostgreSQL, pg_database: Database
) -> None:
    """Not that of the savepoint, which is gone with the connection."""
    tasks = dialect.task_statements(None)
    with pg_database.main.connect() as connection:
        connection.execute(sa.text("SET TRANSACTION READ ONLY"))
        with pytest.raises(DBAPIError) as refused:
            tasks.put(connection, "mail", WANTED, "keep")
    assert sqlstate(refused.value) == "25006"


def test_a_task_that_waits_for_none_writes_what_an_enqueuer_may(
    dialect: LockingPostgreSQL,
) -> None:
    tasks = dialect.task_statements(None)
    assert set(tasks.new_row("mail", WANTED, datetime.now(UTC))) <= set(WRITTEN)
