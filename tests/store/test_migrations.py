"""The tables: made, checked, taken away; by our commands, by alembic's, and from a user's own
project.
"""

from __future__ import annotations

import io
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import CommandLine, Config
from alembic.runtime.migration import MigrationContext
from tests.kit.patience import PATIENCE
from tests.kit.records import FOREVER, SCHEMA_VERSION
from tests.store.bench import DB_SCHEDULER, JAVA_ROW, Bench, at

from slotwise import SchemaMismatch, Settings, migrate
from slotwise.contrib.db_scheduler.adoption import LOCK_TIMEOUT
from slotwise.contrib.db_scheduler.table import COLUMNS
from slotwise.migrate.target import UNUSED
from slotwise.spi import Database, tables

CHECKOUT = Path(__file__).resolve().parents[2]
REVISIONS = ["sw0001", "sw0002", "sw0003", "sw0004", "sw0005", "sw0006", "sw0007"]
TABLES = {
    "tasks",
    "slots",
    "gaps",
    "attempts",
    "workers",
    "controls",
    "calendars",
    "starts",
    "keys",
    "receipts",
    "meta",
    "deploys",
    "worker_history",
    "counts",
    "pauses",
    "incidents",
    "silences",
    "instances",
    "scopes",
    "checkpoints",
    "events",
    "event_handlers",
    "set_aside",
}


@pytest.fixture(params=["postgresql", "sqlite"])
def empty_url(request: pytest.FixtureRequest) -> str:
    fixture = {"postgresql": "pg_empty_url", "sqlite": "sqlite_empty_url"}[
        request.param
    ]
    found: str = request.getfixturevalue(fixture)
    return found


def engine_of(url: str) -> sa.Engine:
    return Database(Settings(database_url=url)).migrations()


@pytest.fixture
def connection(empty_url: str) -> Iterator[sa.Connection]:
    with engine_of(empty_url).connect() as connection:
        yield connection


@pytest.fixture
def pg(pg_empty_url: str) -> Iterator[sa.Connection]:
    with engine_of(pg_empty_url).connect() as connection:
        yield connection


def names(connection: sa.Connection, schema: str | None = None) -> set[str]:
    found = set(sa.inspect(connection).get_table_names(schema=schema))
    connection.rollback()
    return found


# -- up, down, and whether all is there -----------------------------------------------------------


def test_up_and_down(connection: sa.Connection) -> None:
    """Once is enough; down leaves nothing but the memory that there was something."""
    assert migrate.apply(connection) == REVISIONS
    assert names(connection) == {f"scheduled_{name}" for name in TABLES} | {
        "scheduled_alembic_version"
    }
    assert migrate.apply(connection) == []
    migrate.check(connection)
    assert migrate.current(connection) == SCHEMA_VERSION
    connection.rollback()
    assert migrate.revert(connection) == REVISIONS[::-1]
    assert names(connection) == {"scheduled_alembic_version"}
    assert migrate.apply(connection) == REVISIONS


@pytest.mark.parametrize("schema", [None, "ops"])
def test_the_code_and_the_migrations_speak_of_the_same_tables(
    pg: sa.Connection, schema: str | None
) -> None:
    """Types, defaults, indexes and nullability; what alembic would generate is nothing."""
    migrate.apply(pg, schema=schema)
    target = migrate.Target(schema=schema)
    options = {
        **target.options(),
        "compare_type": True,
        "compare_server_default": True,
    }
    context = MigrationContext.configure(pg, opts=options)
    assert compare_metadata(context, target.metadata) == []


def test_they_do_in_sqlite_too(sqlite_empty_url: str) -> None:
    """Where a type says less, the names and columns at least."""
    with engine_of(sqlite_empty_url).connect() as connection:
        migrate.apply(connection)
        context = MigrationContext.configure(
            connection, opts=migrate.Target().options()
        )
        assert compare_metadata(context, migrate.Target().metadata) == []


def test_the_code_misses_nothing_that_the_migrations_do_not_make(
    connection: sa.Connection,
) -> None:
    """Column by column, also where alembic does not look."""
    migrate.apply(connection)
    inspector = sa.inspect(connection)
    for table in tables().metadata.sorted_tables:
        found = {
            column["name"]: column["nullable"]
            for column in inspector.get_columns(table.name)
            if table.name != "scheduled_tasks" or column["name"] not in UNUSED
        }
        assert found == {column.name: column.nullable for column in table.columns}, (
            table.name
        )
        assert set(
            inspector.get_pk_constraint(table.name)["constrained_columns"]
        ) == set(table.primary_key.columns.keys())


def test_indexes_are_partial(pg: sa.Connection) -> None:
    """Due, lost and held rows have one each, and there is none on the heartbeat, which changes all
    the time.
    """
    migrate.apply(pg)
    statement = sa.text(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'scheduled_tasks'"
    )
    found = {row.indexname: row.indexdef for row in pg.execute(statement)}
    names = ("pkey", "due", "queue", "lost", "held", "parked", "beside")
    names += ("ordered", "failing")
    assert set(found) == {f"scheduled_tasks_{name}" for name in names}
    waiting = "(NOT picked) AND (state IS NULL)"
    slot, task = "(kind <> 'task'::text)", "(kind = 'task'::text)"
    assert found["scheduled_tasks_due"].endswith(
        f"(execution_time) WHERE ({waiting} AND {slot})"
    )
    rank = "((- COALESCE((priority)::integer, 50)))"
    assert found["scheduled_tasks_queue"].endswith(
        f"(task_name, {rank}, execution_time) WHERE ({waiting} AND {task})"
    )
    lost = "WHERE ((NOT picked) AND (state IS NULL) AND (lost_count > 0))"
    assert found["scheduled_tasks_lost"].endswith(f"(execution_time) {lost}")
    assert found["scheduled_tasks_parked"].endswith(
        "(state, task_name, task_instance) WHERE (state IS NOT NULL)"
    )
    assert found["scheduled_tasks_held"].endswith("(picked_by) WHERE picked")
    assert found["scheduled_tasks_beside"].endswith(
        "(task_name, plan_instance) WHERE (plan_instance IS NOT NULL)"
    )


