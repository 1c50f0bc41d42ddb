"""The mark of a job that gives up outlives a crash of the server, whatever role and database say
of durability.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from tests.databases import provision
from tests.store.bench import Bench

from slotwise import Settings
from slotwise.embedded import EmbeddedPostgres
from slotwise.errors import PostgresMissing
from slotwise.spi import Database

#: What the server goes by at the commit: a trigger that is deferred runs right before it.
LISTEN = """
CREATE TABLE heard (outcome text, synchronous_commit text);
CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO heard VALUES (new.outcome, current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER hear AFTER INSERT OR UPDATE ON scheduled_slots
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hear();
"""
#: The same, at the mark of a one-time task.
HEAR_MARKS = """
CREATE FUNCTION hear_mark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO heard VALUES ('marked', current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER hear_mark AFTER UPDATE ON scheduled_tasks
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (new.marked IS NOT NULL) EXECUTE FUNCTION hear_mark();
"""


@contextmanager
def a_bench(url: str, **settings: bool) -> Iterator[Bench]:
    database = Database(Settings(database_url=url, wake_up=False, **settings))
    try:
        yield Bench(database)
    finally:
        database.close()


def choose(connection: psycopg.Connection, level: str) -> None:
    """What an admin says, for this database."""
    name = sql.Identifier(connection.info.dbname)
    connection.execute(
        sql.SQL("ALTER DATABASE {} SET synchronous_commit = {}").format(
            name, sql.Literal(level)
        )
    )


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
@pytest.mark.parametrize(
    ("level", "at_the_mark"),
    [
        ("off", "on"),
        ("on", "on"),
        ("local", "local"),
        ("remote_write", "remote_write"),
        ("remote_apply",) * 2,
    ],
)
def test_only_off_is_lifted_and_only_for_the_mark(
    pg_url: str, level: str, at_the_mark: str, pooler: bool
) -> None:
    """The claim before it and the settlement after it commit as the admin chose."""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        choose(connection, level)
        connection.execute(LISTEN)
        with a_bench(pg_url, pooler=pooler) as bench:
            bench.planned().tick()
            claim = bench.claim_one("strict")
            assert bench.store.held.mark_running(claim)
            bench.settle(claim)
            connection.execute(HEAR_MARKS)
            bench.client.schedule("once")
            assert bench.store.held.mark_running(bench.claim_one("once"))
        heard = connection.execute(
            "SELECT outcome, synchronous_commit FROM heard"
        ).fetchall()
    claimed_and_ended = [
        ("claimed", level),
        ("running", at_the_mark),
        ("succeeded", level),
    ]
    assert heard == [*claimed_and_ended, ("marked", at_the_mark)]


def test_a_mark_that_was_acknowledged_outlives_the_server(open_path: Path) -> None:
    """It crashes right after; the claim, which nobody had written to disk before, is there again,
    too.
    """
    settings = {
        "synchronous_commit": "off",
        "wal_writer_delay": "10s",
        "wal_writer_flush_after": "0",
    }
    try:
        server = EmbeddedPostgres(open_path / "pg", temporary=True, settings=settings)
    except PostgresMissing as error:
        pytest.skip(str(error))
    with server:
        provision(server.dsn)
        with a_bench(server.dsn) as bench:
            bench.planned().tick()
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("CHECKPOINT")
            claim = bench.claim_one("strict")
            assert bench.store.held.mark_running(claim)
            server._cluster.stop("immediate")
            server.start()
            bench.database.close()
            assert (
                bench.slot("strict")["outcome"],
                bench.slot("strict")["token"],
            ) == (
                "running",
                claim.token,
            )
            bench.tick()
            bench.take_over(claim)
            assert bench.outcomes("strict")[0] == (1, "lost")
            assert claim.slot not in [other.slot for other in bench.claim("strict")]
