"""A worker process ends when its parent has ended, whatever it does at that moment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.shell import alive, wait_until

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="no /proc here"
)

#: Starts a child with a lifeline, prints its process id, and stays. In a session of its own the
#: child is woken by no rule of the kernel about orphaned process groups.
PARENT = """
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
child = subprocess.Popen(
    [*sys.argv[1:], f"--lifeline={theirs.fileno()}"],
    pass_fds=[theirs.fileno()], start_new_session=True,
)
print(child.pid, flush=True)
time.sleep(600)
"""
WORKER = [sys.executable, "-m", "slotwise", "worker", "--app", "work"]
SLOW = "import pathlib, time; pathlib.Path('importing').touch(); time.sleep(600)"
QUICK = """
import pathlib
from slotwise import Every, JobRegistry, job
@job(name="tick", schedule=Every("100ms"))
def tick(ctx): pathlib.Path("up").touch()
registry = JobRegistry(jobs=[tick])
"""


@pytest.fixture
def home(tmp_path: Path, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def parent(home: Path) -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for one in made:
        one.kill()
        one.wait()


def start(made: list[subprocess.Popen[str]]) -> int:
    command = [sys.executable, "-c", PARENT, *WORKER]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    made.append(process)
    assert process.stdout is not None
    with process.stdout as output:
        return int(output.readline())


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def ends(pid: int) -> None:
    try:
        wait_until(lambda: not alive(pid), "the worker to end")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_while_it_imports(home: Path, parent: list[subprocess.Popen[str]]) -> None:
    """An import may hang on something that went with the parent."""
    (home / "work.py").write_text(SLOW)
    pid = start(parent)
    wait_until((home / "importing").exists, "the import")
    parent[0].kill()
    ends(pid)


def test_while_it_is_stopped(home: Path, parent: list[subprocess.Popen[str]]) -> None:
    """Race: the parent that has stopped it ends before it wakes it, or before the stop has taken
    effect. The kernel looks at that moment only, and not beyond a session.
    """
    (home / "work.py").write_text(QUICK)
    pid = start(parent)
    wait_until((home / "up").exists, "the first slot")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == "T", "the stop")
    parent[0].kill()
    ends(pid)


def test_before_it_reads(home: Path) -> None:
    """Its parent has ended before the child's first instruction."""
    (home / "work.py").write_text(SLOW)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        command = [*WORKER, f"--lifeline={theirs.fileno()}"]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    try:
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def test_a_message_waits_for_the_worker(home: Path) -> None:
    """A drain that is said while the application is imported is heard afterwards."""
    (home / "work.py").write_text(f"import time; time.sleep(1)\n{QUICK}")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [*WORKER, f"--lifeline={theirs.fileno()}"]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        try:
            time.sleep(0.1)
            ours.send(b"d")
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
