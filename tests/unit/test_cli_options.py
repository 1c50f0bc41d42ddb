"""The command line itself: where options may stand, what outranks what, how mistakes are told,
what help shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from slotwise.cli.entry import cli, status
from slotwise.cli.shared import exits

#: Older releases of click name no command that is near.
NEAR = ["worker"] if tuple(map(int, version("click").split(".")[:2])) >= (8, 4) else []

APPLICATION = """
from slotwise import Every, JobRegistry, job

@job(name="tick", schedule=Every("1h"))
def tick(ctx): ...

registry = JobRegistry(jobs=[tick], database_url="sqlite:///code.db", table_prefix="code_")
"""


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory and no settings around."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "DATABASE_URL",
        "SLOTWISE_DATABASE_URL",
        "SLOTWISE_APP",
        "SLOTWISE_CONFIG",
    ):
        monkeypatch.delenv(name, raising=False)


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Every command's path."""
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize(
    "path", list(commands()), ids=lambda path: "-".join(path) or "root"
)
def test_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Every command explains itself: a sentence, its options, the common ones apart, and
    examples.
    """
    assert status([*path, "--help"]) == exits.OK
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"slotwise {' '.join(path)}".strip() in text.split("Examples:")[1]
    assert ("--database-url" in text) == (
        path not in {("completion",), ("demo",), ("init",)}
    )
    assert "lifeline" not in text


def test_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The list of commands is made of whole sentences."""
    assert status(["--help"]) == exits.OK
    listed = capsys.readouterr().out.split("See:")[1].split("Examples:")[0]
    assert "..." not in listed


def test_worker_help_lists_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit statuses are documented where they are needed."""
    status(["worker", "--help"])
    text = capsys.readouterr().out
    for number, meaning in exits.MEANINGS:
        assert f"{number} " in text
        assert meaning in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version, and what else a report needs."""
    assert status(["--version"]) == exits.OK
    assert capsys.readouterr().out.startswith("slotwise ")


