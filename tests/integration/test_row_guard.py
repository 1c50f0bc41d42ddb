"""What db-scheduler would do to a table that it shares: it deletes rows of tasks that it does not
know.
"""

from __future__ import annotations

import psycopg
import pytest

from slotwise import JobRegistry, TaskContext, task
from slotwise.cli.entry import status
from slotwise.cli.shared import exits

JAVA = (
    "INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, kind) "
    "VALUES ('java', '1', now(), false, 1, 'task')"
)


@task(name="mail")
def mail(ctx: TaskContext[int]) -> None: ...


def test_a_table_of_our_own_is_guarded_on_request(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``db check`` warns of a foreign row; after ``--adopt`` foreign deletes leave our rows, and
    ours delete.
    """
    monkeypatch.setenv("DATABASE_URL", pg_url)
    registry = JobRegistry(tasks=[mail], database_url=pg_url)
    for id in ("one", "two"):
        registry.client.schedule(mail, 1, id=id, delay="1h")
    assert status(["db", "check"]) == exits.OK
    assert "another program" not in capsys.readouterr().err
    with psycopg.connect(pg_url, autocommit=True) as java:
        java.execute(JAVA)
        assert status(["db", "check"]) == exits.OK
        assert "slotwise db upgrade --adopt" in capsys.readouterr().err
        assert status(["db", "upgrade", "--adopt"]) == exits.OK
        assert status(["db", "check"]) == exits.OK
        assert "another program" not in capsys.readouterr().err
        assert java.execute("DELETE FROM scheduled_tasks").rowcount == 1
    assert [line.id for line in registry.client.list(mail)] == ["one", "two"]
    registry.client.cancel(mail, "one")
    with psycopg.connect(pg_url) as connection:
        registry.client.cancel(mail, "two", connection=connection)
    assert registry.client.list(mail) == []
    registry.database.close()
    assert status(["db", "downgrade", "--yes"]) == exits.OK


@pytest.mark.parametrize(
    ("changes", "cure"),
    [
        ("", None),
        ("DROP COLUMN priority", "ADD COLUMN priority smallint"),
        ("ADD COLUMN tenant text", None),
        ("ADD COLUMN tenant text NOT NULL DEFAULT 'a'", None),
        ("ADD COLUMN tenant text NOT NULL", "ALTER COLUMN tenant DROP NOT NULL"),
        ("DROP COLUMN version", "choose another name"),
    ],
)
def test_what_db_scheduler_accepts_is_adopted(
    pg_empty_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: str,
    cure: str | None,
) -> None:
    """A table without priority, or with columns of the team's own; else the statement is named."""
    monkeypatch.setenv("DATABASE_URL", pg_empty_url)
    with psycopg.connect(pg_empty_url, autocommit=True) as sql:
        sql.execute(TABLE)
        if changes:
            sql.execute(f"ALTER TABLE scheduled_tasks {changes}".encode())
    found = status(["db", "upgrade", "--adopt"])
    told = capsys.readouterr().err
    assert (found, told) == (exits.OK, "") if cure is None else found and cure in told


TABLE = """
CREATE TABLE scheduled_tasks (
    task_name text NOT NULL, task_instance text NOT NULL, task_data bytea,
    execution_time timestamptz NOT NULL, picked boolean NOT NULL, picked_by text,
    last_success timestamptz, last_failure timestamptz, consecutive_failures integer,
    last_heartbeat timestamptz, version bigint NOT NULL, priority smallint,
    PRIMARY KEY (task_name, task_instance))
"""
