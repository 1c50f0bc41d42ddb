"""Databases for tests: one server for the whole run, a fresh database for each test that asks."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from psycopg import sql

from slotwise.embedded import EmbeddedPostgres, GivenPostgres

GIBIBYTE = 1 << 30


class Databases:
    """Makes and drops databases of one server; clones of a provisioned template cost some 20
    ms.
    """

    def __init__(self, server: EmbeddedPostgres | GivenPostgres, prefix: str) -> None:
        """`prefix` keeps the names of this test process apart from everybody else's."""
        self._server = server
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._connection: psycopg.Connection | None = None
        self._templates: dict[str, str] = {}

    @contextmanager
    def empty(self, encoding: str = "UTF8") -> Iterator[str]:
        """A database with nothing in it."""
        name = f"{self._prefix}_{next(self._numbers)}"
        self._create(name, encoding=encoding)
        try:
            yield self._server.url(name)
        finally:
            self.drop(name)

    @contextmanager
    def provisioned(
        self, what: str = "tables", prepare: Callable[[str], object] | None = None
    ) -> Iterator[str]:
        """A database with the tables of slotwise: a clone of a template, made when first needed.

        `prepare` puts into the template, once, what its clones begin with; `what` names it.
        """
        if what not in self._templates:
            self._templates[what] = self._make_template(what, prepare)
        name = f"{self._prefix}_{next(self._numbers)}"
        self._create(name, template=self._templates[what])
        try:
            yield self._server.url(name)
        finally:
            self.drop(name)

    def drop(self, name: str) -> None:
        """Also if somebody is still connected."""
        self._execute(
            sql.SQL("drop database if exists {} with (force)").format(
                sql.Identifier(name)
            )
        )

    def close(self) -> None:
        """Leave the server as it was found."""
        for template in self._templates.values():
            self.drop(template)
        if self._connection:
            self._connection.close()

    def _make_template(
        self, what: str, prepare: Callable[[str], object] | None
    ) -> str:
        name = f"{self._prefix}_{what}"
        self.drop(name)
        self._create(name)
        provision(self._server.url(name))
        if prepare:
            prepare(self._server.url(name))
        return name

    def _create(
        self, name: str, template: str = "template0", encoding: str = "UTF8"
    ) -> None:
        statement = sql.SQL("create database {} template {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        if encoding != "UTF8":
            statement += sql.SQL(" encoding {} lc_collate 'C' lc_ctype 'C'").format(
                sql.Literal(encoding)
            )
        if self._connect().info.server_version >= 150_000:
            statement += sql.SQL(
                " strategy file_copy"
            )  # 9 ms instead of 34 ms where fsync is off
        self._execute(statement)

    def _execute(self, statement: sql.Composed) -> None:
        self._connect().execute(statement)

    def _connect(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._server.dsn, autocommit=True)
        return self._connection


def provision(url: str) -> None:
    """Create the tables of slotwise in a database."""
    from slotwise import (
        migrate,
    )  # late: tests of what lies below the schema must run without it

    address = sqlalchemy.make_url(url)
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    if (kind := address.get_backend_name()) in drivers:
        address = address.set(drivername=drivers[kind])
    engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        migrate.apply(connection)
    engine.dispose()


@pytest.fixture(scope="session")
def postgres(testrun_uid: str) -> Iterator[EmbeddedPostgres | GivenPostgres]:
    """The server of this run, shared by all its processes: SLOTWISE_TEST_DSN, else one of our own
    on memory.

    Never restart it in a test: start your own EmbeddedPostgres(open_path / "pg", durable=False).
    """
    given = os.environ.get("SLOTWISE_TEST_DSN")
    home = _fast_directory() / f"slotwise-tests-{testrun_uid}"
    # Each DROP DATABASE waits for a process that was frozen while it connected: a minute, by
    # default.
    settings = {"authentication_timeout": "5s"}
    server = (
        GivenPostgres(given)
        if given
        else EmbeddedPostgres(home, durable=False, temporary=True, settings=settings)
    )
    with server:
        yield server


@pytest.fixture(scope="session")
def databases(
    postgres: EmbeddedPostgres | GivenPostgres, worker_id: str, testrun_uid: str
) -> Iterator[Databases]:
    """Makes databases on the server of this run; the fixtures below are enough for most tests."""
    databases = Databases(
        postgres, re.sub(r"\W", "", f"slotwise_{testrun_uid[:8]}_{worker_id}")
    )
    yield databases
    databases.close()


@pytest.fixture
def pg_empty_url(databases: Databases) -> Iterator[str]:
    """A fresh, empty PostgreSQL database."""
    with databases.empty() as url:
        yield url


@pytest.fixture
def pg_url(databases: Databases) -> Iterator[str]:
    """A fresh PostgreSQL database with the tables of slotwise."""
    with databases.provisioned() as url:
        yield url


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory like tmp_path that the account of a server can enter too; pytest's own is closed
    to it.
    """
    with _directory() as path:
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="session")
def provisioned_sqlite() -> Iterator[Path]:
    """A SQLite file with the tables of slotwise, to be copied."""
    with _directory() as path:
        provision(f"sqlite:///{path / 'provisioned.db'}")
        yield path / "provisioned.db"


@pytest.fixture
def sqlite_empty_url(open_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet; each commit to it waits for the disk, if
    it is on one.
    """
    return f"sqlite:///{open_path / 'slotwise.db'}"


@pytest.fixture
def sqlite_url(sqlite_empty_url: str, provisioned_sqlite: Path) -> str:
    """A fresh SQLite file with the tables of slotwise."""
    shutil.copyfile(provisioned_sqlite, sqlite_empty_url.removeprefix("sqlite:///"))
    return sqlite_empty_url


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=_fast_directory(), prefix="slotwise-test-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _fast_directory() -> Path:
    """Memory where there is enough of it: a container often has 64 MB, macOS has none."""
    memory = Path("/dev/shm")
    if (
        memory.is_dir()
        and os.access(memory, os.W_OK)
        and shutil.disk_usage(memory).free > GIBIBYTE
    ):
        return memory
    return Path(tempfile.gettempdir())
