"""Benches for tests with real workers, on the server of the run or on one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.databases import provision
from tests.faults.bench import Bench

from slotwise.embedded import EmbeddedPostgres
from slotwise.errors import PostgresMissing

MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(pg_url: str, tmp_path: Path) -> Iterator[MakeBench]:
    """Makes the bench of a test, on a fresh database of the run's server."""
    made: list[Bench] = []

    def make(cast: str, *, url: str | None = None, **settings: str) -> Bench:
        made.append(Bench(url or pg_url, tmp_path, cast, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def own_server(open_path: Path) -> Iterator[EmbeddedPostgres]:
    """A durable server that this test may restart, stop and starve, with the tables of
    slotwise.
    """
    try:
        server = EmbeddedPostgres(
            open_path / "pg", temporary=True, settings={"max_connections": "40"}
        )
    except PostgresMissing as error:
        pytest.skip(str(error))
    with server:
        provision(server.dsn)
        yield server
