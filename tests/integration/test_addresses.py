"""Addresses with a secret in an unexpected place: no public way quotes it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.unit.test_dsn import WRONG

from slotwise import JobRegistry, Settings, SlotwiseError
from slotwise.cli.entry import status
from slotwise.spi import Database, describe_error

#: Addresses that can be parsed, at a place where nothing listens.
ODD = [
    "postgresql://u:sesame@127.0.0.1:1/d",
    "postgresql://127.0.0.1:1/d;Pwd=sesame",
    "postgresql://127.0.0.1:1/d?password=sesame",
    "postgresql://127.0.0.1:1/d?Pwd=sesame",
    "postgresql://127.0.0.1:1/d?password=open&sesame=x",
    "postgresql://127.0.0.1:1/d?options=sesame",
    "postgresql://127.0.0.1:1/d?sslpassword=sesame",
    "postgresql://127.0.0.1:1/d?sslmode=require;Pwd=sesame",
    "postgresql://127.0.0.1:1/d?connect_timeout=5;Password=sesame",
    "host=127.0.0.1 port=1 user='u;Pwd=sesame'",
    "host=127.0.0.1 port=1 dbname='d;password=sesame'",
    "host=127.0.0.1 port=1 passwd=sesame",
    "sqlite:///postgresql://u:sesame@h/d",
    "sqlite:////nowhere/postgresql://u:sesame@h/d",
    "sqlite:///file.db;Password=sesame",
]


def by_registry(text: str, _: Path) -> None:
    registry = JobRegistry(database_url=text, process_hook=False)
    try:
        registry.client.task("mail", "1")
    finally:
        registry.database.close()


def by_wake_up_url(text: str, _: Path) -> None:
    database = Database(
        Settings.load(
            environ={}, database_url="postgresql://127.0.0.1:1/d", wake_up_url=text
        )
    )
    with pytest.raises(psycopg.Error) as refused:
        database.listen()
    print(describe_error(refused.value))  # as the worker logs it


def by_option(text: str, _: Path) -> None:
    assert status(["jobs", "--database-url", text])


def by_file(text: str, directory: Path) -> None:
    file = directory / "slotwise.toml"
    file.write_text(f"database-url = '''{text}'''\n")
    assert status(["health", "--config", str(file)])


def by_migration(text: str, _: Path) -> None:
    assert status(["db", "check", "--database-url", text])


WAYS = [by_registry, by_wake_up_url, by_option, by_file, by_migration]
CASES = [
    *(pytest.param(way, text) for way in WAYS for text in ODD),
    *(
        pytest.param(way, text, marks=[] if way is by_option else pytest.mark.extended)
        for way in WAYS
        for text, _ in WRONG
    ),
]


@pytest.mark.parametrize(("way", "text"), CASES)
def test_no_way_quotes_a_secret(
    way: Callable[[str, Path], None],
    text: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither output, nor log, nor the traceback of the error."""
    monkeypatch.chdir(tmp_path)
    said = ""
    try:
        way(text, tmp_path)
    except SlotwiseError as error:
        said = "".join(traceback.format_exception(error))
    assert "sesame" not in "".join([said, *capfd.readouterr(), caplog.text])
