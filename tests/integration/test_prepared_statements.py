"""Prepared statements: where they are kept, for how long, and what happens when they are gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from tests.connections import Open, show
from tests.kit.connections import is_transient
from tests.kit.connections import postgresql_connections as plans
from tests.kit.store import Store
from tests.store.bench import a_job, a_task

from slotwise import Settings
from slotwise.spi import Database

ASK = "SELECT %(number)s::integer"


@pytest.fixture
def busy(database: Open, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A worker's database, each of whose connections counts as busy from its second use on."""
    monkeypatch.setattr(plans, "PLAN_LIFE", 0.0)
    monkeypatch.setattr(plans, "BUSY", 1)
    opened = database(pool_size=1, overflow=0)
    opened.verify()
    yield opened
    opened.close()


def ask(database: Database, times: int = plans.THRESHOLD + 1) -> None:
    for number in range(times):
        with database.main.begin() as connection:
            assert (
                connection.exec_driver_sql(ASK, {"number": number}).scalar_one()
                == number
            )


def prepared(connection: Connection) -> list[str]:
    found = connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements")
    return [statement for (statement,) in found if "::integer" in statement]


def test_a_busy_connection_prepares(busy: Database) -> None:
    """What it runs again and again is read by the server once."""
    ask(busy)
    with busy.main.connect() as connection:
        assert prepared(connection) == ["SELECT $1::integer"]


def test_a_leisurely_one_does_not(
    busy: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan would be as old as the table once was."""
    monkeypatch.setattr(plans, "BUSY", 1_000_000)
    ask(busy)
    with busy.main.connect() as connection:
        assert prepared(connection) == []


def test_it_prepares_as_soon_as_it_is_busy(database: Open) -> None:
    """Not in the second after: a backlog may be gone by then."""
    opened = database(pool_size=1, overflow=0)
    opened.verify()
    ask(opened, plans.BUSY + plans.THRESHOLD + 2)
    with opened.main.connect() as connection:
        assert prepared(connection) == ["SELECT $1::integer"]
    opened.close()


def test_plans_of_claims_are_for_any_values(database: Open) -> None:
    """To plan one takes as long as to claim a hundred rows; all others are planned as the server
    thinks best.
    """
    opened = database()
    opened.verify()
    for engine, expected in (
        (opened.claims, ("force_generic_plan", "off", "off")),
        (opened.main, ("auto", "on", "on")),
        (opened.heart, ("auto", "on", "on")),
    ):
        with engine.connect() as connection:
            assert (
                tuple(
                    show(connection, name)
                    for name in ("plan_cache_mode", "enable_seqscan", "jit")
                )
                == expected
            )
    opened.close()


def test_a_claim_is_prepared_at_once(pg_url: str) -> None:
    """And its plan is right when the table has grown, though it was made while that was empty and
    unknown.
    """
    store = Store(
        Database(Settings(database_url=pg_url)),
        {one.name: one for one in (a_task("mail"), a_job("tick"))},
    )
    store.database.verify()
    store.claims.claim_tasks("me", 10, lease=timedelta(seconds=9), names=["mail"])
    store.due.next_due(["mail", "tick"])
    with store.database.claims.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO scheduled_tasks (task_name, task_instance, "
            "execution_time, picked, version)"
            " SELECT 'mail', n::text, now(), false, 1 FROM generate_series(1, 1000) AS n"
        )
        kept = connection.exec_driver_sql(
            "SELECT name, cardinality(parameter_types) FROM "
            "pg_prepared_statements WHERE statement LIKE '%%heads%%'"
            " AND statement NOT LIKE '%%pg_prepared%%'"
        ).fetchall()
        plans = [
            "\n".join(
                line
                for (line,) in connection.exec_driver_sql(
                    f"EXPLAIN EXECUTE {name}({nulls(count)})"
                )
            )
            for name, count in kept
        ]
    assert len(plans) == 2
    for plan in plans:
        assert set(re.findall(r" on (scheduled_tasks\w*)", plan)) <= {
            "scheduled_tasks"
        }, plan
        assert set(
            re.findall(r"Index \S*\s?Scan using (\w+) on scheduled_tasks", plan)
        ) == {
            "scheduled_tasks_queue",
            "scheduled_tasks_due",
            "scheduled_tasks_lost",
        }, plan
        assert not re.search(r"Seq Scan|Bitmap|Hash .*Join|JIT", plan), plan
    store.database.close()


def nulls(count: int) -> str:
    return ", ".join(["NULL"] * count)


def test_a_plan_does_not_outlive_its_table(busy: Database) -> None:
    """A plan made on an empty table gives way within a second: here, at the connection's next
    use.
    """
    look = "SELECT count(*) FROM grown WHERE id = %(id)s"
    with busy.main.begin() as connection:
        connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        connection.exec_driver_sql(
            "CREATE TABLE grown (id integer PRIMARY KEY) WITH (autovacuum_enabled = off)"
        )
    with busy.migrations().connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(
            "VACUUM ANALYZE grown"
        )
    for number in range(plans.THRESHOLD + 1):
        with busy.main.begin() as connection:
            connection.exec_driver_sql(look, {"id": number})
    with busy.main.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO grown SELECT generate_series(1, 50000)"
        )
        name = connection.exec_driver_sql(
            "SELECT name FROM pg_prepared_statements WHERE statement LIKE "
            "'%%grown WHERE id%%' AND statement !~ 'LIKE'"
        ).scalar_one()
    with busy.main.connect() as connection:
        plan = "\n".join(
            line
            for (line,) in connection.exec_driver_sql(f"EXPLAIN EXECUTE {name}(1)")
        )
    assert "Index" in plan
    assert "Seq Scan" not in plan


@pytest.mark.parametrize("unverified", ["pooler", "unasked"])
def test_only_where_the_server_itself_answers(
    database: Open, pg_empty_url: str, monkeypatch: pytest.MonkeyPatch, unverified: str
) -> None:
    """Behind a pooler, or where nobody has looked for one, the next transaction may be in another
    session.
    """
    monkeypatch.setattr(plans, "PLAN_LIFE", 0.0)
    monkeypatch.setattr(plans, "BUSY", 1)
    opened = database(pg_empty_url, pool_size=1, pooler=unverified == "pooler")
    if unverified == "pooler":
        opened.verify()
    ask(opened)
    with opened.main.connect() as connection:
        assert prepared(connection) == []


def test_a_statement_that_is_gone(
    busy: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A pooler that nobody noticed: one failure that a pause mends, said once; from then on
    nothing is prepared.
    """
    ask(busy)
    with busy.main.begin() as connection:
        connection.exec_driver_sql("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    with pytest.raises(DBAPIError) as caught:
        ask(busy)
    assert is_transient(caught.value)
    ask(busy, 2 * plans.THRESHOLD)
    with busy.main.connect() as connection:
        assert prepared(connection) == []
    assert len([line for line in caplog.messages if "set pooler = true" in line]) == 1
