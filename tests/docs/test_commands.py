"""The commands about time that the pages show run as they are shown, from top to bottom, on one
database.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.docs.markdown import ROOT, blocks

from slotwise.cli.entry import status
from slotwise.cli.shared import exits

RUN = re.compile(r"slotwise (schedule|calendar) ")
#: Ends with 1 where there is a difference.
WELL = {"schedule diff": {exits.OK, exits.FAILED}}

CLOSED = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//slotwise//tests//EN
BEGIN:VEVENT
UID:1@tests
DTSTAMP:20260101T000000Z
DTSTART;VALUE=DATE:20270104
SUMMARY:Inventory
END:VEVENT
END:VCALENDAR
"""
JOBS = """from slotwise import Cron, JobRegistry, job

@job(name="report", schedule=Cron("H 2 * * *", tz="Europe/Vienna"))
def report(ctx): ...

registry = JobRegistry(jobs=[report])
"""


def commands(page: Path) -> list[list[str]]:
    """The commands of a page's shell blocks that are run here."""
    lines = [
        line.strip()
        for block in blocks(page, "sh")
        for line in block.code.replace("\\\n", " ").splitlines()
    ]
    return [shlex.split(line, comments=True) for line in lines if RUN.match(line)]


@pytest.mark.parametrize("name", ["calendars.md", "migrating.md", "schedules.md"])
def test_commands_run(
    name: str,
    pg_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each ends well, in an empty directory with an application and a calendar file in it."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "closed.ics").write_text(CLOSED)
    (tmp_path / "jobs.py").write_text(JOBS)
    found = commands(ROOT / "docs" / name)
    assert found
    for command in found:
        ended = status(command[1:])
        told = capsys.readouterr()
        assert ended in WELL.get(" ".join(command[1:3]), {exits.OK}), (command, told)
