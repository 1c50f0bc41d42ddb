"""Deploys with and without ids: the newer schedule counts, and a worker that was refused is
heard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.shell import Process, Shell

from slotwise.cli.shared import exits

pytestmark = pytest.mark.extended

JOBS = """
import os
from slotwise import Every, JobRegistry, job

@job(name="report", schedule=Every(os.environ["EVERY"]))
def report(ctx): ...

registry = JobRegistry(jobs=[report])
"""


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    """An application whose schedule comes from the environment, as if another release had another
    one.
    """
    made = Shell(tmp_path, pg_url)
    made.write("jobs.py", JOBS)
    yield made
    made.close()


def deploy(shell: Shell, every: str, *revision: str) -> tuple[Process, dict[str, Any]]:
    """A worker of this release; and what it says about its job's row."""
    options = ["--revision", *revision] if revision else []
    worker = shell.worker("--app", "jobs", *options, EVERY=every)
    planned = worker.wait_for("planned")
    worker.wait_for("worker_start")
    return worker, planned


def asked(shell: Shell, *arguments: str) -> Any:
    done = shell.ask(*arguments, "--json")
    assert done.returncode == exits.OK, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([], ["1"]),
        (["v9"], ["v10"]),
        (["2026-01-31"], ["1ab4c55"]),
        (["9fceb02"], ["1ab4c55"]),
        ([], []),
    ],
    ids=["first id", "versions", "another form", "hashes", "no ids"],
)
def test_newer(shell: Shell, first: list[str], second: list[str]) -> None:
    """A deploy that is newer is never taken for an older one, whatever its ids look like."""
    deploy(shell, "1d", *first)
    _, planned = deploy(shell, "2d", *second)
    assert planned["change"] == "changed"


@pytest.mark.parametrize(
    ("newer", "older", "cure"),
    [
        ("v10", ["v9"], "with a --revision above v10"),
        ("42", [], "start its workers with a --revision above 42"),
    ],
    ids=["lower", "none"],
)
def test_refused(shell: Shell, newer: str, older: list[str], cure: str) -> None:
    """Old code that starts again is refused: a warning says by whom and what helps; listings and
    health show it.
    """
    deploy(shell, "1d", newer)
    straggler, planned = deploy(shell, "2d", *older)
    assert (planned["change"], planned["level"], planned["planned_by"]) == (
        "outdated",
        "WARNING",
        newer,
    )
    assert planned["refused"].startswith("EVERY|2d")
    assert planned["schedule"].startswith("EVERY|1d")
    assert cure in planned["cure"]

    (job,) = asked(shell, "jobs")
    assert [worker["revision"] for worker in job["refused"]] == (older or [None])
    for arguments in (["jobs"], ["jobs", "report"]):
        done = shell.ask(*arguments)
        words = (
            "live workers whose schedule was refused: 1 with revision "
            f"{(older or ['none'])[0]}; revision {newer}"
        )
        assert words in " ".join((done.stdout + done.stderr).split())
    health = asked(shell, "health")
    assert (health["healthy"], health["refused"]) == (True, ["report"])
    assert health["notes"] == [
        "live workers have other schedules, which were refused: report"
    ]
    assert "note: live workers have other schedules" in shell.ask("health").stderr

    assert straggler.stop() == exits.OK
    assert asked(shell, "health")["refused"] == []
    assert asked(shell, "jobs", "report")["refused"] == []
