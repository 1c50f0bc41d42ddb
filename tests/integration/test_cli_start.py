"""``slotwise init`` writes an application that works, and asks nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
import sqlalchemy as sa
import yaml

from slotwise.cli.entry import status
from slotwise.cli.start import FILES, local_zone
from slotwise.embedded import EmbeddedPostgres


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, and no address of a database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    return tmp_path


@pytest.mark.extended
def test_what_it_writes_works(
    place: Path, sqlite_empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command that it names runs, in the directory that it made, with no further option."""
    assert status(["init", "shop"]) == 0
    written = capsys.readouterr().out
    assert {path.name for path in (place / "shop").iterdir()} == set(FILES)
    for command in (
        "slotwise db upgrade",
        "slotwise run nightly-report",
        "slotwise jobs",
    ):
        assert f"  {command}" in written
        done = subprocess.run(
            [sys.executable, "-m", *command.split()],
            cwd=place / "shop",
            env={**os.environ, "DATABASE_URL": sqlite_empty_url},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert "nightly-report" in done.stdout


def test_the_compose_file_is_whole(place: Path) -> None:
    """Workers wait for the tables, the tables for the database, and all use the password that was
    printed.
    """
    assert status(["init"]) == 0
    services = compose(place)["services"]
    addresses = {
        services[name]["environment"]["DATABASE_URL"] for name in ("tables", "worker")
    }
    (address,) = addresses
    user, _, password = address.partition("//")[2].partition("@")[0].partition(":")
    assert (user, f"PASSWORD '{password}'" in role_of(place)) == ("slotwise", True)
    assert services["database"]["environment"]["POSTGRES_PASSWORD"] != password
    assert services["tables"]["depends_on"] == {
        "database": {"condition": "service_healthy"}
    }
    assert services["worker"]["depends_on"] == {
        "tables": {"condition": "service_completed_successfully"}
    }
    assert services["worker"]["command"][:2] == ["slotwise", "worker"]


def compose(place: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((place / "compose.yaml").read_text())
    return document


def role_of(place: Path) -> str:
    """The statements that PostgreSQL runs at its first start."""
    return str(compose(place)["configs"]["role"]["content"])


def test_the_workers_role_makes_the_tables_and_is_no_superuser(
    place: Path, open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert status(["init"]) == 0
    password = role_of(place).split("'")[1]
    with EmbeddedPostgres(open_path / "data", durable=False) as server:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("CREATE DATABASE slotwise")
            for statement in role_of(place).splitlines():
                admin.execute(statement.encode())
            found = admin.execute(
                "SELECT rolsuper FROM pg_roles WHERE rolname = 'slotwise'"
            )
            assert found.fetchall() == [(False,)]
        url = sa.make_url(server.dsn).set(
            username="slotwise", password=password, database="slotwise"
        )
        monkeypatch.setenv("DATABASE_URL", url.render_as_string(hide_password=False))
        assert status(["db", "upgrade"]) == 0


def test_only_this_account_reads_what_it_writes(place: Path) -> None:
    """Whatever the umask: compose.yaml has passwords. The image has neither it nor the history."""
    before = os.umask(0)
    try:
        assert status(["init"]) == 0
    finally:
        os.umask(before)
    assert {(place / name).stat().st_mode & 0o777 for name in FILES} == {0o600}
    ignored = (place / ".dockerignore").read_text().split()
    assert {".git", ".env", "compose.yaml"} <= set(ignored)


def test_each_has_a_password_of_its_own(place: Path) -> None:
    """No two applications share the password of a published example."""
    for name in ("one", "two"):
        assert status(["init", name]) == 0
    assert (place / "one/compose.yaml").read_text() != (
        place / "two/compose.yaml"
    ).read_text()


def test_files_that_exist_are_kept(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second call changes nothing, and names no command for a job that is not there."""
    (place / "jobs.py").write_text("mine = 1")
    assert status(["init"]) == 0
    assert (place / "jobs.py").read_text() == "mine = 1"
    written = capsys.readouterr().out
    assert "kept    jobs.py" in written
    assert "nightly-report" not in written


def test_a_database_that_is_known_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With DATABASE_URL set, no other database is started or named."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://me@localhost/mine")
    assert status(["init"]) == 0
    assert "export DATABASE_URL" not in capsys.readouterr().out


def test_a_place_that_cannot_be_written(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, with the reason."""
    (place / "file").touch()
    assert status(["init", "file/below"]) == 1
    assert (
        "file/below/jobs.py cannot be written: Not a directory"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("Europe/Vienna", "Europe/Vienna"),
        (":Asia/Tokyo", "Asia/Tokyo"),
        ("Etc/UTC", "UTC"),
    ],
)
def test_the_zone_is_the_machines(
    name: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TZ comes first; the result is always a zone that Python knows."""
    monkeypatch.setenv("TZ", name)
    assert local_zone() == zone
    monkeypatch.setenv("TZ", "no/such zone")
    assert ZoneInfo(local_zone())
