"""``slotwise db``: the tables come, are checked, and go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from tests.integration.shell import Shell
from tests.store.bench import DB_SCHEDULER, JAVA_ROW

from slotwise import Settings
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.spi import Database


@pytest.fixture(params=["pg_empty_url", "sqlite_empty_url"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database of either kind, named by the environment."""
    found: str = request.getfixturevalue(request.param)
    monkeypatch.setenv("DATABASE_URL", found)
    return found


@pytest.fixture
def connection(url: str) -> Iterator[sa.Connection]:
    """A connection to it."""
    database = Database(Settings.load(environ={}, database_url=url))
    with database.migrations().connect() as made:
        yield made
    database.close()


def tables(connection: sa.Connection, schema: str | None = None) -> set[str]:
    found = set(sa.inspect(connection).get_table_names(schema=schema))
    connection.rollback()
    return found


@pytest.mark.parametrize(
    "command",
    [
        ["db", "check"],
        ["db", "downgrade", "--yes"],
        ["jobs"],
        ["health"],
        ["slots", "x"],
    ],
    ids=" ".join,
)
def test_a_mistyped_path_makes_no_file(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only db upgrade makes one; everything else says in one line that there is none."""
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'mistyped.db'}")
    assert status(command) == exits.DATABASE
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no SQLite file" in line
    assert list(tmp_path.iterdir()) == []


def test_life(
    connection: sa.Connection,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Upgrade makes the tables, a second one finds nothing to do, check agrees, downgrade takes
    them away.

    Nothing is warned about: a migration has no deadlines that a pooler could have swallowed.
    """
    assert status(["db", "check"]) == exits.DATABASE
    assert status(["db", "upgrade"]) == exits.OK
    assert status(["db", "upgrade"]) == exits.OK
    assert status(["db", "check"]) == exits.OK
    assert {"scheduled_tasks", "scheduled_slots"} <= tables(connection)
    assert status(["db", "downgrade", "--yes"]) == exits.OK
    assert "scheduled_tasks" not in tables(connection)
    assert status(["db", "check"]) == exits.DATABASE
    told = capsys.readouterr()
    assert "warning" not in told.err
    assert told.out.splitlines() == [
        "no tables; this slotwise needs version 1",
        "applied sw0001, sw0002, sw0003, sw0004, sw0005, sw0006, sw0007",
        "nothing to do: the tables are up to date",
        "all in place: schema version 1, revision sw0007",
        "reverted sw0007, sw0006, sw0005, sw0004, sw0003, sw0002, sw0001",
        "no tables; this slotwise needs version 1",
    ]
    assert caplog.text == ""


@pytest.mark.extended
@pytest.mark.parametrize("damage", ["DROP TABLE", "DELETE FROM"])
def test_somebody_dropped_alembics_own_table(
    connection: sa.Connection, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither is all in place, nor are the tables made again; the cure is in the line."""
    assert status(["db", "upgrade"]) == exits.OK
    connection.exec_driver_sql(f"{damage} scheduled_alembic_version")
    connection.commit()
    capsys.readouterr()
    for order in ("check", "upgrade"):
        assert status(["db", order]) == exits.DATABASE
        words, cure = capsys.readouterr().err.strip().split("; run in SQL: ")
        assert "scheduled_alembic_version does not say of which revision" in words
    for statement in cure.split("; "):
        connection.exec_driver_sql(statement)
    connection.commit()
    assert status(["db", "check"]) == exits.OK
    assert status(["db", "upgrade"]) == exits.OK


@pytest.mark.parametrize(
    "lost",
    [
        "tasks",
        *(
            pytest.param(one, marks=pytest.mark.extended)
            for one in ("gaps", "slots", "meta")
        ),
    ],
)
def test_somebody_dropped_a_table(
    connection: sa.Connection, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An upgrade does not say that all is well; what it names as the cure is one."""
    assert status(["db", "upgrade"]) == exits.OK
    connection.exec_driver_sql(f"DROP TABLE scheduled_{lost}")
    connection.commit()
    capsys.readouterr()
    assert status(["db", "upgrade"]) == exits.DATABASE
    told = capsys.readouterr()
    assert "nothing to do" not in told.out
    assert f"missing in the database: table scheduled_{lost}" in told.err
    assert "downgrade" not in told.err
    assert status(["db", "upgrade", "--sql"]) == exits.OK
    for statement in capsys.readouterr().out.split(";"):
        if (
            f"TABLE scheduled_{lost} " in statement
            or f" ON scheduled_{lost} " in statement
        ):
            connection.exec_driver_sql(statement.replace("%", "%%"))
    connection.commit()
    if lost == "meta":
        assert status(["db", "check"]) == exits.DATABASE
        cure = capsys.readouterr().err.partition("say so: ")[2]
        connection.exec_driver_sql(cure)
        connection.commit()
    assert status(["db", "check"]) == exits.OK


def test_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command answers programs, too."""
    told = []
    for arguments in (
        ["upgrade"],
        ["upgrade"],
        ["check"],
        ["downgrade", "--yes"],
    ):
        assert status(["db", *arguments, "--json"]) == exits.OK
        told.append(json.loads(capsys.readouterr().out))
    assert told == [
        {
            "applied": [
                "sw0001",
                "sw0002",
                "sw0003",
                "sw0004",
                "sw0005",
                "sw0006",
                "sw0007",
            ],
            "warnings": [],
        },
        {"applied": [], "warnings": []},
        {
            "version": 1,
            "needed": 1,
            "revision": "sw0007",
            "problem": None,
            "warnings": [],
        },
        {
            "reverted": [
                "sw0007",
                "sw0006",
                "sw0005",
                "sw0004",
                "sw0003",
                "sw0002",
                "sw0001",
            ]
        },
    ]


def test_check_warns_where_commits_do_not_wait_for_the_disk(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All is in place, so the status is 0; one line names what a crash of the server costs, and
    the cure.
    """
    monkeypatch.setenv("DATABASE_URL", pg_url)
    with psycopg.connect(pg_url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name)
        )
    assert status(["db", "check"]) == exits.OK
    told = capsys.readouterr()
    assert told.out == "all in place: schema version 1, revision sw0007\n"
    (line,) = told.err.splitlines()
    assert line.startswith(
        "warning: synchronous_commit is off: a crash of the server loses its latest commits"
    )
    assert status(["db", "check", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == {
        "version": 1,
        "needed": 1,
        "revision": "sw0007",
        "problem": None,
        "warnings": [line.removeprefix("warning: ")],
    }


@pytest.mark.parametrize(
    ("revision", "words"),
    [
        ("base", "will be lost"),
        ("sw0001", "The histories of deploys and workers and the hourly counts"),
        ("sw0003", "The histories of deploys and workers and the hourly counts"),
        ("sw0004", "Incidents and the ends of pauses"),
        ("sw0005", "The checkpoints of handlers will be lost"),
        ("sw0006", "The events and the rows that were set aside will be lost"),
        ("sw0007", "no data is lost"),
        ("-2", "will be lost"),
    ],
)
def test_downgrade_tells_whether_data_is_lost(
    connection: sa.Connection,
    revision: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a terminal it refuses, and shows what it would have asked."""
    assert status(["db", "downgrade", "--revision", revision]) == exits.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("applied", "revision"), [("sw0001", "sw0002"), (None, "sw0001")]
)
def test_a_downgrade_does_not_go_up(
    connection: sa.Connection,
    applied: str | None,
    revision: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever names a revision above the applied one is told which one that is."""
    if applied:
        assert status(["db", "upgrade", "--revision", applied]) == exits.OK
    capsys.readouterr()
    assert status(["db", "downgrade", "--revision", revision, "--yes"]) == exits.FAILED
    there = (
        f"the applied revision, {applied}"
        if applied
        else "the database, where none is applied"
    )
    assert f"--revision {revision} is above {there}" in capsys.readouterr().err
    assert status(["db", "check"]) == exits.DATABASE
    assert (
        "schema version 1, revision sw0001" if applied else "no tables;"
    ) in capsys.readouterr().out


def test_a_downgrade_of_an_adopted_table(
    pg_empty_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It goes back to Java with its rows, and the question says so."""
    monkeypatch.setenv("DATABASE_URL", pg_empty_url)
    with psycopg.connect(pg_empty_url, autocommit=True) as java:
        java.execute(DB_SCHEDULER)
        java.execute(
            f"INSERT INTO scheduled_tasks {JAVA_ROW} VALUES ('java', '1', now(), false, 1)"
        )
        assert status(["db", "upgrade", "--adopt"]) == exits.OK
        assert status(["db", "downgrade"]) == exits.USAGE
        assert (
            "A table adopted from db-scheduler keeps its columns and rows."
            in capsys.readouterr().err
        )
        assert status(["db", "downgrade", "--yes"]) == exits.OK
        assert java.execute(
            "SELECT task_name, version FROM scheduled_tasks"
        ).fetchall() == [("java", 1)]


def test_upgrade_to_a_revision(
    connection: sa.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to the named one; what is beyond it already stays."""
    first = ["--revision", "sw0001"]
    for words, told in [
        (first, "applied sw0001"),
        ([], "applied sw0002, sw0003, sw0004, sw0005, sw0006, sw0007"),
        (first, "nothing to do"),
    ]:
        assert status(["db", "upgrade", *words]) == exits.OK
        assert capsys.readouterr().out.startswith(told)


def test_check_names_revisions_that_were_not_applied(
    connection: sa.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the tables of one of them it fails, and says how to make them; a revision of a newer
    release is no trouble.
    """
    assert (
        status(["db", "upgrade"])
        == status(["db", "downgrade", "--revision", "sw0001", "--yes"])
        == exits.OK
    )
    capsys.readouterr()
    assert status(["db", "check"]) == exits.DATABASE
    told = capsys.readouterr().err
    assert told.startswith(
        "error: missing in the database: table scheduled_checkpoints, "
    )
    assert told.endswith(
        "not applied: sw0002, sw0003, sw0004, sw0005, sw0006, sw0007; run: slotwise db upgrade\n"
    )
    assert status(["db", "upgrade"]) == exits.OK
    connection.exec_driver_sql(
        "UPDATE scheduled_alembic_version SET version_num = 'sw9999'"
    )
    connection.commit()
    capsys.readouterr()
    assert status(["db", "check"]) == exits.OK
    assert capsys.readouterr().err == ""


def test_other_names(
    connection: sa.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prefix, and in PostgreSQL a schema, hold for every command."""
    where = ["--table-prefix", "x_"]
    if connection.dialect.name == "postgresql":
        where += ["--schema", "jobs"]
    assert status(["db", "upgrade", *where]) == exits.OK
    assert status(["db", *where, "check"]) == exits.OK
    assert status([*where, "workers"]) == exits.OK
    if "--schema" in where:
        capsys.readouterr()
        assert (
            status(["db", "check", "--schema", "other", "--table-prefix", "x_"])
            == exits.DATABASE
        )
        assert (
            "run: slotwise db upgrade --schema other --table-prefix x_"
            in capsys.readouterr().err
        )
    assert "x_tasks" in tables(connection, "jobs" if "--schema" in where else None)
    assert status(["db", "check"]) == exits.DATABASE
    assert status(["db", "downgrade", "--yes", *where]) == exits.OK
    assert status(["db", "check", *where]) == exits.DATABASE


@pytest.mark.extended
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "DROP TABLE scheduled_gaps",
            [
                "missing in the database: table scheduled_gaps",
                "slotwise db upgrade --sql",
            ],
        ),
        (
            "DROP INDEX scheduled_tasks_due",
            [
                "missing in the database: index scheduled_tasks_due",
                "slotwise db upgrade --sql",
            ],
        ),
        (
            "UPDATE scheduled_meta SET value = 'x' WHERE key = 'schema_version'",
            [
                "scheduled_meta is 'x', which is none",
                "SET value = '1' WHERE key = 'schema_version'",
            ],
        ),
        (
            "UPDATE scheduled_meta SET value = '99' WHERE key = 'schema_version'",
            ["version 99", "upgrade slotwise here"],
        ),
    ],
    ids=["table", "index", "damaged", "newer"],
)
@pytest.mark.parametrize(
    "command", [["db", "check"], ["workers"], ["health"]], ids=" ".join
)
def test_check(
    connection: sa.Connection,
    change: str,
    words: list[str],
    command: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line says what is wrong and which command mends it, to whoever meets it."""
    assert status(["db", "upgrade"]) == exits.OK
    connection.exec_driver_sql(change)
    connection.commit()
    capsys.readouterr()
    assert status(command) == exits.DATABASE
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["downgrade", "--yes", "--revision", "nope"],
            [
                "--revision 'nope' is none of base, sw0001, sw0002, sw0003, sw0004, "
                "sw0005, sw0006, sw0007"
            ],
        ),
        (
            ["upgrade", "--revision", "nope"],
            [
                "--revision 'nope' is none of base, sw0001, sw0002, sw0003, sw0004, "
                "sw0005, sw0006, sw0007"
            ],
        ),
        (
            ["upgrade"],
            ["revision sw9999, by scheduled_alembic_version", "upgrade slotwise here"],
        ),
    ],
    ids=["mistyped", "mistyped upwards", "of a newer release"],
)
def test_unknown_revision(
    connection: sa.Connection,
    command: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, no matter who named a revision that is not here; nothing is changed."""
    assert status(["db", "upgrade"]) == exits.OK
    if command == ["upgrade"]:
        connection.exec_driver_sql(
            "UPDATE scheduled_alembic_version SET version_num = 'sw9999'"
        )
        connection.commit()
    capsys.readouterr()
    assert status(["db", *command]) == exits.DATABASE
    (line,) = capsys.readouterr().err.splitlines()
    for word in words:
        assert word in line
    assert "scheduled_tasks" in tables(connection)


def test_nothing_to_adopt(
    connection: sa.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever mistypes the schema is told, not given half a set of tables."""
    assert status(["db", "upgrade", "--adopt"]) == exits.DATABASE
    assert (
        capsys.readouterr().err
        == "error: there is no table scheduled_tasks to adopt; leave --adopt out\n"
    )
    assert tables(connection) == set()


def test_foreign_table(
    connection: sa.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """A foreign scheduled_tasks is left alone, and the ways out are named."""
    connection.exec_driver_sql("CREATE TABLE scheduled_tasks (id integer PRIMARY KEY)")
    connection.commit()
    assert status(["db", "upgrade"]) == exits.DATABASE
    assert "--table-prefix" in capsys.readouterr().err
    assert tables(connection) == {"scheduled_tasks"}
    assert status(["db", "upgrade", "--table-prefix", "mine_"]) == exits.OK


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE TYPE scheduled_tasks AS ENUM ('a')", "type scheduled_tasks"),
        ("CREATE TYPE scheduled_slots AS (a integer)", "type scheduled_slots"),
        ("CREATE DOMAIN scheduled_meta AS text", "type scheduled_meta"),
        ("CREATE SEQUENCE scheduled_slots", "sequence scheduled_slots"),
        (
            "CREATE SEQUENCE scheduled_controls_id_seq",
            "sequence scheduled_controls_id_seq",
        ),
        (
            "CREATE TABLE mine (a integer); CREATE INDEX scheduled_gaps ON mine (a)",
            "index scheduled_gaps",
        ),
        ("CREATE VIEW scheduled_meta AS SELECT 1 AS a", "table scheduled_meta"),
        (
            "CREATE MATERIALIZED VIEW scheduled_keys AS SELECT 1 AS a",
            "table scheduled_keys",
        ),
    ],
)
def test_a_name_that_is_taken(
    pg_empty_url: str,
    statement: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever of PostgreSQL's has a name of ours: it is named, with the way out."""
    monkeypatch.setenv("DATABASE_URL", pg_empty_url)
    with psycopg.connect(pg_empty_url, autocommit=True) as connection:
        connection.execute(statement)
    assert status(["db", "upgrade"]) == exits.DATABASE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {what} exists and is not slotwise's; ")
    assert "--table-prefix" in line


@pytest.mark.extended
@pytest.mark.parametrize("again", [False, True], ids=["empty", "after a downgrade"])
def test_sql(
    connection: sa.Connection, again: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever runs the printed SQL has what ``db upgrade`` makes; a version table that is left
    changes nothing.
    """
    if again:
        assert (
            status(["db", "upgrade"])
            == status(["db", "downgrade", "--yes"])
            == exits.OK
        )
        capsys.readouterr()
    assert status(["db", "upgrade", "--sql"]) == exits.OK
    script = capsys.readouterr().out
    raw = connection.connection.driver_connection
    assert raw is not None
    raw.executescript(script) if connection.dialect.name == "sqlite" else raw.execute(
        script
    )
    connection.commit()
    assert status(["db", "check"]) == exits.OK
    assert status(["db", "upgrade"]) == exits.OK
    assert "nothing to do" in capsys.readouterr().out


def test_sql_without_a_transaction(
    connection: sa.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same statements, for a tool that runs them in a transaction of its own."""
    assert status(["db", "upgrade", "--sql"]) == exits.OK
    whole = capsys.readouterr().out.splitlines()
    assert status(["db", "upgrade", "--sql", "--no-transaction"]) == exits.OK
    bare = capsys.readouterr().out.splitlines()
    assert [line for line in whole if line not in ("", "BEGIN;", "COMMIT;")] == [
        line for line in bare if line
    ]


@pytest.mark.extended
def test_at_once(tmp_path: Path, pg_empty_url: str) -> None:
    """Several deploys upgrade at once: one works, the others find nothing to do."""
    shell = Shell(tmp_path, pg_empty_url)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: shell.run("db", "upgrade"), range(4)))
    assert [one.returncode for one in done] == [exits.OK] * 4, [
        one.stderr for one in done
    ]
    assert (
        sorted(one.stdout for one in done)[0]
        == "applied sw0001, sw0002, sw0003, sw0004, sw0005, sw0006, sw0007\n"
    )
    assert sum("nothing to do" in one.stdout for one in done) == 3


@pytest.mark.parametrize("line", ["db restored --at", "db settle-until"])
def test_the_lost_period_is_over(
    sqlite_url: str, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    """Slots of the future cannot be settled by mistake."""
    assert status(["db", "upgrade", "--database-url", sqlite_url]) == exits.OK
    words = [*line.split(), "2030-01-31T02:00Z", "--yes", "--database-url", sqlite_url]
    capsys.readouterr()
    assert status(words) == exits.USAGE
    err = capsys.readouterr().err
    assert "'2030-01-31T02:00Z' is in the future" in err
    assert "write when the lost period ended, or now" in err
