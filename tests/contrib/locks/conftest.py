"""The three kinds of provider, each on a real server or file."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.contrib.locks.holder import provider_of
from tests.contrib.locks.servers import RedisServer
from tests.contrib.locks.shedlock import TABLE

from slotwise.locks import LockProvider, RedisLocks, SQLLocks


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name is short enough for a socket."""
    path = Path(tempfile.mkdtemp(prefix="slotwise-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server for this test process; never restart or freeze it."""
    path = Path(tempfile.mkdtemp(prefix="slotwise-", dir="/tmp"))
    with RedisServer(path) as server:
        yield server
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def shedlock_url(pg_empty_url: str) -> str:
    """A PostgreSQL database with the table that ShedLock's page shows."""
    with psycopg.connect(pg_empty_url, autocommit=True) as connection:
        connection.execute(TABLE)
    return pg_empty_url


@pytest.fixture(params=["postgresql", "sqlite", "redis"])
def locks_url(request: pytest.FixtureRequest) -> str:
    """The address of a provider that has no locks yet (in Redis: none of this test)."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return server.url
    if request.param == "postgresql":
        return str(request.getfixturevalue("shedlock_url"))
    url = f"sqlite:///{request.getfixturevalue('open_path')}/locks.db"
    provider = SQLLocks(url)
    provider.create_table()
    provider.close()
    return url


@pytest.fixture
def provider(locks_url: str) -> Iterator[LockProvider]:
    """A provider, closed at the end."""
    found = provider_of(locks_url)
    yield found
    close(found)


def close(provider: LockProvider) -> None:
    """What a process leaves to its end."""
    assert isinstance(provider, SQLLocks | RedisLocks)
    provider.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"{secrets.token_hex(4)}-{request.function.__name__}"[:64]
