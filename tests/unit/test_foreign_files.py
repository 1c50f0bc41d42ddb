"""Files that somebody else may have written, and what commands get of the worker's secrets."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slotwise import InvalidSetting, Settings
from slotwise.cli.entry import status
from slotwise.contrib.commands.invocation import Account, Invocation, environment
from slotwise.contrib.commands.process_group import OUTPUT_BUDGET, Output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_settings_file_of_another_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not believed because it lies in the current directory; naming it is a decision."""
    file = tmp_path / "slotwise.toml"
    file.write_text("app = 'evil'\n")
    os.chown(file, 65534, 65534)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InvalidSetting,
        match=r"in this directory belongs to another account \(uid 65534\)",
    ):
        Settings.load(environ={})
    assert Settings.load(config=file, environ={}).app == "evil"
    os.chown(file, 0, 0)
    assert Settings.load(environ={}).app == "evil"


def test_a_settings_file_is_small_and_regular(tmp_path: Path) -> None:
    """Reading ends."""
    large = tmp_path / "large.toml"
    large.write_text("#" * 1_048_577)
    for file in (Path("/dev/zero"), large, tmp_path):
        with pytest.raises(
            InvalidSetting, match="is a regular file of at most 1048576 bytes"
        ):
            Settings.load(config=file, environ={})


@pytest.mark.parametrize(
    "line", ["  hunter2@h/sw", "postgresql://u:hunter2@h/sw", "'hunter2"]
)
def test_a_broken_settings_file_shows_no_value(tmp_path: Path, line: str) -> None:
    """Also not of a value of several lines."""
    for name, text in (
        ("a.yaml", f'database-url: "postgresql://worker:\n{line}'),
        ("a.toml", f"database-url = \n{line}\n"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidSetting) as raised:
            Settings.load(config=tmp_path / name, environ={})
        assert "hunter2" not in str(raised.value)


def test_a_calendar_is_small_and_regular(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading ends."""
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/jobs.db")
    assert status(["db", "upgrade"]) == 0
    (tmp_path / "zero.ics").symlink_to("/dev/zero")
    assert status(["calendar", "import", str(tmp_path / "zero.ics")]) != 0
    assert "is a regular file of at most 1048576 bytes" in capsys.readouterr().err


def test_a_command_gets_no_address_of_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless the job names the variable."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:hunter2@h/d")
    monkeypatch.setenv("GREETING", "hello")
    me = Account(name="me", uid=os.geteuid(), gid=os.getegid(), home="/")
    ctx = cast("Any", _Context)
    everything = environment(Invocation(command="env"), me, ctx)
    assert (everything["GREETING"], "DATABASE_URL" in everything) == ("hello", False)
    named = environment(
        Invocation(command="env", inherit_env=["DATABASE_URL"]), me, ctx
    )
    assert (named["DATABASE_URL"], "GREETING" in named) == (
        "postgresql://u:hunter2@h/d",
        False,
    )


class _Context:
    name, attempt, token, idempotency_key = "job", 1, 1, "key"
    slot = SimpleNamespace(isoformat=lambda: "2026-01-01T00:00:00+00:00")


def test_the_log_of_a_command_ends() -> None:
    """Its output does not: what exceeds the budget is not logged, and the last lines are still
    known.
    """
    said: list[str] = []
    output = Output(said.append)
    for _ in range(40):
        output.feed(b"x" * 99_999 + b"\n")
    output.feed(b"the end\n")
    assert sum(map(len, said)) <= OUTPUT_BUDGET + 100
    assert (
        said[-1] == f"(more than {OUTPUT_BUDGET} characters; the rest is not logged)"
    )
    assert output.last_line == "the end"


def test_the_sqlite_file_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has payloads."""
    before = os.umask(0o022)
    try:
        monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/jobs.db")
        assert status(["db", "upgrade"]) == 0
    finally:
        os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {
        "0o600"
    }
