"""No command outlives its worker, however that ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

WORKER = """
import os, sys, threading
from datetime import timedelta
from slotwise.contrib.commands.process_group import ProcessGroup
from slotwise.contrib.commands.process_group import Output

def say(line):
    sys.stdout.write(line + chr(10))
    sys.stdout.flush()

def run(command):
    with ProcessGroup(["/bin/sh", "-c", command], Output(say)) as group:
        while not group.wait(timedelta(seconds=1)):
            pass
        group.finish(say)

run("true")
threads = [threading.Thread(target=run, args=[command]) for command in sys.argv[1:]]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("all ended", flush=True)
sys.stdin.read()
"""
STAYING = "echo $$; exec sleep 300"
DEAF = "trap '' TERM; echo $$; while :; do sleep 1; done"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def start(
    started: list[subprocess.Popen[str]], *commands: str
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, *commands],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[
            0
        ] not in (
            "Z",
            "X",
        )
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Wait until it has ended, by somebody else's hand."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], 60)[0])
    finally:
        os.close(watched)


def guardian_of(process: subprocess.Popen[str], besides: int = 0) -> int:
    """It starts right after the command."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := [pid for pid in guardians(process) if pid != besides]:
            return found[0]
    raise AssertionError("there is no guardian")


def guardians(process: subprocess.Popen[str]) -> list[int]:
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,args="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = (row.split(None, 2) for row in listed.splitlines())
    return [
        int(pid)
        for pid, parent, words in rows
        if int(parent) == process.pid and "slotwise guardian" in words
    ]


@pytest.mark.extended
@pytest.mark.parametrize("command", [STAYING, DEAF], ids=["staying", "deaf"])
def test_commands_end_with_a_killed_worker(
    command: str, started: list[subprocess.Popen[str]]
) -> None:
    """SIGKILL leaves a worker no time; its commands are asked to end, and killed when they do
    not.
    """
    process = start(started, command, command)
    pids = [int(line(process)), int(line(process))]
    process.kill()
    assert all(gone(pid) for pid in pids)


def test_what_has_ended_is_forgotten(
    started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A group that ended well is not ours to end, whoever has its number by now; and the guardian
    leaves.
    """
    process = start(
        started, f"(sleep 300 & echo $! > {tmp_path}/pid) > /dev/null 2>&1"
    )
    assert line(process) == "all ended"
    left = int((tmp_path / "pid").read_text())
    assert guardians(process) == []
    process.kill()
    process.wait()
    try:
        assert alive(left)
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_killed_guardian_is_replaced(
    started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The next command that starts or ends finds it gone; the new one knows all that run."""
    waiting = f"echo $$; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo over"
    process = start(started, STAYING, waiting)
    pids = sorted([int(line(process)), int(line(process))])
    guardian = guardian_of(process)
    os.kill(guardian, signal.SIGKILL)
    assert gone(guardian)
    (tmp_path / "go").touch()
    assert line(process) == "over"
    guardian_of(process, besides=guardian)
    process.kill()
    assert all(gone(pid) for pid in pids)


def test_a_signal_for_everybody_does_not_end_it(
    started: list[subprocess.Popen[str]],
) -> None:
    """Ctrl-C in a terminal, or a supervisor that ends a whole group, must leave it at its post."""
    process = start(started, STAYING)
    pid = int(line(process))
    guardian = guardian_of(process)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian, number)
    process.kill()
    assert gone(pid)
