"""A word that goes along with a statement: heard after the commit, and never a reason to fail."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from tests.connections import Open
from tests.kit.connections import ALONG, can_go_along
from tests.kit.patience import PATIENCE
from tests.store.hearing import hearing

from slotwise import JobContext, JobRegistry, task
from slotwise.spi import Database


@task(name="mail")
def mail(ctx: JobContext) -> None:
    """Does nothing."""


@pytest.fixture
def opened(database: Open) -> Database:
    made = database()
    made.verify()
    with made.main.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE one (id serial PRIMARY KEY)")
    return made


def saying(database: Database, channel: str) -> Connection:
    return database.main.connect().execution_options(
        isolation_level="AUTOCOMMIT", **{ALONG: (channel, ["word"])}
    )


def count(database: Database) -> Any:
    with database.main.connect() as connection:
        return connection.exec_driver_sql("SELECT count(*) FROM one").scalar_one()


def test_who_hears_it_sees_the_row(pg_url: str) -> None:
    """The first call, whose word goes along; and those within its pause, whose word comes after
    them.
    """
    registry = JobRegistry(tasks=[mail], database_url=pg_url, process_hook=False)
    with psycopg.connect(pg_url, autocommit=True) as ear:
        ear.execute("LISTEN scheduled_wake")
        for number in range(1, 6):
            registry.client.schedule(mail, id=str(number))
            assert [
                notify.payload
                for notify in ear.notifies(timeout=PATIENCE, stop_after=1)
            ] == ["mail"]
            assert ear.execute("SELECT count(*) FROM scheduled_tasks").fetchone() == (
                number,
            )
    registry.database.close()


def test_who_only_schedules_makes_one_trip(pg_url: str) -> None:
    """Where the server itself answers and it is the word's turn, nothing else is sent once it has
    connected.
    """
    registry = JobRegistry(tasks=[mail], database_url=pg_url, process_hook=False)
    registry.database.verify()
    with hearing(registry.database) as sent:
        registry.client.schedule(mail)
    registry.database.close()
    assert [statement.split()[0] for statement, _ in sent] == ["INSERT"]


def test_it_is_said_after_the_commit_and_not_in_it(opened: Database) -> None:
    """In one transaction it would hold a lock of the whole server while the commit is flushed."""
    assert (
        min(transactions_of_one(opened) for _ in range(5)) == 2
    )  # others count theirs on this server, too


def transactions_of_one(opened: Database) -> int:
    with saying(opened, "ours") as connection:
        (of_the_row,) = connection.exec_driver_sql(
            "INSERT INTO one DEFAULT VALUES RETURNING pg_current_xact_id()::text"
        )
    with opened.main.connect() as connection:
        after = connection.exec_driver_sql(
            "SELECT pg_current_xact_id()::text"
        ).scalar_one()
    return int(after) - int(of_the_row[0])


def test_where_the_statement_fails_that_is_raised(opened: Database) -> None:
    """And the connection serves on."""
    for _ in range(2):
        with saying(opened, "ours") as connection:
            if not count(opened):
                connection.exec_driver_sql("INSERT INTO one VALUES (1)")
                continue
            with pytest.raises(IntegrityError):
                connection.exec_driver_sql("INSERT INTO one VALUES (1)")
            assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    assert count(opened) == 1


def test_a_word_that_cannot_be_said_is_nobodys_error(opened: Database) -> None:
    """The statement is committed: to raise would be to deny it."""
    with saying(opened, "x" * 100) as connection:
        assert (
            connection.exec_driver_sql(
                "INSERT INTO one VALUES (1) RETURNING id"
            ).scalar_one()
            == 1
        )
    assert count(opened) == 1


def test_an_old_libpq_sends_it_afterwards(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot send what it has no reply for yet."""
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    assert not can_go_along()
    registry = JobRegistry(tasks=[mail], database_url=pg_url, process_hook=False)
    registry.database.verify()
    with hearing(registry.database) as sent:
        registry.client.schedule(mail)
    registry.database.close()
    assert ["pg_notify" in statement for statement, _ in sent] == [False, True]


def test_a_refused_statement_is_no_warning_of_the_pipeline(
    opened: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Race: its error may come before the block of the pipeline has ended, so the test tries it
    often.
    """
    with saying(opened, "ours") as connection:
        connection.exec_driver_sql("INSERT INTO one VALUES (1)")
        for _ in range(300):
            with pytest.raises(IntegrityError):
                connection.exec_driver_sql("INSERT INTO one VALUES (1)")
    assert [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("psycopg")
    ] == []
