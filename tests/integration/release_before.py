"""A worker of the release before, from the history of the checkout, as a process of its own.

The script runs with that release's source first in its path, and writes what it ran into a table.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.kit.programs import missing, program

#: The last commit before revision sw0004.
COMMIT = "dba878d5"
ROOT = Path(__file__).parents[2]

SCRIPT = """
import os, signal, sys, threading
import psycopg
from slotwise import CatchUp, Every, JobRegistry, job, task

url = sys.argv[1]
log = psycopg.connect(url, autocommit=True)


def note(ctx):
    log.execute(
        "INSERT INTO runs VALUES (%s, %s, %s, %s)", (ctx.name, ctx.id, ctx.slot, os.getpid())
    )


jobs = [
    job(name="tick", schedule=Every("200ms"), catch_up=CatchUp.all())(note),
    job(name="strict", schedule=Every("200ms"), catch_up=CatchUp.all(), on_lost="give_up")(note),
]
registry = JobRegistry(
    jobs=jobs, tasks=[task(name="mail")(note)], database_url=url, process_hook=False,
    poll_interval="100ms", heartbeat_interval="1s", shutdown_grace="10s",
)
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
registry.start()
stop.wait()
sys.exit(registry.stop())
"""


def unpack(folder: Path) -> Path:
    """Unpack the source of the release before; without the history the test is skipped."""
    git = program("git", "git")
    found = subprocess.run(
        [git, "-C", str(ROOT), "archive", COMMIT, "src", "migrations"],
        capture_output=True,
        check=False,
    )
    if found.returncode:
        missing(f"the history has no commit {COMMIT}; clone it whole")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def run(source: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start Python with this source of slotwise."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
