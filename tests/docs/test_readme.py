"""The README's own steps, done as it says: jobs.py is written, and each command is run."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.docs.markdown import ROOT, blocks
from tests.kit.patience import PATIENCE

README = ROOT / "README.md"
BIN = Path(sys.executable).parent


#: A worker that is up for a night, down for three until five in the morning, and up again.
NIGHTS = """
import os
from datetime import UTC, datetime
from jobs import NightlyReport
from slotwise.testing import ManualClock, ManualWorker

clock = ManualClock(datetime(2026, 11, 24, 12, tzinfo=UTC))
with ManualWorker([NightlyReport()], os.environ["DATABASE_URL"], clock) as worker:
    for pause in ("13h", "75h", "21h"):
        worker.tick(pause)
        worker.run_due()
    worker.tick("1s")
"""


@pytest.fixture(params=["postgresql", "sqlite"])
def address(request: pytest.FixtureRequest) -> str:
    """A database with nothing in it."""
    return str(
        request.getfixturevalue(
            "pg_empty_url" if request.param == "postgresql" else "sqlite_empty_url"
        )
    )


@pytest.fixture
def project(tmp_path: Path, address: str) -> Project:
    """A directory with the files that the README has its reader write."""
    for block in blocks(README, "python"):
        if named := re.match(r"# (\w+\.py)\n", block.code):
            (tmp_path / named[1]).write_text(block.code)
    return Project(tmp_path, address)


class Project:
    """A reader's shell, in the reader's own project."""

    def __init__(self, home: Path, address: str) -> None:
        kept = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith("SLOTWISE_")
        }
        path = os.pathsep.join([str(BIN), kept.get("PATH", os.defpath)])
        self.home = home
        self.environment = {**kept, "DATABASE_URL": address, "PATH": path}

    def run(self, command: str) -> str:
        """What the command writes; it must end with 0."""
        done = subprocess.run(
            shlex.split(command),
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, (
            f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """The command while it runs; whatever happens, it is gone afterwards."""
        process = subprocess.Popen(
            shlex.split(command),
            cwd=self.home,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def commands() -> list[str]:
    """The lines of the shell block that uses slotwise, without their comments."""
    (block,) = [
        block for block in blocks(README, "sh") if "slotwise db upgrade" in block.code
    ]
    return [
        shlex.join(words)
        for line in block.code.splitlines()
        if (words := shlex.split(line, comments=True))
    ]


def test_commands_are_known() -> None:
    """The test below leaves none of the README's commands out."""
    said = [command.partition(" --")[0] for command in commands()]
    assert said == [
        "pip install 'slotwise[binary]'",
        "export DATABASE_URL=postgresql://me@localhost/mine",
        "slotwise db upgrade",
        "slotwise run nightly-report",
        "slotwise worker",
        "slotwise slots nightly-report",
    ]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert "binary" in extras


def test_steps_work(project: Project) -> None:
    """Tables, one run in the foreground, a worker that starts and drains, and a ledger that tells
    of both.
    """
    upgrade, run, worker, slots = commands()[2:]
    assert "sw0001" in project.run(upgrade)
    assert re.fullmatch(r"report for 20\d\d-.*\+00:00\n", project.run(run))
    with project.running(worker) as process:
        assert process.stderr is not None
        started = any("worker_start" in line for line in process.stderr)
        assert started, "the worker ended before it had started"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    told = project.run(slots)
    assert "succeeded" in told
    assert "trigger" in told
    assert "waiting" in told


SLOTS_OF = re.compile(
    r"^(20\S+(?: … 20\S+)?) +(\w+) +(.+?)  +(\w+) +(\S+) +(–|\+\S+)",
    re.MULTILINE,
)


def test_first_screen_is_what_the_commands_print(project: Project) -> None:
    """Three nights without a worker: the slots, and the sentences that explain one of them."""
    (session,) = [block.code for block in blocks(README, "console")]
    slots, explained = session.split("$ slotwise explain")
    project.run("slotwise db upgrade")
    (project.home / "nights.py").write_text(NIGHTS)
    subprocess.run(
        [sys.executable, "nights.py"],
        cwd=project.home,
        env=project.environment,
        check=True,
        timeout=PATIENCE,
    )
    shown = SLOTS_OF.findall(slots)
    assert len(shown) == 5
    assert (
        SLOTS_OF.findall(project.run("slotwise slots nightly-report --limit 5"))
        == shown
    )
    first, _, said = explained.partition("\n")
    told = project.run(f"slotwise explain{first}")
    assert " ".join(said.split()) in " ".join(told.split())


def test_readme_is_short() -> None:
    """A README is read standing: under 150 lines."""
    assert len(README.read_text().splitlines()) < 150


def test_links_lead_somewhere() -> None:
    """Each relative link of the README names a file or a directory that is there."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text())
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_development_commands_exist() -> None:
    """The two commands for a checkout are commands of dev.py, and contributing lists all there
    are.
    """
    (block,) = [block for block in blocks(README, "sh") if "dev.py" in block.code]
    wanted = [line.split()[:3] for line in block.code.splitlines()]
    assert [words[:2] for words in wanted] == [["python3", "dev.py"]] * 2
    told = subprocess.run(
        [sys.executable, ROOT / "dev.py", "--help"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert told.returncode == 0
    known = set(re.findall(r"^  (\w+)  +\w", told.stdout, re.MULTILINE)) - {"python3"}
    assert {words[2] for words in wanted} <= known
    listed = re.findall(
        r"^\| `python3 dev\.py (\w+)",
        (ROOT / "docs" / "contributing.md").read_text(),
        re.MULTILINE,
    )
    assert set(listed) == known
