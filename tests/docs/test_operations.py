"""What the pages on operations list is what the code has: events, settings, exit codes, deadlines,
grants, clean-up.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
import sqlalchemy as sa
from tests.docs.markdown import ROOT, blocks, table
from tests.kit.events import events

from slotwise import Every, JobContext, Retry, Settings, job, task
from slotwise.cli.entry import cli
from slotwise.cli.shared import exits
from slotwise.settings.keywords import SettingsKeywords
from slotwise.spi import Database, format_duration, tables
from slotwise.testing import ManualClock, ManualWorker

PAGE = ROOT / "docs" / "operations.md"
CONNECTIONS = ROOT / "docs" / "connections.md"
SECURITY = ROOT / "docs" / "security.md"
REFERENCE = ROOT / "docs" / "operations-reference.md"
SHARED = {spec.name for spec in dataclasses.fields(events.AttemptEvent)}


def test_every_event_is_listed() -> None:
    """The table of events names each event of a worker, with its level and the fields that only it
    has.
    """
    kinds = {
        kind.name: kind
        for kind in vars(events).values()
        if isinstance(kind, type)
        and issubclass(kind, events.Event)
        and "name" in vars(kind)
    }
    written = {
        name: (level, _words(fields))
        for name, level, _, fields in table(REFERENCE, "## Events")
    }
    assert written == {
        name: (logging.getLevelName(kind.level), _own_fields(kind))
        for name, kind in kinds.items()
    }


def _own_fields(kind: type[events.Event]) -> set[str]:
    shared = SHARED if issubclass(kind, events.AttemptEvent) else {"worker"}
    return {spec.name for spec in dataclasses.fields(kind)} - shared


def _words(cell: str) -> set[str]:
    """The names in a cell, explanations in brackets dropped."""
    return set(re.findall(r"\w+", re.sub(r"\([^)]*\)", "", cell)))


def test_every_setting_is_listed() -> None:
    """The table of settings names each setting, in order, with its default; so do the keywords of
    JobRegistry.
    """
    written = [
        (name, default) for name, default, *_ in table(REFERENCE, "## Settings")
    ]
    cure = "mend the table of settings in docs/operations-reference.md"
    assert written == [
        (spec.name, _spelled(spec.default)) for spec in dataclasses.fields(Settings)
    ], cure
    keywords = {*SettingsKeywords.__annotations__}
    assert keywords == {name for name, _ in written}, (
        "mend SettingsKeywords in settings/settings.py"
    )


def _spelled(value: object) -> str:
    match value:
        case None | frozenset():
            return "none"
        case bool():
            return str(value).lower()
        case timedelta():
            return format_duration(value)
    return str(value)


def test_every_exit_code_is_listed() -> None:
    """The table of exit codes has each one that the commands use."""
    known = {
        value
        for name, value in vars(exits).items()
        if name.isupper() and isinstance(value, int)
    }
    assert {int(status) for status, *_ in table(REFERENCE, "## Exit codes")} == known


def test_every_command_is_listed() -> None:
    """The table of commands names each command, and none that there is not."""
    listed = {
        word
        for cell, *_ in table(REFERENCE, "## The commands")
        for word in re.findall(r"slotwise ([\w-]+)", cell)
    }
    assert listed == set(cli.commands), (
        "add a row to docs/operations-reference.md, or remove one"
    )
    (tables_line,) = [
        cell
        for cell, *_ in table(REFERENCE, "## The commands")
        if "slotwise db" in cell
    ]
    db = cli.commands["db"]
    assert isinstance(db, click.Group)
    assert set(re.findall(r"[\w-]+", tables_line)) - {"slotwise", "db"} == set(
        db.commands
    )


def test_every_table_is_listed() -> None:
    """The table of tables names each table of the schema, and alembic's."""
    listed = {
        name for cell, _ in table(PAGE, "## Tables") for name in cell.split(", ")
    }
    assert listed == {found.name for found in tables().metadata.sorted_tables} | {
        "scheduled_alembic_version"
    }


def test_deadlines_are_as_listed() -> None:
    """The defaults in the table of deadlines are those of the settings."""
    settings = Settings()
    listed = {
        name: default
        for name, _, default in table(CONNECTIONS, "## Connections and deadlines")
    }
    assert listed.pop("keepalives") == "5 s, 3 × 2 s"
    assert {
        name: timedelta(seconds=int(text.removesuffix(" s")))
        for name, text in listed.items()
    } == {
        "connect_timeout": settings.connect_timeout,
        "tcp_user_timeout": settings.tcp_user_timeout,
        "statement_timeout": settings.statement_timeout,
        "lock_timeout": settings.lock_timeout,
        "idle_in_transaction_session_timeout": settings.lease,
        "wait for a reply, on the process's own clock": settings.statement_timeout
        + settings.connect_timeout,
    }


def test_connections_are_as_many_as_said() -> None:
    """A process takes at most as many connections as the page says."""
    said = re.search(r"at most (\d+) per process", CONNECTIONS.read_text())
    assert said is not None
    assert Database(
        Settings(database_url="postgresql://nobody@localhost/nothing")
    ).connections_needed == int(said[1])


ran = threading.Event()


@job(name="hourly", schedule=Every("1h"))
def hourly(ctx: JobContext) -> None:
    """Does nothing."""


@task(name="note")
def note(ctx: JobContext) -> None:
    """Says that it ran."""
    ran.set()


@task(name="fails", retry=Retry(max_attempts=1))
def fails(ctx: JobContext) -> None:
    """Fails for good."""
    raise RuntimeError("for good")


def test_deletes_take_what_they_name(pg_url: str) -> None:
    """The page's DELETE removes dead rows of long ago, and leaves what waits."""
    (deletes,) = [
        block.code
        for block in blocks(PAGE, "sql")
        if "DELETE FROM scheduled_tasks" in block.code
    ]
    with ManualWorker(
        [hourly, fails], pg_url, ManualClock(datetime(2020, 1, 1, tzinfo=UTC))
    ) as worker:
        worker.client.schedule(fails)
        worker.run_due()
        worker.client.schedule(fails, delay="1h")
        with worker.store.transaction() as connection:
            connection.exec_driver_sql(deletes)
            left = (
                connection.execute(sa.select(worker.store.tables.tasks.c.state))
                .scalars()
                .all()
            )
        assert left == [None, None]


def test_the_script_after_a_restore(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the page has it: it runs to its end. A pause from before it stays."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    (script,) = [block.code for block in blocks(ROOT / "docs" / "restore.md", "sh")]
    slotwise = tmp_path / "slotwise"
    slotwise.write_text(f'#!/bin/sh\nexec {sys.executable} -m slotwise "$@"\n')
    slotwise.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with ManualWorker([hourly], pg_url) as worker:
        worker.plan()
        broken = script.replace("--at now", "--at yesteryear")
        assert subprocess.run(["sh", "-c", broken], check=False).returncode != 0
        assert subprocess.run(["sh", "-c", script], check=False).returncode == 0
        assert worker.inspect.all_paused() is None
        worker.operations.pause_all(note="maintenance")
        assert subprocess.run(["sh", "-c", script], check=False).returncode == 0
        assert worker.inspect.all_paused() is not None
