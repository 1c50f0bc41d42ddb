"""A worker as process 1 of a container: nothing stays behind as a zombie."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads Linux's /proc"
)

#: Adopts orphans as process 1 does, and continues in a child.
ADOPTER = """
import ctypes, os, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
from slotwise.contrib.processes.process_one import continue_in_child
continue_in_child()
"""


def adopter(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ADOPTER + program], stdout=subprocess.PIPE, text=True
    )


def children_of(pid: int) -> dict[int, str]:
    """Return the state of each child, by its number."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found[int(stat.parent.name)] = fields[0]
    return found


def test_orphans_are_reaped() -> None:
    """Those that a command leaves behind; the program's own children keep their status."""
    program = """
for _ in range(5):
    subprocess.run(["sh", "-c", "sleep 0.1 & sleep 0.2 & true"], check=True)
print(subprocess.run(["sh", "-c", "exit 7"]).returncode, flush=True)
time.sleep(600)
"""
    with adopter(program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "7\n"
        until = time.monotonic() + 60
        while len(children_of(process.pid)) > 1 and time.monotonic() < until:
            time.sleep(0.05)
        (left,) = children_of(process.pid).items()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert left[1] != "Z"


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("sys.exit(3)", 3),
        ("os._exit(0)", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    ],
    ids=["exits", "ends well", "is killed"],
)
def test_it_ends_as_its_child(program: str, status: int) -> None:
    """As a shell reports it, for process 1 cannot end by a signal."""
    with adopter(program) as process:
        assert process.wait(60) == status


def test_signals_are_passed_on() -> None:
    """Each of them, in order."""
    program = """
def heard(number, frame):
    print(signal.Signals(number).name, flush=True)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, heard)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
while True:
    time.sleep(600)
"""
    with adopter(program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            process.send_signal(number)
            assert process.stdout.readline() == f"{number.name}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT


APPLICATION = """
from slotwise import Every, JobRegistry
from slotwise.contrib.commands import CommandJob
left = CommandJob(
    name="left", schedule=Every("500ms"), command="sleep 0.1 & sleep 0.2 & echo >> starts"
)
registry = JobRegistry(jobs=[left], poll_interval="500ms")
"""


def _can_unshare() -> bool:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0


@pytest.mark.extended
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_as_process_one(tmp_path: Path, pg_url: str, processes: int) -> None:
    """Its commands leave processes behind, and SIGTERM to process 1 drains it."""
    if not _can_unshare():
        pytest.skip("needs root for a namespace of processes")
    (tmp_path / "left_app.py").write_text(APPLICATION)
    box = subprocess.Popen(
        [
            *("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
            *(sys.executable, "-m", "slotwise", "worker"),
            *("--app=left_app", f"--app-dir={tmp_path}", f"--processes={processes}"),
        ],
        env={**os.environ, "DATABASE_URL": pg_url},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        starts = tmp_path / "starts"
        until = time.monotonic() + 120
        while not starts.exists() or len(starts.read_bytes()) < 4:
            assert time.monotonic() < until
            assert box.poll() is None, box.stderr and box.stderr.read()
            time.sleep(0.1)
        (init,) = children_of(box.pid)
        zombies = [1, 1]
        while len(zombies) > 1 and time.monotonic() < until:  # one may just have ended
            time.sleep(0.1)
            zombies = [pid for pid, state in children_of(init).items() if state == "Z"]
        assert len(zombies) <= 1
        os.kill(init, signal.SIGTERM)
        assert box.wait(60) == 0
    finally:
        box.kill()
        box.communicate()