@pytest.mark.parametrize(
    ("before", "after", "code_of"),
    [
        (["--database-url", "sqlite:///a.db"], [], "a.db"),
        ([], ["--database-url", "sqlite:///a.db"], "a.db"),
        (
            ["--database-url", "sqlite:///a.db"],
            ["--database-url", "sqlite:///b.db"],
            "b.db",
        ),
        ([], [], "environment.db"),
    ],
    ids=["before", "after", "both", "neither"],
)
def test_place_of_options(
    before: list[str],
    after: list[str],
    code_of: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A common option may stand before or after the command; the one after it wins; all outrank
    the environment.
    """
    monkeypatch.setenv("DATABASE_URL", "sqlite:///environment.db")
    assert status([*before, "db", "upgrade", *after]) == exits.OK
    assert [file.name for file in tmp_path.glob("*.db")] == [code_of]


def test_place_within_a_group(tmp_path: Path) -> None:
    """Between a group and its command it may stand, too."""
    assert status(["db", "--database-url", "sqlite:///a.db", "upgrade"]) == exits.OK
    assert (tmp_path / "a.db").exists()


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["--app", "shop", "--app-dir", "src"], ["code.db"]),
        (
            [
                "--app",
                "shop",
                "--app-dir",
                "src",
                "--database-url",
                "sqlite:///line.db",
            ],
            ["line.db"],
        ),
        (["--config", "settings.toml"], ["file.db"]),
    ],
    ids=["code", "line-over-code", "file"],
)
def test_sources(arguments: list[str], files: list[str], tmp_path: Path) -> None:
    """The application's settings, the command line's over them; or, without an application, the
    file's.
    """
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "shop.py").write_text(APPLICATION)
    (tmp_path / "settings.toml").write_text('database-url = "sqlite:///file.db"\n')
    assert status(["db", "upgrade", *arguments]) == exits.OK
    assert [file.name for file in tmp_path.glob("*.db")] == files


@pytest.mark.parametrize(
    ("arguments", "expected", "words"),
    [
        (
            ["wrk"],
            exits.USAGE,
            ["No such command 'wrk'", *NEAR, "see: slotwise --help"],
        ),
        (
            ["worker", "--threds", "3"],
            exits.USAGE,
            ["No such option", "--threds", "--threads", "worker --help"],
        ),
        (
            ["slots", "--id", "x"],
            exits.USAGE,
            ["--id needs the NAME", "see: slotwise slots --help"],
        ),
        (
            ["slots", "a", "--since", "5parsecs"],
            exits.USAGE,
            ["'5parsecs' is neither an instant"],
        ),
        (["slots", "a", "-n", "0"], exits.USAGE, ["-n"]),
        (
            ["slots", "a", "--since", "99999999d"],
            exits.USAGE,
            ["'--since': '99999999d' is neither", "at most 36500d"],
        ),
        (
            ["explain", "a", "0001-01-01T00:00Z"],
            exits.USAGE,
            ["'0001-01-01T00:00Z'", "years 1900 to 8999"],
        ),
        (
            ["retry", "a", "9999-12-31T23:59:59Z"],
            exits.USAGE,
            ["'SLOT': '9999-12-31T23:59:59Z' is neither an instant"],
        ),
        (
            ["backfill", "a", "--from", "9999999d", "--to", "now"],
            exits.USAGE,
            ["'--from': '9999999d' is neither"],
        ),
        (
            ["schedule", "next", "@daily", "--after", "99999999d"],
            exits.USAGE,
            ["--after 99999999d: neither"],
        ),
        (
            ["schedule", "next", "@daily", "--month", "0001-01"],
            exits.USAGE,
            ["schedules know the years 1900 to 8999"],
        ),
        (["db", "downgrade"], exits.USAGE, ["Confirm with --yes"]),
        (
            ["worker"],
            exits.FAILED,
            ["no application was named", "--app", "SLOTWISE_APP"],
        ),
        (["run", "a"], exits.FAILED, ["no application was named"]),
        (
            ["worker", "--app", "a", "--threads", "0"],
            exits.USAGE,
            ["--threads must be a whole number from 1", "'0'"],
        ),
        (
            ["worker", "--threads", "x"],
            exits.USAGE,
            ["--threads must be a whole number", "'x'", "worker --help"],
        ),
        (
            ["worker", "--app", "a", "--processes", "1001"],
            exits.USAGE,
            ["--processes must be a whole number from 1 to 1000"],
        ),
        (
            ["--log-format", "xml", "run", "a"],
            exits.USAGE,
            ["--log-format must be one of human, json"],
        ),
        (
            ["--config", "nowhere.toml", "workers"],
            exits.FAILED,
            ["nowhere.toml: there is no such settings file"],
        ),
        (
            ["health", "--max-overdue", "5"],
            exits.USAGE,
            ["'--max-overdue': '5' is not a duration", "write 5s"],
        ),
        (
            ["tasks", "schedule", "a", "--at", "soon"],
            exits.USAGE,
            ["'soon' is neither an instant"],
        ),
        (
            ["tasks", "schedule", "a", "--at", "40000d"],
            exits.USAGE,
            ["nor a duration", "at most 36500d"],
        ),
        (
            ["tasks", "schedule", "a", "--at", "2030-01-01"],
            exits.USAGE,
            ["--at: '2030-01-01' has no zone; write "],
        ),
        (
            ["tasks", "schedule", "a", "--at", "9999-01-01"],
            exits.USAGE,
            ["'--at'", "of the years 1900 to 8999"],
        ),
        (
            ["tasks", "schedule", "a", "--priority", "99999999999"],
            exits.USAGE,
            ["'--priority'", "-32767<=x<=32767"],
        ),
        (
            ["tasks", "schedule", "a", "--id", "recurring"],
            exits.USAGE,
            ["'--id': 'recurring': this id is reserved"],
        ),
        (
            ["backfill", "a", "--from", "1d", "--to", "now", "--pace", "5"],
            exits.USAGE,
            ["'--pace': '5' is not a dur"],
        ),
        (["workers"], exits.FAILED, ["no database was named", "--database-url"]),
        (
            ["workers", "--database-url", "oracle://a:secret@b/c"],
            exits.FAILED,
            ["databases are not supported"],
        ),
        (
            ["workers", "--database-url", "postgresql://a:secret@127.0.0.1:1/c"],
            exits.DATABASE,
            [
                "the database 'c' at host 127.0.0.1, port 1 cannot be reached",
                "start the server, or correct",
            ],
        ),
        (
            ["workers", "--database-url", "sqlite:///fresh.db"],
            exits.DATABASE,
            ["no SQLite file", "create it: "],
        ),
        (
            ["db", "check", "--database-url", "sqlite:///fresh.db"],
            exits.DATABASE,
            ["create it: slotwise db upgrade"],
        ),
        (
            ["db", "upgrade", "--table-prefix", "Bad"],
            exits.USAGE,
            ["--table-prefix must be a lower-case name"],
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_mistakes(
    arguments: list[str],
    expected: int,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistake is one line on stderr with the cure, and a status; no traceback, no secret,
    nothing on stdout.
    """
    assert status(arguments) == expected
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert "secret" not in err
    for word in words:
        assert word in err


def test_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone, the command shows its help."""
    status([])
    assert "Operate:" in "".join(capsys.readouterr())


def test_app_is_not_imported_for_reading(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    sqlite_url: str,
) -> None:
    """With SLOTWISE_APP around, reading works without importing it; --app imports it."""
    monkeypatch.setenv("SLOTWISE_APP", "app_that_is_not_there")
    for arguments in (["jobs"], ["workers"], ["health", "--min-workers", "0"]):
        assert status([*arguments, "--database-url", sqlite_url]) == exits.OK
    assert (
        status(
            ["workers", "--database-url", sqlite_url, "--app", "app_that_is_not_there"]
        )
        == exits.FAILED
    )
    assert "there is no module app_that_is_not_there" in capsys.readouterr().err


def test_health_never_imports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even where the application would know the database."""
    monkeypatch.setenv("SLOTWISE_APP", "app_that_is_not_there")
    assert status(["health"]) == exits.FAILED
    assert "no database was named" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The script that completes our commands."""
    assert status(["completion", shell]) == exits.OK
    assert "_SLOTWISE_COMPLETE" in capsys.readouterr().out


def test_completes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the script asks for."""
    monkeypatch.setenv("_SLOTWISE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "slotwise db up")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        status([])
    assert "upgrade" in capsys.readouterr().out


def test_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake of ours is told with its traceback, without secrets, and has a status of its
    own.
    """

    def broken(*_: object, **__: object) -> None:
        raise AssertionError("postgresql://user:secret@host/db")

    monkeypatch.setattr("slotwise.cli.shared.options.Given.settings", broken)
    assert status(["workers"]) == exits.BUG
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "secret" not in err
    assert "please report it" in err


def test_sql_needs_no_database(capsys: pytest.CaptureFixture[str]) -> None:
    """The tables' SQL is printed for whoever runs it, with the names that were asked for."""
    assert (
        status(["db", "upgrade", "--sql", "--schema", "jobs", "--table-prefix", "x_"])
        == exits.OK
    )
    text = capsys.readouterr().out
    assert "CREATE TABLE jobs.x_tasks" in text


def test_the_schema_version_as_json(
    capsys: pytest.CaptureFixture[str], sqlite_url: str
) -> None:
    """Which version and revision the database has, for programs; also if something is missing."""
    command = ["db", "check", "--json", "--database-url", sqlite_url]
    assert status(command) == exits.OK
    assert json.loads(capsys.readouterr().out) == {
        "version": 1,
        "needed": 1,
        "revision": "sw0007",
        "problem": None,
        "warnings": [],
    }
    assert (
        status(["db", "downgrade", "--yes", "--database-url", sqlite_url]) == exits.OK
    )
    capsys.readouterr()
    assert status(command) == exits.DATABASE
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["needed"], found["revision"]) == (None, 1, None)
    assert "are missing" in found["problem"]


#: One after another in one process, each loading what those before it need, or more; what is
#: absent after each.
LOADS = [
    (["--version"], ["sqlalchemy", "alembic", "rich", "slotwise.engine"]),
    (["jobs"], ["alembic", "slotwise.engine", "slotwise.registry.registry"]),
    (["health"], ["alembic", "slotwise.engine", "slotwise.registry.registry"]),
    (["--help"], ["alembic"]),
    (["worker", "--help"], ["alembic"]),
]


@pytest.mark.extended
def test_loads_what_it_needs(sqlite_url: str) -> None:
    """A probe that runs every few seconds loads neither alembic nor the engine."""
    script = (
        "import sys; from slotwise.cli.entry import status\n"
        f"for words, absent in {LOADS}:\n"
        "    status(words); print('loaded:', words, [name for name in absent if "
        "name in sys.modules])"
    )
    environment = {**os.environ, "DATABASE_URL": sqlite_url}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = [line for line in done.stdout.splitlines() if line.startswith("loaded:")]
    assert loaded == [f"loaded: {words} []" for words, _ in LOADS]


@pytest.mark.parametrize(
    "words",
    [
        ["slots", "tick", "--skip", "9" * 20],
        ["health", "--max-rows", "9" * 20],
        ["simulate", "-n", "9" * 20],
        ["backfill", "tick", "--concurrency", "9" * 20],
    ],
)
def test_senseless_numbers_and_empty_lists_are_usage_errors(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(words) == exits.USAGE
    assert words[-2] in capsys.readouterr().err
