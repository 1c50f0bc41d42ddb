"""A database for many examples: tables are made once, and emptied for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.testing.worker import IN_MEMORY, provision


@pytest.fixture(scope="module")
def plain() -> Iterator[Database]:
    found = Database(Settings(database_url=IN_MEMORY))
    provision(found)
    yield found
    found.close()


@pytest.fixture
def plain_postgresql(pg_url: str) -> Iterator[Database]:
    found = Database(Settings(database_url=pg_url))
    yield found
    found.close()
