"""What a database does not let us do is told in one line: who was refused, what, and what helps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
import sqlalchemy as sa

from slotwise.cli import exits
from slotwise.cli.entry import status
from slotwise.errors import DatabaseRefused
from slotwise.settings import Settings
from slotwise.store.database import Database

SCHEDULE = ["tasks", "schedule", "mail"]
LOOK = "GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON scheduled_meta TO {role};"


@pytest.fixture
def role(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One that may do nothing with the tables, and commands are given under."""
    name = f"limited_{sa.make_url(pg_url).database}"
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'geheim'")
        owner.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        address = sa.make_url(pg_url).set(username=name, password="geheim")
        monkeypatch.setenv("DATABASE_URL", address.render_as_string(hide_password=False))
        yield name
        owner.execute(f"DROP OWNED BY {name}")
        owner.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize(
    ("rights", "command", "words"),
    [
        ("", ["health"], ["are in the schema public, and role '{role}' may not use it",
                          "run: GRANT USAGE ON SCHEMA public TO {role}"]),
        ("GRANT USAGE ON SCHEMA public TO {role}", ["health"],
         ["permission denied for table scheduled_meta, for role '{role}' [42501]", "Permissions"]),
        (LOOK, SCHEDULE, ["permission denied for table scheduled_tasks, for role '{role}'", "Permissions"]),
        ("GRANT USAGE ON SCHEMA public TO {role}", ["db", "upgrade", "--table-prefix", "x_"],
         ["permission denied for schema public, for role '{role}'"]),
        (LOOK + "ALTER ROLE {role} SET search_path = elsewhere", ["health"],
         ["in the schema public, and the search_path of role '{role}' is elsewhere; say --schema public"]),
        (LOOK, ["health", "--schema", "nowhere"], ["missing in the schema nowhere (there are such in: public); run:"]),
        (LOOK + "GRANT ALL ON scheduled_tasks TO {role}; ALTER ROLE {role} SET default_transaction_read_only = on",
         SCHEDULE, ["cannot execute INSERT in a read-only transaction [25006]; connect to the primary"]),
    ],
    ids=["schema", "table", "write", "create", "search-path", "wrong-schema", "read-only"],
)  # fmt: skip
def test_refused(
    pg_url: str, role: str, rights: str, command: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Role, object and cure; exit status 3."""
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(rights.format(role=role) or "SELECT")
    assert status(command) == exits.DATABASE
    (line,) = capsys.readouterr().err.splitlines()
    for word in words:
        assert word.format(role=role) in line


def test_health_has_an_answer_nevertheless(role: str, pg_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A probe that reads JSON reads why."""
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
    assert status(["health", "--json"]) == exits.DATABASE
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    assert "permission denied for table scheduled_meta" in told["problems"][0]


def test_not_let_into_the_database(pg_url: str, role: str) -> None:
    """No outage, for which a worker would wait: the server is there, and says no."""
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(f"REVOKE CONNECT ON DATABASE {sa.make_url(pg_url).database} FROM PUBLIC")
    with (
        closing(Database(Settings.load())) as database,
        pytest.raises(DatabaseRefused, match="GRANT CONNECT ON DATABASE"),
    ):
        database.verify()
