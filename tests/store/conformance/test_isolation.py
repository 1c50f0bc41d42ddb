"""Databases and roles whose default is a stricter isolation: nobody's transaction fails for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from tests.kit.records import Succeeded
from tests.store.bench import Bench

from slotwise import Settings
from slotwise.spi import Database

WHOSE = ["DATABASE {database}", "ROLE CURRENT_USER IN DATABASE {database}"]


@pytest.fixture(params=WHOSE, ids=["database", "role"])
def whose(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=["serializable", "repeatable read"])
def strict(pg_url: str, whose: str, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench on a database where transactions are isolated like this, unless they say
    otherwise.
    """
    with psycopg.connect(pg_url, autocommit=True) as operator:
        place = whose.format(database=f'"{operator.info.dbname}"')
        operator.execute(
            f"ALTER {place} SET default_transaction_isolation = '{request.param}'"
        )
    with psycopg.connect(pg_url) as other:
        assert other.execute("SHOW transaction_isolation").fetchone() == (
            request.param,
        )
    database = Database(Settings(database_url=pg_url))
    yield Bench(database).planned()
    database.close()


def test_ours_is_read_committed(strict: Bench) -> None:
    """On every connection, whatever role and database have for a default."""
    for engine in (
        strict.database.main,
        strict.database.heart,
        strict.database.migrations(),
    ):
        with engine.begin() as connection:
            assert (
                connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
                == "read committed"
            )


def test_workers_beside_each_other_meet_no_conflict(strict: Bench) -> None:
    """Claims, heartbeats and settlements of four: none is told to try again, and each row runs
    once.
    """
    bench, rows = strict, 200
    for number in range(rows):
        bench.client.schedule("mail", id=f"{number}")

    def work(holder: str) -> int:
        count = 0
        while claims := bench.claim("mail", holder=holder, limit=10):
            assert bench.store.held.beat(holder, claims) == set()
            done = bench.store.settlements.settle(
                [(claim, Succeeded()) for claim in claims]
            )
            count += sum(one.transition is not None for one in done)
        return count

    with ThreadPoolExecutor(4) as threads:
        count = sum(threads.map(work, [f"host:{number}:x" for number in range(4)]))
    assert count + len(bench.claim("mail", limit=rows)) == rows
