"""A worker as the strictest containers start it: a user without a name or any right, and no place
to write.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.integration.shell import Shell

#: All mounts read-only but /proc, which the next line needs; then a number that no account has,
#: and no capability.
CONTAINER = """
awk '{print $5}' /proc/self/mountinfo | grep -v '^/proc' | sort -r |
while read mount; do mount -o remount,bind,ro "$mount" 2>/dev/null; done
exec unshare --user --map-user=12345 --map-group=12345 "$@"
"""
CONFINED = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    CONTAINER,
    "sh",
)

JOBS = """
import os, tempfile
from slotwise import Every, JobRegistry, job
from slotwise.contrib.commands import CommandJob

def refused(write):
    try:
        write()
    except OSError as error:
        return error.strerror
    return "written"

@job(name="thread", schedule=Every("1s"))
def thread(ctx):
    here = refused(lambda: open("note", "w"))
    print("thread", os.getuid(), here, "and", refused(tempfile.gettempdir), flush=True)

@job(name="process", schedule=Every("1s"), isolation="process")
def process(ctx):
    print("process", os.getuid(), flush=True)

command = CommandJob(name="command", schedule=Every("1s"), command="cat; id -u", stdin="told to it\\n")
registry = JobRegistry(jobs=[thread, process, command])
"""


@cache
def can_confine() -> bool:
    """Needs Linux, root, and util-linux."""
    if (
        not sys.platform.startswith("linux")
        or os.getuid() != 0
        or shutil.which("unshare") is None
    ):
        return False
    probe = subprocess.run(
        [*CONFINED, "touch", "/tmp/slotwise-probe"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "Read-only file system" in probe.stderr


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    made = Shell(tmp_path, pg_url)
    kept = {
        name: value
        for name, value in made.environment.items()
        if name.startswith(("SLOTWISE_", "DATABASE"))
    }
    made.environment = {
        **kept,
        "PATH": os.environ["PATH"],
        "SLOTWISE_APP": "jobs:registry",
    }
    made.write("jobs.py", JOBS)
    yield made
    made.close()


@pytest.mark.extended
@pytest.mark.skipif(
    not can_confine(), reason="takes root on Linux, and util-linux's unshare"
)
def test_a_worker_needs_no_place_to_write(shell: Shell) -> None:
    """Processes, threads, children and commands with something to read: all run, and the worker
    drains in order.
    """
    options = (
        "worker",
        "--processes",
        "2",
        "--log-format",
        "json",
        "--log-level",
        "DEBUG",
    )
    worker = shell.start_under(*CONFINED, arguments=options)
    for name in ("thread", "process", "command"):
        worker.wait_until_seen("settled", job=name, outcome="succeeded")
    worker.wait_for_output(
        "thread 12345 Read-only file system and No usable temporary directory"
    )
    worker.wait_for_output("process 12345")
    assert worker.signal(signal.SIGTERM).end() == 0
    told = [str(event) for event in worker.seen if "told to it" in str(event)]
    assert told, worker.seen[-20:]
    assert [
        event for event in worker.seen if event.get("level") in ("WARNING", "ERROR")
    ] == []
