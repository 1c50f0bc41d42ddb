"""The probe of a worker's pod, against real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.shell import PATIENCE, Shell, wait_until

JOBS = """
from slotwise import Every, JobRegistry, job

@job(name="hourly", schedule=Every("1h"))
def hourly(ctx): ...

registry = JobRegistry(jobs=[hourly])
"""


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    made = Shell(tmp_path, pg_url)
    made.environment |= {
        "SLOTWISE_APP": "jobs:registry", "SLOTWISE_MISSED_HEARTBEATS_LIMIT": "3", "SLOTWISE_WORKER_NAME": "pod-a",
    }  # fmt: skip
    made.write("jobs.py", JOBS)
    yield made
    made.close()


def probe(shell: Shell, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slotwise.contrib.kubernetes.alive", *arguments], cwd=shell.directory,
        env={**shell.environment, **environment}, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def test_a_worker_that_has_signed_in_is_alive(shell: Shell) -> None:
    """Not signed in, then live; another pod's worker does not count."""
    assert "worker pod-a has not signed in" in probe(shell).stderr
    shell.worker().wait_for("worker-start")
    assert probe(shell, "--signed-in").returncode == 0
    assert probe(shell).returncode == 0
    assert probe(shell, SLOTWISE_WORKER_NAME="pod-b").returncode == 1


@pytest.mark.extended
def test_a_worker_that_stops_its_heartbeats(shell: Shell) -> None:
    """Live, silent, live again."""
    worker = shell.worker()
    worker.wait_for("worker-start")
    assert probe(shell).returncode == 0
    os.kill(worker.pid, signal.SIGSTOP)
    wait_until(lambda: probe(shell).returncode == 1, "the probe sees the silence")
    assert "worker pod-a was last seen at" in probe(shell).stderr
    os.kill(worker.pid, signal.SIGCONT)
    wait_until(lambda: probe(shell).returncode == 0, "the probe sees the heartbeats")
    assert worker.stop() == 0


@pytest.mark.extended
def test_an_absent_database_restarts_no_pod(shell: Shell) -> None:
    """The liveness probe holds; the others fail, in one line."""
    gone = {"DATABASE_URL": "postgresql://localhost:1/none?connect_timeout=2"}
    assert probe(shell, **gone).returncode == 0
    strict = probe(shell, "--signed-in", **gone)
    assert (strict.returncode, len(strict.stderr.splitlines())) == (1, 1)


@pytest.mark.extended
def test_mistakes(shell: Shell) -> None:
    """An unknown argument, and a setting that is wrong."""
    assert probe(shell, "--signed").returncode == 2
    wrong = probe(shell, SLOTWISE_POLL_INTERVAL="soon")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (1, 1)
