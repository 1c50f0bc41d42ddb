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


def test_other_programs_delete_no_row_of_ours(pg_url: str) -> None:
    """In each installation. Our own deletes pass, also in the caller's transaction; and a person's,
    of dead tasks or of rows that are marked.
    """
    registry = JobRegistry(tasks=[mail], database_url=pg_url)
    for id in ("one", "two", "dead", "marked"):
        registry.client.schedule(mail, 1, id=id, delay="1h")
    with psycopg.connect(pg_url, autocommit=True) as java:
        java.execute(JAVA)
        assert java.execute("DELETE FROM scheduled_tasks").rowcount == 1
        for state in ("dead", "deleted"):
            id = "marked" if state == "deleted" else state
            java.execute(
                "UPDATE scheduled_tasks SET state = %s WHERE task_instance = %s",
                (state, id),
            )
        assert java.execute("DELETE FROM scheduled_tasks").rowcount == 2
    assert [line.id for line in registry.client.list(mail)] == ["one", "two"]
    registry.client.cancel(mail, "one")
    with psycopg.connect(pg_url) as connection:
        registry.client.cancel(mail, "two", connection=connection)
    assert registry.client.list(mail) == []
    registry.database.close()


@pytest.mark.parametrize(
    "how",
    [
        "ALTER TABLE scheduled_tasks DISABLE TRIGGER scheduled_keep_rows",
        "DROP TRIGGER scheduled_keep_rows ON scheduled_tasks",
    ],
)
def test_a_missing_guard_is_warned_of(
    pg_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
) -> None:
    """With both cures."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    assert status(["db", "check"]) == exits.OK
    assert "keep_rows" not in capsys.readouterr().err
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(how.encode())
    assert status(["db", "check"]) == exits.OK
    told = capsys.readouterr().err
    assert "ENABLE TRIGGER scheduled_keep_rows" in told
    assert "slotwise db upgrade --sql" in told


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