def test_the_queue_is_vacuumed_by_dead_rows(pg: sa.Connection) -> None:
    """All churn: a share of the table would be too late, and a delay too slow."""
    migrate.apply(pg)
    options = pg.scalar(
        sa.text("SELECT reloptions FROM pg_class WHERE relname = 'scheduled_tasks'")
    )
    assert set(options) == {
        "fillfactor=80",
        "autovacuum_vacuum_scale_factor=0",
        "autovacuum_vacuum_threshold=1000",
        "autovacuum_analyze_scale_factor=0.05",
        "autovacuum_vacuum_cost_delay=0",
    }


STORAGE = sa.text(
    "SELECT reloptions FROM pg_class WHERE oid = cast(:name AS regclass)"
)


@pytest.mark.parametrize(
    "adopt", [False, True], ids=["new tables", "an adopted table"]
)
def test_the_ledger_has_room_on_its_pages(pg: sa.Connection, adopt: bool) -> None:
    """A settlement finds room for the new version of its row; a downgrade takes the settings away,
    and no data.
    """
    if adopt:
        pg.execute(sa.text(DB_SCHEDULER.replace("scheduled_tasks", "jobs_tasks")))
        pg.commit()
    migrate.apply(pg, prefix="jobs_", adopt=adopt)
    assert pg.scalar(STORAGE, {"name": "jobs_slots"}) == [
        "fillfactor=65",
        "autovacuum_vacuum_scale_factor=0.02",
    ]
    pg.rollback()
    assert migrate.revert(pg, prefix="jobs_", revision="sw0001") == REVISIONS[:0:-1]
    assert pg.scalar(STORAGE, {"name": "jobs_slots"}) is None
    with pytest.raises(
        SchemaMismatch,
        match="not applied: sw0002, sw0003, sw0004, sw0005, sw0006, sw0007; run:",
    ):
        migrate.check(pg, prefix="jobs_")
    pg.rollback()
    assert migrate.apply(pg, prefix="jobs_") == REVISIONS[1:]


def test_room_in_the_ledger_is_made_beside_its_users(
    pg: sa.Connection, pg_empty_url: str
) -> None:
    """The revision waits for no transaction that reads or writes, and none waits for it."""
    migrate.apply(pg)
    migrate.revert(pg, revision="sw0001")
    with (
        psycopg.connect(pg_empty_url) as worker,
        psycopg.connect(pg_empty_url, autocommit=True) as other,
    ):
        worker.execute(
            "LOCK TABLE scheduled_slots, scheduled_tasks IN ROW EXCLUSIVE MODE"
        )
        with pg.begin():
            pg.execute(sa.text("SET LOCAL statement_timeout = '20s'"))
            assert migrate.apply(pg, revision="sw0002") == ["sw0002"]
            other.execute("SET lock_timeout = '1s'")
            other.execute("UPDATE scheduled_slots SET outcome = outcome")


