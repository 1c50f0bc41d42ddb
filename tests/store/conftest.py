"""Stores on a bench, over each database that slotwise speaks to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.databases import Databases
from tests.store.bench import Bench

from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database


@pytest.fixture(params=["postgresql", "sqlite"])
def database_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database."""
    found: str = request.param
    return found


@pytest.fixture
def url(database_kind: str, request: pytest.FixtureRequest) -> str:
    """A fresh database of each kind, with the tables."""
    fixture = {"postgresql": "pg_url", "sqlite": "sqlite_url"}[database_kind]
    found: str = request.getfixturevalue(fixture)
    return found


@contextmanager
def opened(url: str) -> Iterator[Database]:
    database = Database(Settings(database_url=url, wake_up=False))
    try:
        yield database
    finally:
        database.close()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with opened(url) as database:
        yield database


@pytest.fixture
def pg_database(pg_url: str) -> Iterator[Database]:
    """On PostgreSQL only: where locks are a row's."""
    with opened(pg_url) as database:
        yield database


@pytest.fixture
def bench(database_kind: str, request: pytest.FixtureRequest) -> Bench:
    """The jobs of the bench, planned at noon, on a clock that stands still."""
    fixture = {"postgresql": "pg_bench", "sqlite": "sqlite_bench"}[database_kind]
    found: Bench = request.getfixturevalue(fixture)
    return found


@pytest.fixture
def pg_bench(databases: Databases) -> Iterator[Bench]:
    """The same, on PostgreSQL only."""
    with databases.provisioned("planned", plan) as url, opened(url) as database:
        yield Bench(database)


@pytest.fixture
def sqlite_bench(tmp_path: Path, planned_sqlite: Path) -> Iterator[Bench]:
    """And on SQLite only."""
    file = tmp_path / "planned.db"
    shutil.copyfile(planned_sqlite, file)
    with opened(f"sqlite:///{file}") as database:
        yield Bench(database)


@pytest.fixture(scope="session")
def planned_sqlite(provisioned_sqlite: Path) -> Path:
    """The jobs of the bench, planned once, to be copied."""
    file = provisioned_sqlite.with_name("planned.db")
    shutil.copyfile(provisioned_sqlite, file)
    plan(f"sqlite:///{file}")
    return file


def plan(url: str) -> None:
    """Planning is a dozen transactions: what each test begins with is made once, and cloned."""
    with opened(url) as database:
        Bench(database).plan()
