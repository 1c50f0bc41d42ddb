"""What ``schedule next``, ``schedule explain`` and ``plan`` say of ambiguous expressions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slotwise.cli.entry import status
from slotwise.cli.shared import exits

NOTE = "write: CRON|0 15 10 ? * MON-FRI|UTC"
APP = """
from slotwise import JobRegistry, job

@job(name="report", schedule="0 15 10 ? * 2-6")
def report(ctx): ...

registry = JobRegistry(jobs=[report])
"""


@pytest.mark.parametrize("command", ["explain", "next"])
def test_schedule_commands_say_how_others_read_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["schedule", command, "0 15 10 ? * 2-6"]) == exits.OK
    found = capsys.readouterr()
    assert NOTE in found.out + found.err


def test_plan_says_how_others_read_it(
    tmp_path: Path,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "ambiguous_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "ambiguous_app", raising=False)
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    assert status(["plan", "--app", "ambiguous_app"]) == exits.CHANGES
    assert (
        f"report: If it is from Quartz, where day 1 is Sunday and gaps are skipped, {NOTE}"
        in (capsys.readouterr().err)
    )