def test_each_installation_has_an_id_of_its_own(pg: sa.Connection) -> None:
    """By which a guard tells one database from another."""
    migrate.apply(pg)
    migrate.apply(pg, prefix="other_")
    ids = {
        pg.scalar(
            sa.text(f"SELECT value FROM {prefix}meta WHERE key = 'installation_id'")
        )
        for prefix in ("scheduled_", "other_")
    }
    assert len(ids) == 2
    assert all(len(found) >= 32 for found in ids)


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        pytest.param(
            "DROP TABLE scheduled_meta",
            SchemaMismatch,
            "table scheduled_meta",
            id="the version's table",
        ),
        pytest.param(
            "DELETE FROM scheduled_meta",
            SchemaMismatch,
            "rows of table scheduled_meta",
            id="no version",
        ),
        pytest.param(
            "DROP TABLE scheduled_gaps",
            SchemaMismatch,
            "table scheduled_gaps",
            id="a table",
        ),
        pytest.param(
            "DROP INDEX scheduled_tasks_due",
            SchemaMismatch,
            "index scheduled_tasks_due",
            id="an index",
        ),
        pytest.param(
            "ALTER TABLE scheduled_tasks DROP COLUMN last_error",
            SchemaMismatch,
            "column scheduled_tasks.last_error",
            id="a column",
        ),
        pytest.param(
            "UPDATE scheduled_meta SET value = '0' WHERE key = 'schema_version'",
            SchemaMismatch,
            "UPDATE scheduled_meta SET value = '1' WHERE key = 'schema_version'",
            id="zero",
        ),
        pytest.param(
            "UPDATE scheduled_meta SET value = '99' WHERE key = 'schema_version'",
            SchemaMismatch,
            "schema version 99, this slotwise knows 1; upgrade slotwise here",
            id="newer",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    connection: sa.Connection, damage: str, error: type[Exception], words: str
) -> None:
    """With the command that mends it."""
    migrate.apply(connection)
    connection.execute(sa.text(damage))
    connection.commit()
    with pytest.raises(error) as raised:
        migrate.check(connection)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_older_tables_want_an_upgrade(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command that does it."""
    migrate.apply(connection)
    monkeypatch.setattr("slotwise.migrate.checks.SCHEMA_VERSION", 2)
    with pytest.raises(
        SchemaMismatch,
        match="of schema version 1, this slotwise needs 2; run: slotwise db upgrade",
    ):
        migrate.check(connection)


# -- transactions, several at once ----------------------------------------------------------------


def test_it_joins_the_callers_transaction(connection: sa.Connection) -> None:
    """Whoever has begun commits; a rollback leaves nothing behind."""
    with connection.begin():
        migrate.apply(connection)
        connection.get_transaction().rollback()  # type: ignore[union-attr]
    assert names(connection) == set()
    with connection.begin():
        migrate.apply(connection)
    assert "scheduled_tasks" in names(connection)


def test_an_upgrade_that_breaks_off_leaves_nothing(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or nothing: the next one starts afresh."""
    from alembic.operations import Operations

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("killed half way")

    with monkeypatch.context() as broken:
        broken.setattr(Operations, "create_index", fail)
        with pytest.raises(RuntimeError, match="half way"):
            migrate.apply(connection)
    assert names(connection) == set()
    assert migrate.apply(connection) == REVISIONS


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_upgrades_at_the_same_time(kind: str, request: pytest.FixtureRequest) -> None:
    """One of them works, the others wait and find nothing to do."""
    url = request.getfixturevalue(
        {"postgresql": "pg_empty_url", "sqlite": "sqlite_empty_url"}[kind]
    )
    together = threading.Barrier(6, timeout=PATIENCE)

    def upgrade(_: int) -> list[str]:
        with engine_of(url).connect() as connection:
            together.wait()
            return migrate.apply(connection)

    with ThreadPoolExecutor(6) as threads:
        applied = list(threads.map(upgrade, range(6)))
    assert sorted(applied) == [[], [], [], [], [], REVISIONS]
    with engine_of(url).connect() as connection:
        migrate.check(connection)


def test_first_connections_to_a_file_at_the_same_time(tmp_path: Path) -> None:
    """Each of them would change how the file is written."""
    together = threading.Barrier(6, timeout=PATIENCE)

    def connect(url: str) -> object:
        together.wait()
        with engine_of(url).connect() as connection:
            return connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()

    with ThreadPoolExecutor(6) as threads:
        for round in range(40):
            url = f"sqlite:///{tmp_path}/{round}.db"
            assert set(threads.map(connect, [url] * 6)) == {"wal"}


# -- names of one's own ---------------------------------------------------------------------------


def test_tables_by_any_name(pg_empty_url: str) -> None:
    """Prefix and schema can be chosen, several sets live in one database, and the engine works on
    each.
    """
    for prefix, schema in (
        ("scheduled_", None),
        ("jobs_", None),
        ("scheduled_", "ops"),
        ("sw_", "ops"),
    ):
        with engine_of(pg_empty_url).connect() as connection:
            assert migrate.apply(connection, prefix=prefix, schema=schema) == REVISIONS
            migrate.check(connection, prefix=prefix, schema=schema)
            expected = {f"{prefix}{name}" for name in (*TABLES, "alembic_version")}
            assert expected <= names(connection, schema)
        database = Database(
            Settings(database_url=pg_empty_url, table_prefix=prefix, schema=schema)
        )
        bench = Bench(database).planned()
        bench.tick()
        bench.settle(bench.claim_one("plain"))
        assert bench.outcomes("plain") == [(1, "succeeded")]
        assert bench.row("plain").slot == at(2)
        database.close()


def test_taking_one_set_away_leaves_the_others(pg: sa.Connection) -> None:
    """Down is down for its own tables."""
    migrate.apply(pg)
    migrate.apply(pg, prefix="other_", schema="ops")
    migrate.revert(pg, prefix="other_", schema="ops")
    assert names(pg, "ops") == {"other_alembic_version"}
    migrate.check(pg)


# -- a foreign table ------------------------------------------------------------------------------


def test_a_table_of_db_scheduler_is_not_touched_unasked(pg: sa.Connection) -> None:
    """One line: its columns match; adopt it, or choose another name."""
    pg.execute(sa.text(DB_SCHEDULER))
    pg.commit()
    with pytest.raises(
        SchemaMismatch,
        match="adopt it with `slotwise db upgrade --adopt`, or choose another name",
    ):
        migrate.apply(pg)
    pg.rollback()
    assert names(pg) == {"scheduled_tasks"}
    assert migrate.apply(pg, prefix="jobs_") == REVISIONS


@pytest.mark.parametrize("adopt", [False, True])
def test_a_foreign_table_is_not_touched_at_all(
    connection: sa.Connection, adopt: bool
) -> None:
    """Somebody else's table of that name: only another name helps."""
    connection.execute(
        sa.text("CREATE TABLE scheduled_tasks (id integer PRIMARY KEY, cron text)")
    )
    connection.commit()
    with pytest.raises(
        SchemaMismatch, match="is not slotwise's; choose another name: --table-prefix"
    ):
        migrate.apply(connection, adopt=adopt)
    connection.rollback()
    assert names(connection) == {"scheduled_tasks"}


@pytest.mark.parametrize(
    "name",
    ["scheduled_slots", "scheduled_meta", "scheduled_gaps", "scheduled_controls"],
)
def test_any_of_the_names_may_be_taken(connection: sa.Connection, name: str) -> None:
    """It is told as of the first: with the name of the table, and that another prefix helps."""
    connection.execute(sa.text(f"CREATE TABLE {name} (room integer, hour text)"))
    connection.commit()
    with pytest.raises(
        SchemaMismatch,
        match=f"table {name} exists and is not slotwise's; choose another name: --table-",
    ):
        migrate.apply(connection)
    connection.rollback()
    assert names(connection) == {name}
    assert migrate.apply(connection, prefix="jobs_") == REVISIONS


def adopted(pg: sa.Connection, url: str) -> Bench:
    """Our tables around Java's, with rows of both."""
    pg.execute(sa.text(DB_SCHEDULER))
    columns = "task_name, task_instance, task_data, execution_time, picked, version"
    pg.execute(
        sa.text(
            f"INSERT INTO scheduled_tasks ({columns}) VALUES ('java', '1', "
            "'\\xaced', now(), false, 1)"
        )
    )
    pg.commit()
    assert migrate.apply(pg, adopt=True) == REVISIONS
    migrate.check(pg)
    pg.rollback()
    return Bench(Database(Settings(database_url=url))).planned()


def test_an_adopted_table_serves_both(pg: sa.Connection, pg_empty_url: str) -> None:
    """Java's rows stay as they were; ours are claimed, settled, and the table is as the code
    has it.
    """
    bench = adopted(pg, pg_empty_url)
    row = bench.row("java", "1")
    assert (row.version, row.task_data, row.attempt, row.state) == (
        1,
        b"\xac\xed",
        0,
        "foreign",
    )
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    assert bench.outcomes("plain") == [(1, "succeeded")]
    context = MigrationContext.configure(pg, opts=migrate.Target().options())
    assert compare_metadata(context, migrate.Target().metadata) == []
    bench.database.close()


@pytest.mark.parametrize("due", ["-infinity", "0044-03-15 12:00Z BC"])
def test_a_row_of_javas_that_we_cannot_read_is_quarantined(
    pg: sa.Connection, pg_empty_url: str, due: str
) -> None:
    """Java writes what it likes in its rows; such a row of a task that we know is dead, and the
    others run.
    """
    bench = adopted(pg, pg_empty_url)
    bench.client.schedule("mail", id="1")
    with psycopg.connect(pg_empty_url, autocommit=True) as java:
        insert = (
            "INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, "
            "picked, version)"
        )
        java.execute(
            f"{insert} VALUES ('mail', '2', '{due}', false, 1), ('java', '2', '{due}', false, 1)"
        )
        with pytest.raises(
            psycopg.errors.CheckViolation
        ):  # in ours it writes what it can read itself
            java.execute(
                f"UPDATE scheduled_tasks SET execution_time = '{due}' WHERE "
                "task_instance = '1' AND version > 1"
            )
    assert [claim.key for claim in bench.claim("mail")] == [("mail", "1")]
    row = bench.row("mail", "2")
    assert (row.state, row.execution_time, row.kind) == ("dead", FOREVER, "task")
    bench.database.close()


def test_javas_clean_up_does_not_take_our_rows(
    pg: sa.Connection, pg_empty_url: str
) -> None:
    """It deletes rows of tasks that it does not know; a guard keeps those that we have made, and
    only those.
    """
    bench = adopted(pg, pg_empty_url)
    bench.client.schedule("mail", id="1")
    bench.client.schedule("mail", id="2")
    with psycopg.connect(pg_empty_url, autocommit=True) as java:
        assert (
            java.execute(
                "DELETE FROM scheduled_tasks WHERE task_name IN ('plain', 'mail')"
            ).rowcount
            == 0
        )
        assert (
            java.execute(
                "DELETE FROM scheduled_tasks WHERE task_name = 'java'"
            ).rowcount
            == 1
        )
    assert bench.row("plain").slot == at(1)
    claims = bench.claim("mail")
    assert len(claims) == 2
    assert all(
        bench.settle(claim) for claim in claims
    )  # those that we hold, we may delete
    assert bench.find("mail", "1") is None
    bench.database.close()


#: As Java's db-scheduler claims whatever is due (lock-and-fetch), and lets go of what it does not
#: know.
JAVA_CLAIMS = """
UPDATE scheduled_tasks SET picked = true, picked_by = 'java', last_heartbeat = now(), version = version + 1
WHERE (task_name, task_instance) IN (
    SELECT task_name, task_instance FROM scheduled_tasks WHERE picked = false AND execution_time <= now()
    ORDER BY execution_time FOR UPDATE SKIP LOCKED LIMIT 100)"""
JAVA_LETS_GO = """
UPDATE scheduled_tasks SET picked = false, picked_by = NULL, last_heartbeat = NULL, version = version + 1
WHERE picked_by = 'java' AND task_name <> 'java'"""
JAVA_CLEANS_UP = (
    "DELETE FROM scheduled_tasks WHERE task_name <> 'java' AND execution_time <= "
    "now() - interval '14 days'"
)


@pytest.mark.parametrize(
    "lets_go", [True, False], ids=["it lets go of them", "it dies with them"]
)
def test_our_rows_survive_javas_claim(
    pg: sa.Connection, pg_empty_url: str, lets_go: bool
) -> None:
    """Java takes what is due, knows it or not: our slots start once it lets go or is seen to be
    dead, unburnt.
    """
    bench = adopted(pg, pg_empty_url)
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    bench.tick()
    bench.client.schedule("mail", id="1")
    held = bench.claim_one("strict")
    with psycopg.connect(pg_empty_url, autocommit=True) as java:
        taken = java.execute(JAVA_CLAIMS).rowcount
        assert taken >= 3
        assert java.execute(JAVA_CLEANS_UP).rowcount == 0
        assert bench.claim() == []
        if lets_go:
            assert java.execute(JAVA_LETS_GO).rowcount == taken - 1
        else:
            found = bench.store.settlements.take_over(
                [bench.row("plain"), bench.row("mail", "1")]
            )
            assert [one.transition and one.transition.label for one in found] == [
                "handed_back",
                "handed_back",
            ]
        assert java.execute(JAVA_CLEANS_UP).rowcount == 0
    assert (
        bench.settle(held) is not None
    )  # what we hold, Java's statements leave alone
    claims = bench.claim("plain", "mail")
    assert sorted((claim.key.task_name, claim.row.attempt) for claim in claims) == [
        ("mail", 1),
        ("plain", 1),
    ]
    assert all(bench.settle(claim) for claim in claims)
    assert (bench.row("plain").lost_count, bench.outcomes("plain")) == (
        0,
        [(1, "succeeded"), (2, "succeeded")],
    )
    bench.database.close()


def test_a_large_table_is_adopted_beside_its_users(
    pg: sa.Connection, pg_empty_url: str
) -> None:
    """Whoever writes it goes on while an index waits; an adoption that was killed goes on where it
    stopped.
    """
    pg.execute(sa.text(DB_SCHEDULER))
    insert = (
        "INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, "
        "picked, version) "
    )
    pg.execute(
        sa.text(
            insert
            + "SELECT 'java', n::text, now(), false, 1 FROM generate_series(1, 20000) AS n"
        )
    )
    pg.commit()
    with (
        psycopg.connect(pg_empty_url) as old,
        psycopg.connect(pg_empty_url, autocommit=True) as java,
    ):
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute(
            "SELECT count(*) FROM pg_class"
        )  # an index that is built concurrently waits for such a snapshot
        with ThreadPoolExecutor(1) as threads:
            adoption = threads.submit(upgraded, pg_empty_url)
            builder = waiting_builder(java)
            java.execute("SET lock_timeout = '100ms'")
            java.execute(insert + "VALUES ('java', 'new', now(), false, 1)")
            assert (
                java.execute(
                    "UPDATE scheduled_tasks SET version = 2 WHERE task_instance = '7'"
                ).rowcount
                == 1
            )
            java.execute("SELECT pg_terminate_backend(%s)", [builder])
            assert adoption.exception(timeout=60) is not None
        assert java.execute(
            "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
        ).fetchone() == (1,)
        with pytest.raises(SchemaMismatch, match="adopt it with"):
            migrate.apply(pg)
        pg.rollback()
        old.rollback()
        assert upgraded(pg_empty_url) == REVISIONS
        assert java.execute(
            "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
        ).fetchone() == (0,)
    migrate.check(pg)
    assert (
        pg.scalar(
            sa.text(
                "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND NOT convalidated"
            )
        )
        == 0
    )


def test_an_adoption_lets_others_pass_while_it_waits(
    pg: sa.Connection, pg_empty_url: str
) -> None:
    """A step that needs the whole table gives up its place after a moment, and tries again."""
    pg.execute(sa.text(DB_SCHEDULER))
    pg.commit()
    with (
        psycopg.connect(pg_empty_url) as writer,
        psycopg.connect(pg_empty_url, autocommit=True) as java,
    ):
        writer.execute("LOCK TABLE scheduled_tasks IN ROW EXCLUSIVE MODE")
        with ThreadPoolExecutor(1) as threads:
            adoption = threads.submit(upgraded, pg_empty_url)
            until(
                lambda: (
                    java.execute(
                        "SELECT count(*) FROM pg_locks WHERE NOT granted"
                    ).fetchone()
                    == (1,)
                )
            )
            java.execute(f"SET lock_timeout = '{LOCK_TIMEOUT + 1}s'")
            assert java.execute("SELECT count(*) FROM scheduled_tasks").fetchone() == (
                0,
            )
            assert not adoption.done()
            writer.rollback()
            assert adoption.result(timeout=60) == REVISIONS


def upgraded(url: str) -> list[str]:
    with engine_of(url).connect() as connection:
        return migrate.apply(connection, adopt=True)


def until(look: Callable[[], Any]) -> Any:
    """What a look at the server comes to, as soon as there is anything."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := look():
            return found
    raise AssertionError("nothing has come")


def waiting_builder(watch: psycopg.Connection[tuple[int]]) -> int:
    """The process that builds an index, once it waits for others."""
    asked = (
        "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX "
        "CONCURRENTLY%' AND wait_event_type = 'Lock'"
    )
    found = until(lambda: watch.execute(asked).fetchone())
    return int(found[0])


def test_a_task_in_an_adopted_table_can_be_cancelled(
    pg: sa.Connection, pg_empty_url: str
) -> None:
    """The guard tells our own deletes from Java's, also within one transaction."""
    bench = adopted(pg, pg_empty_url)
    bench.client.schedule("mail", id="1")
    assert bench.client.cancel("mail", "1").status == "cancelled"
    assert bench.find("mail", "1") is None
    bench.database.close()


def columns_of(connection: sa.Connection) -> list[str]:
    found = [
        column["name"]
        for column in sa.inspect(connection).get_columns("scheduled_tasks")
    ]
    connection.rollback()
    return found


@pytest.mark.parametrize("way", ["slotwise", "alembic"])
def test_a_downgrade_leaves_an_adopted_table_to_java(
    pg: sa.Connection, pg_empty_url: str, way: str
) -> None:
    """It has Java's columns and rows as before, nothing of ours, and can be adopted again."""
    bench = adopted(pg, pg_empty_url)
    bench.client.schedule("mail", id="1")
    bench.database.close()
    java = (
        "SELECT task_name, task_instance, task_data, execution_time, picked, version "
        "FROM scheduled_tasks ORDER BY 1"
    )
    before = [
        row for row in pg.execute(sa.text(java)) if row.task_name in ("java", "mail")
    ]
    paused = (
        "SET state = 'paused', parked_due = execution_time, execution_time = "
        "'9000-01-01Z' WHERE kind = 'task'"
    )
    pg.execute(sa.text(f"UPDATE scheduled_tasks {paused}"))
    pg.commit()
    with psycopg.connect(pg_empty_url) as owner:
        for role in ("worker", "enqueuer"):  # with their triggers
            owner.execute(
                migrate.grants(role, owner.info.user, prefix="scheduled_", schema=None)
            )  # type: ignore[arg-type]
    if way == "alembic":
        assert alembic("downgrade", "base", url=pg_empty_url).returncode == 0
    else:
        assert migrate.revert(pg) == REVISIONS[::-1]
    assert names(pg) == {"scheduled_tasks", "scheduled_alembic_version"}
    assert len(before) == 2
    assert pg.execute(sa.text(java)).all() == before
    assert pg.scalar(STORAGE, {"name": "scheduled_tasks"}) is None
    rest = "SELECT count(*) FROM {} WHERE {} = 'scheduled_tasks'::regclass"
    for catalog, column, number in (
        ("pg_trigger", "tgrelid", 0),
        ("pg_index", "indrelid", 1),
    ):
        assert pg.scalar(sa.text(rest.format(catalog, column))) == number
    assert (
        pg.scalar(
            sa.text(
                "SELECT count(*) FROM pg_constraint WHERE conname LIKE 'scheduled_tasks_%s'"
            )
        )
        == 0
    )
    assert columns_of(pg) == list(COLUMNS)
    assert migrate.apply(pg, adopt=True) == REVISIONS
    migrate.check(pg)


def test_a_downgrade_leaves_an_adopted_table_in_sqlite_too(
    sqlite_empty_url: str,
) -> None:
    """Columns and rows as before."""
    with engine_of(sqlite_empty_url).connect() as connection:
        connection.exec_driver_sql(DB_SCHEDULER.replace("timestamptz", "bigint"))
        connection.exec_driver_sql(
            f"INSERT INTO scheduled_tasks {JAVA_ROW} VALUES ('java', '1', 7, false, 1)"
        )
        connection.commit()
        before = columns_of(connection)
        assert migrate.apply(connection, adopt=True) == REVISIONS
        assert migrate.revert(connection) == REVISIONS[::-1]
        assert columns_of(connection) == before
        assert (
            connection.exec_driver_sql("SELECT count(*) FROM scheduled_tasks").scalar()
            == 1
        )
        connection.rollback()
        assert migrate.apply(connection, adopt=True) == REVISIONS


def test_a_downgrade_leaves_a_table_that_java_has_made_again(
    pg: sa.Connection,
) -> None:
    """It is not ours, whatever was there before."""
    migrate.apply(pg)
    pg.exec_driver_sql(f"DROP TABLE scheduled_tasks; {DB_SCHEDULER}")
    pg.commit()
    assert migrate.revert(pg) == REVISIONS[::-1]
    assert names(pg) == {"scheduled_tasks", "scheduled_alembic_version"}


def test_no_table_is_dropped_unseen(pg_empty_url: str) -> None:
    """Without a look at the database, nobody knows whose table it is: alembic prints no SQL for
    it.
    """
    assert alembic("upgrade", "head", url=pg_empty_url).returncode == 0
    done = alembic("downgrade", "sw0001:base", "--sql", url=pg_empty_url)
    assert "DROP TABLE scheduled_tasks" not in done.stdout
    assert done.returncode != 0


# -- alembic's own commands -----------------------------------------------------------------------


Done = subprocess.CompletedProcess[str]


def process(*words: str, url: str) -> Done:
    """``alembic …`` in the checkout, as users start it."""
    environment = {**os.environ, "DATABASE_URL": url}
    command = [sys.executable, "-m", "alembic", *words]
    return subprocess.run(
        command,
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def alembic(*words: str, url: str, folder: Path = CHECKOUT) -> Done:
    """The same in this process, which has paid for the imports."""
    line, out, path, status = CommandLine(), io.StringIO(), sys.path.copy(), 0
    with (
        pytest.MonkeyPatch.context() as here,
        redirect_stdout(out),
        redirect_stderr(out),
    ):
        here.chdir(folder)
        here.setenv("DATABASE_URL", url)
        # What an older alembic logs goes to a handler that another test has left, and whose stream
        # is closed.
        here.setattr(logging, "raiseExceptions", False)
        options = line.parser.parse_args(words)
        found = Config(
            "alembic.ini",
            "pyproject.toml",
            ini_section=options.name,
            cmd_opts=options,
            stdout=out,
        )
        try:
            line.run_cmd(found, options)
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            sys.path[:] = path
    return Done(words, status, out.getvalue(), "")


def test_alembic_in_the_checkout(empty_url: str) -> None:
    """upgrade head, check, downgrade base: as everybody knows them."""
    assert alembic("upgrade", "head", url=empty_url).returncode == 0
    with engine_of(empty_url).connect() as connection:
        migrate.check(connection)
    done = alembic("check", url=empty_url)
    assert (done.returncode, done.stdout.strip()) == (
        0,
        "No new upgrade operations detected.",
    )
    assert f"{REVISIONS[-1]} (head)" in alembic("current", url=empty_url).stdout
    assert alembic("downgrade", "base", url=empty_url).returncode == 0
    with engine_of(empty_url).connect() as connection:
        assert names(connection) == {"scheduled_alembic_version"}


def test_alembic_with_names_of_ones_own(pg_empty_url: str) -> None:
    """-x says them; so does the environment."""
    own = ("-x", f"url={pg_empty_url}", "-x", "prefix=jobs_", "-x", "schema=ops")
    assert (
        alembic(
            *own, "upgrade", "head", url="postgresql://nowhere.invalid/x"
        ).returncode
        == 0
    )
    with engine_of(pg_empty_url).connect() as connection:
        migrate.check(connection, prefix="jobs_", schema="ops")
    assert alembic(*own, "check", url="postgresql://nowhere.invalid/x").returncode == 0


USERS_ENV = """
from alembic import context
from sqlalchemy import NullPool, create_engine
from slotwise import migrate

url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        context.configure(connection=connection, include_name=migrate.include_name)
        with context.begin_transaction():
            context.run_migrations()
"""

USERS_REVISION = """
import sqlalchemy as sa
from alembic import op
from slotwise import migrate

revision = "0001"
down_revision = None


def upgrade():
    migrate.apply(op.get_bind())
    op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))


def downgrade():
    op.drop_table("orders")
    migrate.revert(op.get_bind())
"""


def users_project(
    database_url: str, folder: Path, env: str, template: str = ""
) -> None:
    """An alembic project of somebody's; the database's address as SQLAlchemy spells it."""
    address = sa.make_url(database_url)
    if address.get_backend_name() == "postgresql":
        address = address.set(drivername="postgresql+psycopg")
    url = address.render_as_string(hide_password=False)
    (folder / "migrations" / "versions").mkdir(parents=True)
    (folder / "alembic.ini").write_text(
        f"[alembic]\nscript_location = migrations\nsqlalchemy.url = {url}\n"
    )
    (folder / "migrations" / "env.py").write_text(env)
    (folder / "migrations" / "script.py.mako").write_text(template)


def test_within_a_users_own_project(empty_url: str, tmp_path: Path) -> None:
    """Their revision calls apply, and goes on with its own operations. Commands that only look
    write nothing.
    """
    users_project(empty_url, tmp_path, USERS_ENV)
    (tmp_path / "migrations" / "versions" / "0001_orders.py").write_text(
        USERS_REVISION
    )
    theirs = {
        "orders",
        "alembic_version",
        "scheduled_tasks",
        "scheduled_alembic_version",
    }
    for words in (["current"], ["history"], ["heads"], ["upgrade", "head", "--sql"]):
        done = alembic(*words, url=empty_url, folder=tmp_path)
        assert done.returncode == 0, done.stdout
        with engine_of(empty_url).connect() as connection:
            assert not names(connection)
    assert "CREATE TABLE scheduled_tasks" in done.stdout
    assert "CREATE TABLE orders" in done.stdout
    for _ in range(2):
        assert (
            alembic("upgrade", "head", url=empty_url, folder=tmp_path).returncode == 0
        )
    with engine_of(empty_url).connect() as connection:
        assert theirs <= names(connection)
        migrate.check(connection)
    assert alembic("downgrade", "base", url=empty_url, folder=tmp_path).returncode == 0
    assert alembic("current", url=empty_url, folder=tmp_path).returncode == 0
    with engine_of(empty_url).connect() as connection:
        assert "scheduled_tasks" not in names(connection)


AUTOGENERATE = """
from alembic import context
from functools import partial
import sqlalchemy as sa
from slotwise import migrate

metadata = sa.MetaData()
sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True))
own = {{"target_metadata": metadata, {filter}}}
engine = sa.create_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=sa.NullPool)
with engine.connect() as connection:
    context.configure(connection=connection, **own)
    migrate.apply(connection, **{{{names}}})
    connection.commit()
    with context.begin_transaction():
        context.run_migrations()
"""

TEMPLATE = """
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
import sqlalchemy as sa
from alembic import op

def upgrade():
    ${upgrades if upgrades else "pass"}

def downgrade():
    ${downgrades if downgrades else "pass"}
"""


@pytest.mark.parametrize(
    ("names", "filter"),
    [
        ("", '"include_name": migrate.include_name'),
        (
            '"prefix": "jobs_"',
            '"include_name": partial(migrate.include_name, prefix="jobs_")',
        ),
    ],
    ids=["usual names", "a prefix"],
)
def test_a_users_autogenerate_leaves_our_tables_alone(
    empty_url: str, tmp_path: Path, names: str, filter: str
) -> None:
    """With ``include_name`` in their env.py, only their own tables are compared; one that is
    called like ours, too.
    """
    users_project(
        empty_url, tmp_path, AUTOGENERATE.format(names=names, filter=filter), TEMPLATE
    )
    assert alembic("upgrade", "head", url=empty_url, folder=tmp_path).returncode == 0
    with engine_of(empty_url).begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE scheduled_reports (id integer PRIMARY KEY)"
        )
    done = alembic(
        "revision", "--autogenerate", "-m", "mine", url=empty_url, folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "migrations" / "versions").glob("*mine.py")
    upgrade = (
        written.read_text().partition("def upgrade")[2].partition("def downgrade")[0]
    )
    assert "op.create_table('orders'" in upgrade
    assert [line.strip() for line in upgrade.splitlines() if "drop" in line] == [
        "op.drop_table('scheduled_reports')"
    ]
    assert alembic("upgrade", "head", url=empty_url, folder=tmp_path).returncode == 0
    assert (
        "No new upgrade operations"
        in alembic("check", url=empty_url, folder=tmp_path).stdout
    )


def test_include_name_by_schema() -> None:
    """Tables of the same name in another schema are somebody else's."""
    ours = {"schema_name": "ops", "schema_qualified_table_name": "ops.scheduled_tasks"}
    assert not migrate.include_name("scheduled_tasks", "table", ours, schema="ops")
    assert migrate.include_name("scheduled_tasks", "table", ours)
    assert migrate.include_name("scheduled_tasks", "column", {"schema_name": None})
    assert migrate.include_name("scheduled_reports", "table", {"schema_name": None})
    assert not migrate.include_name(
        "scheduled_alembic_version", "table", {"schema_name": None}
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    ("arguments", "url", "words"),
    [
        ([], "", "no database was named; give -x url=URL, set"),
        ([], "postgresql://127.0.0.1:1/x", "cannot be reached"),
        (["-x", "url=nonsense"], "", "the database address is not understood"),
        (["-x", "prefix=a b"], "sqlite://", "must be a lower-case name"),
    ],
    ids=["none", "away", "nonsense", "prefix"],
)
def test_alembic_tells_trouble_in_one_line(
    arguments: list[str], url: str, words: str
) -> None:
    """As alembic tells its own: no traceback."""
    done = (
        process(*arguments, "upgrade", "head", url=url)
        if arguments
        else alembic("upgrade", "head", url=url)
    )
    (line,) = (done.stdout + done.stderr).splitlines()
    assert done.returncode != 0
    assert line.startswith("FAILED: ")
    assert words in line


# -- as SQL ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [None, "ops"])
def test_the_sql_makes_the_tables(
    pg: sa.Connection, pg_empty_url: str, schema: str | None
) -> None:
    """For those who let somebody else run it: on an empty database, in one go; afterwards nothing
    is left to do.
    """
    with psycopg.connect(pg_empty_url, autocommit=True) as administrator:
        administrator.execute(migrate.sql("postgresql", schema=schema).encode())
    migrate.check(pg, schema=schema)
    pg.rollback()
    assert migrate.apply(pg, schema=schema) == []


def test_the_sql_makes_the_tables_in_sqlite_too(sqlite_empty_url: str) -> None:
    """With the program that everybody has."""
    file = sqlite3.connect(sqlite_empty_url.removeprefix("sqlite:///"))
    file.executescript(migrate.sql("sqlite"))
    file.close()
    with engine_of(sqlite_empty_url).connect() as connection:
        migrate.check(connection)
        connection.rollback()
        assert migrate.apply(connection) == []


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_the_same_sql_makes_different_installations(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """The id is made by the database that runs it: a copy of the script is not a copy of the
    installation.
    """
    text = migrate.sql(kind)
    ids = set()
    for prefix in ("a_", "b_"):
        url = request.getfixturevalue(
            {"postgresql": "pg_empty_url", "sqlite": "sqlite_empty_url"}[kind]
        )
        raw = engine_of(url).raw_connection()
        own = text.replace("scheduled_", prefix)
        if kind == "sqlite":
            raw.driver_connection.executescript(own)  # type: ignore[union-attr]
        else:
            raw.cursor().execute(own)
        cursor = raw.cursor()
        cursor.execute(f"SELECT value FROM {prefix}meta WHERE key = 'installation_id'")
        ids.add(cursor.fetchone()[0])  # type: ignore[index]
        raw.commit()
        raw.close()
    assert len(ids) == 2


@pytest.mark.extended
def test_alembics_own_sql(pg_empty_url: str) -> None:
    """alembic upgrade head --sql says the same."""
    done = process("upgrade", "head", "--sql", url=pg_empty_url)
    assert done.returncode == 0
    with psycopg.connect(pg_empty_url, autocommit=True) as administrator:
        administrator.execute(done.stdout.encode())
    with engine_of(pg_empty_url).connect() as connection:
        migrate.check(connection)
