"""Stores on a bench, over each database that slotwise speaks to."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from tests.databases import Databases
from tests.kit.dialect import KINDS, grant_receipts
from tests.store.bench import Bench

from slotwise import Settings
from slotwise.migrate.grants import grants
from slotwise.spi import Database


@pytest.fixture(params=KINDS)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database."""
    found: str = request.param
    return found


@pytest.fixture
def url(database_kind: str, request: pytest.FixtureRequest) -> str:
    """A fresh database of each kind, with the tables."""
    fixtures = {"postgresql": "pg_url", "sqlite": "sqlite_url", "mysql": "mysql_url"}
    fixture = fixtures[database_kind]
    found: str = request.getfixturevalue(fixture)
    return found


#: Parts whose printed grants the store's tests have on PostgreSQL, in the place of the owner's
#: rights, as in "worker,operator"; see "Laws and their tests".
PARTS = os.environ.get("TESTS_ROLE", "")


@contextmanager
def opened(url: str) -> Iterator[Database]:
    with (
        _as_parts(url)
        if PARTS and url.startswith("postgresql")
        else nullcontext(url) as address
    ):
        database = Database(Settings(database_url=address, wake_up=False))
        try:
            yield database
        finally:
            database.close()


@contextmanager
def _as_parts(url: str) -> Iterator[str]:
    """With the rights of ``PARTS``, and that to create tables, as handlers have; tests sign the
    audit themselves.
    """
    with (
        granted(url, *PARTS.split(",")) as theirs,
        psycopg.connect(url, autocommit=True) as sql,
    ):
        sql.execute(
            f"GRANT CREATE ON SCHEMA public TO {sa.make_url(theirs).username}".encode()
        )
        sql.execute(
            "DROP TRIGGER IF EXISTS scheduled_sign_controls ON scheduled_controls"
        )
        yield theirs


@contextmanager
def granted(url: str, *parts: str) -> Iterator[str]:
    """The address of a new role that has the printed grants of these parts, and no other right."""
    owner = sa.make_url(url)
    if owner.password == "secret":
        yield url
        return
    name = f"{owner.database}_{'_'.join(parts)}_{next(_numbers)}"
    with psycopg.connect(url, autocommit=True) as sql:
        sql.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'".encode())
        for part in parts:
            sql.execute(
                f"BEGIN; {grants(part, name, prefix='scheduled_', schema=None)} COMMIT".encode()
            )
        grant_receipts(sql, name)
        yield owner.set(username=name, password="secret").render_as_string(
            hide_password=False
        )
        sql.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


_numbers = itertools.count(1)


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
    name = "pg" if database_kind == "postgresql" else database_kind
    found: Bench = request.getfixturevalue(f"{name}_bench")
    return found


@pytest.fixture
def mysql_bench(mysql_url: str) -> Iterator[Bench]:
    """The same, on MariaDB only."""
    plan(mysql_url)
    with opened(mysql_url) as database:
        yield Bench(database)


@pytest.fixture
def pg_bench(databases: Databases) -> Iterator[Bench]:
    """The same, on PostgreSQL only."""
    with databases.provisioned("planned", plan) as url, opened(url) as database:
        yield Bench(database)


@pytest.fixture
def sqlite_bench(open_path: Path, planned_sqlite: Path) -> Iterator[Bench]:
    """And on SQLite only."""
    file = open_path / "planned.db"
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
