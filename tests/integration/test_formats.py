"""Databases and sessions that write their values in other ways: slotwise reads, and writes, the
same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import make_url
from tests.connections import with_query
from tests.databases import Databases, provision
from tests.kit.records import Failed
from tests.store.bench import Bench, a_job, a_task

from slotwise import ConfigurationError, Item, Retry, Settings
from slotwise.spi import Database

DEFINITIONS = (
    a_job("plain"),
    a_task(
        "mail", retry=Retry.exponential(max_attempts=3, initial=timedelta(seconds=1))
    ),
)
SAID = "\u65e5\u672c: nothing \u00e0 faire"


def bench_at(url: str) -> Iterator[Bench]:
    """Its tables are made here, as a user makes them."""
    provision(with_query(url, client_encoding="utf8"))
    with closing(Database(Settings(database_url=url))) as database:
        yield Bench(database, DEFINITIONS).planned()


@pytest.fixture
def german(databases: Databases) -> Iterator[str]:
    """A database whose sessions write dates and intervals in another way."""
    with databases.empty() as url:
        name = make_url(url).database or ""
        with psycopg.connect(url, autocommit=True) as connection:
            for word, value in (
                ("datestyle", "German"),
                ("intervalstyle", "iso_8601"),
                ("timezone", "Asia/Kathmandu"),
            ):
                statement = sql.SQL("ALTER DATABASE {} SET {} = {}")
                connection.execute(
                    statement.format(
                        sql.Identifier(name), sql.SQL(word), sql.Literal(value)
                    )
                )
        yield url


def test_another_style_of_dates(german: str) -> None:
    """Whatever database or role have for a default, sessions of ours read and write ISO."""
    for bench in bench_at(german):
        runs_once(bench)


def test_another_style_of_dates_behind_a_pooler(german: str) -> None:
    """There, it is said with each transaction."""
    provision(german)
    with closing(Database(Settings(database_url=german, pooler=True))) as database:
        runs_once(Bench(database, DEFINITIONS).planned())


def test_another_style_of_dates_in_the_environment(
    pg_empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq sends these after our options; they count for nothing all the same."""
    monkeypatch.setenv("PGDATESTYLE", "German")
    monkeypatch.setenv("PGTZ", "Asia/Kathmandu")
    for bench in bench_at(pg_empty_url):
        runs_once(bench)
        with bench.store.transaction() as connection:
            assert connection.exec_driver_sql("SHOW timezone").scalar_one() == "UTC"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_another_encoding(databases: Databases, encoding: str) -> None:
    """SQL_ASCII is what `initdb` makes under LANG=C."""
    with databases.empty(encoding) as url:
        for bench in bench_at(url):
            runs_once(bench)


@pytest.mark.parametrize(
    ("encoding", "kept"),
    [
        ("UTF8", SAID),
        ("SQL_ASCII", SAID),
        ("LATIN1", r"\u65e5\u672c: nothing \xe0 faire"),
    ],
)
def test_an_error_in_letters_that_the_database_lacks(
    databases: Databases, encoding: str, kept: str
) -> None:
    """What a handler says decides nothing: the attempt has failed, and is tried again."""
    with databases.empty(encoding) as url:
        for bench in bench_at(url):
            bench.client.schedule("mail", id="1")
            (claim,) = bench.claim("mail")
            bench.settle(claim, Failed(SAID))
            tasks = bench.tables.tasks
            with bench.store.transaction() as connection:
                wanted = sa.select(
                    tasks.c.state, tasks.c.consecutive_failures, tasks.c.last_error
                )
                row = connection.execute(
                    wanted.where(tasks.c.task_name == "mail")
                ).one()
            assert tuple(row) == (None, 1, kept)


def test_a_letter_that_the_database_lacks(databases: Databases) -> None:
    """Each call says which, where and what to do; also in a transaction of the caller's, however
    that speaks.
    """
    with databases.empty("LATIN1") as url:
        for bench in bench_at(url):
            with (
                closing(
                    psycopg.connect(with_query(url, client_encoding="utf8"))
                ) as utf8,
                closing(
                    psycopg.connect(with_query(url, client_encoding="latin1"))
                ) as latin1,
            ):
                for where, call in calls_with_a_letter(bench, utf8, latin1):
                    with pytest.raises(ConfigurationError) as refused:
                        call()
                    said = str(refused.value)
                    assert said.startswith(
                        f"{where}: a character is not in the encoding of the database: "
                    )
                    assert said.endswith(CURE)
                    assert re.search("latin-?1", said, re.IGNORECASE)


CURE = "replace it, or use a database in UTF8"


def calls_with_a_letter(
    bench: Bench, utf8: psycopg.Connection, latin1: psycopg.Connection
) -> list[tuple[str, Callable[[], object]]]:
    """Free texts of all kinds, and where they stand."""
    client, operations = bench.client, bench.client.operations
    return [
        ("task 'mail'", lambda: client.schedule("mail", id=SAID)),
        ("task 'mail'", lambda: client.schedule("mail", id=SAID, connection=utf8)),
        ("task 'mail'", lambda: client.schedule("mail", id=SAID, connection=latin1)),
        ("task 'mail'", lambda: client.schedule_many("mail", [Item(1, id=SAID)])),
        (
            "task 'mail'",
            lambda: client.schedule_many("mail", [Item(1, id=SAID)], copy=True),
        ),
        ("task 'mail'", lambda: client.cancel("mail", SAID)),
        (f"task {SAID!r}", lambda: client.list(SAID)),
        ("task 'plain'", lambda: client.schedule_recurring("plain", SAID, "EVERY|5m")),
        ("this operation", lambda: operations.pause("plain", note=SAID)),
        (f"job {SAID!r}", lambda: bench.beside(a_job(SAID)).plan(SAID)),
    ]


def runs_once(bench: Bench) -> None:
    """From the claim to the ledger, with a lease and a payload."""
    bench.tick()
    bench.client.schedule("mail", {"to": "you"}, id="1")
    claims = bench.claim()
    assert {claim.row.task_name for claim in claims} == {"plain", "mail"}
    assert bench.store.held.beat(claims[0].holder, claims) == set()
    for claim in claims:
        bench.settle(claim)
    assert [row["outcome"] for row in bench.slots("plain")] == ["succeeded"]
    assert [line.job for line in bench.inspect.jobs()] == ["plain"]
