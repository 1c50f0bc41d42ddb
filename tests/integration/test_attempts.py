"""Who had a slot before, told after a real death: by the log of the worker that takes over, and by
the commands.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.integration.shell import Shell

from slotwise import Daily, Every, job
from slotwise.cli.shared import exits
from slotwise.testing import ManualWorker

JOBS = """
import os
from slotwise import Daily, Every, JobRegistry, job

@job(name="report", schedule=Every("1d"))
def report(ctx):
    if ctx.attempt == 1:
        ctx.wait("60s")
    elif ctx.attempt == 2:
        raise ValueError("no\\x1b[31m file\\npassword=hush")

registry = JobRegistry(jobs=[report])
"""


def test_a_take_over_names_the_dead(pg_url: str, tmp_path: Path) -> None:
    """SIGKILL; the WARNING of the other worker has its name, and both are shown, with when it was
    last heard of.
    """
    shell = Shell(tmp_path, pg_url)
    shell.write("jobs.py", JOBS)
    try:
        first = shell.worker("--app", "jobs", SLOTWISE_WORKER_NAME="first")
        first.wait_for("worker_start")
        assert shell.ask("trigger", "report").returncode == exits.OK
        begun = first.wait_for("handler_start", job="report")
        other = shell.worker("--app", "jobs", SLOTWISE_WORKER_NAME="other")
        other.wait_for("worker_start")
        first.signal(signal.SIGKILL).end()
        reaped = other.wait_for("reaped", job="report")
        failed = other.wait_for("settled", job="report")
        assert other.stop() == exits.OK
    finally:
        shell.close()
    assert (reaped["level"], reaped["reason"], reaped["holder"]) == (
        "WARNING",
        "rerun",
        begun["worker"],
    )
    assert (failed["level"], failed["attempt"], failed["outcome"]) == (
        "ERROR",
        2,
        "failed",
    )
    assert failed["traceback"].splitlines()[0] == "Traceback (most recent call last):"
    assert "hush" not in failed["traceback"]
    slot = begun["slot"]
    shown = json.loads(shell.ask("slots", "show", "report", slot, "--json").stdout)
    assert [
        (one["number"], one["worker"], one["outcome"]) for one in shown["attempts"]
    ] == [
        (1, begun["worker"], "lost"),
        (2, failed["worker"], "failed"),
    ]
    assert begun["worker"].startswith("first:")
    assert shown["lost_by"] == begun["worker"]
    assert shown["silent_since"] == shown["attempts"][0]["ended"]
    _read_aloud(shell, slot, begun["worker"], failed["worker"])


def _read_aloud(shell: Shell, slot: str, first: str, other: str) -> None:
    """What people read: both names, and the traceback as Python prints it, with nothing that a
    terminal obeys.
    """
    told = shell.ask("slots", "show", "report", slot).stdout
    assert first in told
    assert other in told
    assert "\n  Traceback (most recent call last):\n    File " in told
    assert told.rstrip().endswith("ValueError: no\\x1b[31m file\n  password=***")
    assert "lost by first:" in shell.ask("slots", "report").stdout
    told = shell.ask("explain", "report", slot)
    explained = told.stdout
    assert f"Attempt 1 was lost: {first} claimed it at " in explained
    assert f"{first} was last heard of at " in explained
    assert "Traceback" not in explained
    assert (
        "\n  Traceback (most recent call last):\n"
        in shell.ask(*told.stderr.removeprefix("tracebacks: slotwise ").split()).stdout
    )
    now = shell.ask("explain", "report").stderr
    advice = now.partition("tracebacks: slotwise ")[2].split()
    assert "Traceback (most recent call last)" in shell.ask(*advice).stdout


@pytest.mark.parametrize("words", [["show"], ["show", "--json"]])
def test_a_job_may_be_called_show(
    pg_url: str, tmp_path: Path, words: list[str]
) -> None:
    """Without more it is the listing."""
    answer = Shell(tmp_path, pg_url).ask("slots", *words)
    assert answer.returncode == exits.FAILED
    assert "no job 'show'" in answer.stderr + answer.stdout


def test_a_job_that_is_gone_without_history(pg_url: str, tmp_path: Path) -> None:
    """Its deletion is in the audit, with who ordered it."""
    shell = Shell(tmp_path, pg_url)
    with ManualWorker([job(name="report", schedule=Every("1d"))(print)], pg_url):
        assert (
            shell.ask("delete", "report", "--yes", "--author", "ada").returncode
            == exits.OK
        )
    for words in (["explain", "report"], ["explain", "report", "2020-11-25T02:00Z"]):
        answer = shell.ask(*words)
        assert answer.returncode == exits.FAILED
        assert "ada requested delete" in answer.stdout


def test_a_date_alone_is_the_slot_of_that_day(pg_url: str, tmp_path: Path) -> None:
    """In the job's zone; a day with several slots, or none, is read as its midnight."""
    shell = Shell(tmp_path, pg_url)
    nightly = job(name="nightly", schedule=Daily("02:30", tz="Europe/Vienna"))(print)
    often = job(name="often", schedule=Every("1h"))(print)
    with ManualWorker([nightly, often], pg_url):
        answer = shell.ask("explain", "nightly", "2999-07-01", "--json")
        assert answer.returncode == exits.OK
        found = json.loads(answer.stdout)
        assert (found["slot"], found["outcome"]) == (
            "2999-07-01T00:30:00Z",
            "upcoming",
        )
        found = json.loads(
            shell.ask("explain", "often", "2999-07-01", "--json").stdout
        )
        assert found["slot"] == "2999-07-01T00:00:00Z"
