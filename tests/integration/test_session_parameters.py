"""Parameters that role or database set for sessions: none changes what our statements mean."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from tests.databases import Databases
from tests.integration.test_formats import DEFINITIONS, runs_once
from tests.kit.connections import PINNED, ROW_SECURITY, Database
from tests.store.bench import Bench

from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.errors import DatabaseProblem
from slotwise.settings.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "connections.md"
#: Each with a value that our statements do not expect.
HOSTILE = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "datestyle": "German",
    "default_transaction_isolation": "serializable",
    "exit_on_error": "on",
    "extra_float_digits": "-5",
    "intervalstyle": "iso_8601",
    "quote_all_identifiers": "on",
    "row_security": "on",
    "standard_conforming_strings": "off",
    "timezone": "Asia/Kathmandu",
    "transform_null_equals": "on",
    "xmloption": "document",
}


def set_for_all(url: str, values: Mapping[str, str]) -> None:
    """Set parameters for each later session of this database."""
    database = sql.Identifier(make_url(url).database or "")
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in values.items():
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                    database, sql.SQL(name), sql.Literal(value)
                )
            )


@pytest.fixture
def hostile(databases: Databases) -> Iterator[str]:
    with databases.provisioned() as url:
        set_for_all(url, HOSTILE)
        yield url


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
def test_pinned_parameters(hostile: str, pooler: bool) -> None:
    """Each kind of connection has the pinned values, and rows with empty columns are read."""
    with closing(Database(Settings(database_url=hostile, pooler=pooler))) as database:
        for engine in (
            database.main,
            database.heart,
            database.claims,
            database.migrations(),
        ):
            with engine.begin() as connection:
                for name, value in (PINNED | ROW_SECURITY).items():
                    found = connection.scalar(sa.select(sa.func.current_setting(name)))
                    assert (name, found.split(",")[0]) == (name, value)
        runs_once(Bench(database, DEFINITIONS).planned())


def test_check_names_a_changed_parameter(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a superuser can switch the triggers off for a role, and only they can undo it."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    set_for_all(pg_url, {"session_replication_role": "replica"})
    assert status(["db", "check"]) == exits.OK
    assert "session_replication_role is replica" in capsys.readouterr().err


@contextmanager
def secured(url: str, *tables: str) -> Iterator[str]:
    """Switch row-level security on, without a policy; yield the address of a role that it
    concerns.
    """
    address = make_url(url)
    name = f"{address.database}_secured"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        connection.execute(
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name};"
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}"
        )
        for table in tables:
            connection.execute(
                f"ALTER TABLE scheduled_{table} ENABLE ROW LEVEL SECURITY"
            )
        yield address.set(username=name, password="secret").render_as_string(False)
        connection.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


SECURED = [
    ("tasks",),
    ("slots",),
    ("meta",),
    ("workers",),
    ("tasks", "slots", "gaps", "meta"),
]


@pytest.mark.parametrize("tables", SECURED, ids="-".join)
@pytest.mark.parametrize(
    "command", [["health"], ["jobs"], ["db", "check"]], ids=" ".join
)
def test_hidden_rows_are_an_error(
    pg_url: str,
    tables: tuple[str, ...],
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What row-level security hides is not taken for missing; no advice would drop the tables."""
    with secured(pg_url, *tables) as url:
        monkeypatch.setenv("DATABASE_URL", url)
        code = status(command)
        said = capsys.readouterr().err
        assert code != exits.OK
        assert "row-level security" in said
        assert "downgrade" not in said


def test_hidden_rows_stop_a_worker(pg_url: str) -> None:
    """A claim and a read fail rather than find nothing."""
    with (
        secured(pg_url, "tasks") as url,
        closing(Database(Settings(database_url=url))) as database,
        pytest.raises((DatabaseProblem, DBAPIError), match="row-level security"),
    ):
        Bench(database, DEFINITIONS).claim()


def test_a_tenant_says_that_its_rows_are_hidden(pg_url: str) -> None:
    """With policies, and `row_security` in the address, a role works on the rows that it sees."""
    with (
        secured(pg_url, "tasks") as url,
        psycopg.connect(pg_url, autocommit=True) as owner,
    ):
        owner.execute(
            "CREATE POLICY mine ON scheduled_tasks USING (task_name IN ('plain', 'mail'))"
        )
        tenant = f"{url}?options=-c%20row_security%3Don"
        with closing(Database(Settings(database_url=tenant))) as database:
            runs_once(Bench(database, DEFINITIONS).planned())


def test_the_page_explains_each_other_parameter(pg_url: str) -> None:
    """A release of PostgreSQL may add one: somebody then decides whether it is pinned."""
    section = (
        PAGE.read_text().partition("## Session parameters")[2].partition("\n## ")[0]
    )
    explained = set(re.findall(r"`([a-zA-Z_*.]+)`", section))
    with psycopg.connect(pg_url) as connection:
        found = connection.execute(
            "SELECT name FROM pg_settings WHERE context IN "
            "('user', 'superuser', 'backend', 'superuser-backend')"
        ).fetchall()
    names = {name for (name,) in found}
    missing = {
        name
        for name in names
        if not any(fnmatch.fnmatch(name, known) for known in explained)
    }
    assert not missing, "no row of the table has these"
