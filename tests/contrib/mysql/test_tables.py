"""The tables of MariaDB: made, checked, dropped, and completed after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.databases import provision
from tests.docs.markdown import blocks

from slotwise import (
    ConfigurationError,
    SchemaMismatch,
    Settings,
    TaskContext,
    migrate,
    task,
)
from slotwise.contrib.db_scheduler.table import COLUMNS
from slotwise.operations import Schema
from slotwise.spi import Database, tables
from slotwise.testing import ManualWorker

CHECKOUT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).with_name("tables.sql")
#: Of db-scheduler's table.
KEY = ("task_name", "task_instance")
WRITES = ("CREATE", "ALTER", "INSERT", "UPDATE", "DROP", "DELETE")


def engine_of(url: str) -> sa.Engine:
    return Database(Settings(database_url=url)).migrations()


def test_an_upgrade_makes_all_tables_that_the_code_knows(mysql_empty_url: str) -> None:
    schema = Schema(Settings(database_url=mysql_empty_url))
    assert schema.upgrade().applied[0] == "sw0001"
    assert schema.check() == []
    assert schema.upgrade().applied == []
    inspector = sa.inspect(engine_of(mysql_empty_url))
    for table in tables().metadata.sorted_tables:
        found = {one["name"]: one for one in inspector.get_columns(table.name)}
        assert {column.name for column in table.columns} <= found.keys()
        for column in table.columns:
            assert found[column.name]["nullable"] == column.nullable, column
        key = inspector.get_pk_constraint(table.name)["constrained_columns"]
        assert key == [column.name for column in table.primary_key]


class Killed(BaseException):
    """What ends the process of an upgrade, as far as this test is concerned."""


def kill_after_each_write(
    url: str, work: Callable[[sa.Connection], object]
) -> list[str]:
    """Do the work again and again, each time until the first write that no run has come to."""
    written: list[str] = []
    while True:
        engine = engine_of(url)

        def die(
            connection: sa.Connection, _cursor: object, text: str, *_: object
        ) -> None:
            if text.lstrip().startswith(WRITES) and text not in written:
                written.append(text)
                connection.invalidate()
                raise Killed

        sa.event.listen(engine, "after_cursor_execute", die)
        try:
            with engine.connect() as connection:
                work(connection)
        except Killed:
            continue
        return written


def test_an_upgrade_killed_after_each_statement_is_completed(
    mysql_empty_url: str,
) -> None:
    written = kill_after_each_write(mysql_empty_url, migrate.apply)
    assert len([one for one in written if "CREATE TABLE" in one]) > 20
    schema = Schema(Settings(database_url=mysql_empty_url))
    assert schema.upgrade().applied == []
    assert schema.check() == []
    with engine_of(mysql_empty_url).connect() as connection:
        count = connection.scalar(sa.text("SELECT count(*) FROM scheduled_meta"))
    assert count == 2


def test_a_downgrade_killed_after_each_statement_is_completed(
    mysql_empty_url: str,
) -> None:
    provision(mysql_empty_url)
    kill_after_each_write(mysql_empty_url, migrate.revert)
    left = sa.inspect(engine_of(mysql_empty_url)).get_table_names()
    assert left == ["scheduled_alembic_version"]
    schema = Schema(Settings(database_url=mysql_empty_url))
    schema.upgrade()
    assert schema.check() == []


@pytest.mark.parametrize("work", [migrate.apply, migrate.revert])
def test_nothing_is_committed_of_a_callers_transaction(
    mysql_empty_url: str, work: Callable[[sa.Connection], object]
) -> None:
    engine = engine_of(mysql_empty_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id int PRIMARY KEY)"))
    with engine.connect() as connection:
        connection.execute(sa.text("INSERT INTO orders VALUES (1)"))
        with pytest.raises(ConfigurationError, match="commit it first"):
            work(connection)
        connection.rollback()
        assert connection.scalar(sa.text("SELECT count(*) FROM orders")) == 0


def test_the_printed_sql_makes_the_same_tables(
    mysql_empty_url: str, mysql_url: str
) -> None:
    address = mysql_empty_url.replace("mysql:", "mariadb:")
    schema = Schema(Settings(database_url=address))
    printed = schema.sql()
    with engine_of(mysql_empty_url).connect() as connection:
        for statement in printed.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("%", "%%"))
        connection.commit()
    assert schema.check() == []
    found = [
        {
            table: sa.inspect(engine_of(url)).get_columns(table)
            for table in ("scheduled_tasks", "scheduled_slots")
        }
        for url in (mysql_empty_url, mysql_url)
    ]
    assert repr(found[0]) == repr(found[1])


def test_two_upgrades_at_once_make_the_tables_once(mysql_empty_url: str) -> None:
    command = [
        *(sys.executable, "-m", "slotwise", "db", "upgrade"),
        *("--database-url", mysql_empty_url),
    ]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    for process in running:
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 0, output
    assert Schema(Settings(database_url=mysql_empty_url)).check() == []


def test_alembic_makes_and_drops_them_too(mysql_empty_url: str) -> None:
    for arguments in (["upgrade", "head"], ["downgrade", "base"], ["upgrade", "head"]):
        command = [
            *(sys.executable, "-m", "alembic", "-x", f"url={mysql_empty_url}"),
            *arguments,
        ]
        done = subprocess.run(
            command, cwd=CHECKOUT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert Schema(Settings(database_url=mysql_empty_url)).check() == []


def test_a_table_of_db_scheduler_is_not_shared(mysql_empty_url: str) -> None:
    foreign = sa.Table(
        "scheduled_tasks",
        sa.MetaData(),
        *(
            sa.Column(
                name,
                sa.String(100) if name in KEY else sa.Integer,
                primary_key=name in KEY,
            )
            for name in COLUMNS
        ),
    )
    foreign.create(engine_of(mysql_empty_url))
    schema = Schema(Settings(database_url=mysql_empty_url))
    for adopt in (False, True):
        with pytest.raises(SchemaMismatch, match="only on PostgreSQL"):
            schema.upgrade(adopt=adopt)


def test_what_somebody_dropped_is_named_with_its_cure(mysql_empty_url: str) -> None:
    provision(mysql_empty_url)
    schema = Schema(Settings(database_url=mysql_empty_url))
    with engine_of(mysql_empty_url).begin() as connection:
        connection.execute(
            sa.text("DROP INDEX scheduled_tasks_due ON scheduled_tasks")
        )
    with pytest.raises(SchemaMismatch, match="index scheduled_tasks_due"):
        schema.check()


#: As db-scheduler makes it on MariaDB.
OF_JAVA = """CREATE TABLE scheduled_tasks (
    task_name varchar(100) NOT NULL, task_instance varchar(100) NOT NULL, task_data blob,
    execution_time timestamp(6) NOT NULL, picked boolean NOT NULL, picked_by varchar(50),
    last_success timestamp(6) NULL, last_failure timestamp(6) NULL, consecutive_failures int,
    last_heartbeat timestamp(6) NULL, version bigint NOT NULL, priority smallint,
    PRIMARY KEY (task_name, task_instance))"""


def test_rows_of_db_scheduler_are_copied_as_the_page_says(
    mysql_empty_url: str,
) -> None:
    """And a worker runs them, with their data."""
    (block,) = (
        one
        for one in blocks(CHECKOUT / "docs/migrating.md", "sql")
        if "java_tasks" in one.code
    )
    rename, copy = (
        part.split("--")[0] if part.startswith("RENAME") else part.partition("\n")[2]
        for part in (block.code.split(";")[0], block.code.split(";")[1])
    )
    database = Database(Settings(database_url=mysql_empty_url))
    with database.migrations().begin() as connection:
        connection.exec_driver_sql(OF_JAVA)
        connection.exec_driver_sql(
            "INSERT INTO scheduled_tasks (task_name, task_instance, task_data, "
            "execution_time, picked, version) VALUES "
            "('send-mail', '1', '\"ann\"', '2020-01-01', 0, 7), "
            "('other', '1', NULL, utc_timestamp(6), 0, 1)"
        )
        connection.exec_driver_sql(rename)
    provision(mysql_empty_url)
    with database.migrations().begin() as connection:
        assert connection.exec_driver_sql(copy).rowcount == 1
    sent: list[str] = []

    @task(name="send-mail")
    def send_mail(ctx: TaskContext[str]) -> None:
        sent.append(ctx.data)

    with ManualWorker([send_mail], database) as worker:
        assert [ended.outcome for ended in worker.run_due()] == ["succeeded"]
    assert sent == ["ann"]
    database.close()


def test_the_tables_stay_as_they_were_released() -> None:
    """Revisions keep their text. SLOTWISE_WRITE_GOLDEN=1 writes it anew."""
    printed = Schema(Settings(database_url="mariadb://me@host/mine")).sql()
    if os.environ.get("SLOTWISE_WRITE_GOLDEN"):
        GOLDEN.write_text(printed)
    assert printed == GOLDEN.read_text()
