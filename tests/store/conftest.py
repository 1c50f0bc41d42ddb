"""Stores on a bench, over each database that slotwise speaks to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.store.bench import Bench

from slotwise.settings import Settings
from slotwise.store.database import Database


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    """A fresh database of each kind, with the tables."""
    fixture = {"postgresql": "pg_url", "sqlite": "sqlite_url"}[request.param]
    found: str = request.getfixturevalue(fixture)
    return found


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(Settings(database_url=url, wake_up=False))
    yield database
    database.close()


@pytest.fixture
def bench(database: Database) -> Bench:
    """The jobs of the bench, planned at noon, on a clock that stands still."""
    return Bench(database).planned()


@pytest.fixture
def pg_database(pg_url: str) -> Iterator[Database]:
    database = Database(Settings(database_url=pg_url, wake_up=False))
    yield database
    database.close()


@pytest.fixture
def pg_bench(pg_database: Database) -> Bench:
    """The same, on PostgreSQL only: where locks are a row's."""
    return Bench(pg_database).planned()
