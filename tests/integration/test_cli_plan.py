"""What a deploy would change, before it does; and why a slot ran, from the shell."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import host_now

from slotwise import CatchUp, Every, JobContext, Schedule, job
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.cli.shared.application import load_registry
from slotwise.spi import SlotsSkipped
from slotwise.testing import ManualClock, ManualWorker

APP = """
from slotwise import CatchUp, Every, FixedDelay, JobRegistry, job

def of(name, schedule, **policies):
    return job(name=name, schedule=schedule, **policies)(lambda ctx: None)

registry = JobRegistry(jobs=[
    of("same", Every("1h")), of("changed", Every("2h")), of("policies", Every("1h"), catch_up=CatchUp.first()),
    of("added", Every("1h")), of("anew", FixedDelay("1h")), of("late", Every("1h")),
])
"""


def a_job(name: str, schedule: Schedule, **policies: Any) -> Any:
    def nothing(ctx: JobContext) -> None:
        """Does nothing."""

    return job(name=name, schedule=schedule, **policies)(nothing)


@pytest.fixture(params=["pg_url", "sqlite_url"])
def worker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ManualWorker]:
    """The deploy of before; one of its jobs has been due for an hour."""
    url = request.getfixturevalue(request.param)
    (tmp_path / "deployed.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "deployed", raising=False)
    jobs = [
        a_job(name, Every("1h")) for name in ("same", "changed", "policies", "gone")
    ]
    with ManualWorker(jobs, url, ManualClock(host_now())) as worker:
        with ManualWorker(
            [a_job("late", Every("1h"))],
            url,
            ManualClock(datetime(2020, 1, 1, tzinfo=UTC)),
        ):
            pass
        yield worker


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str, expected: int = exits.OK) -> str:
        capsys.readouterr()
        found = status(arguments)
        out, err = capsys.readouterr()
        assert found == expected, out + err
        return out

    return run


def rows(worker: ManualWorker) -> list[Any]:
    with worker.store.transaction() as connection:
        return list(connection.execute(sa.select(worker.store.tables.tasks)).all())


def test_a_deploy_is_rehearsed(worker: ManualWorker, say: Callable[..., str]) -> None:
    """Each job's change with old and new next slots; nothing is written, and the status says that
    there are any.
    """
    before = rows(worker)
    lines = json.loads(
        say("plan", "--app", "deployed", "--all", "--json", expected=exits.CHANGES)
    )
    found = {line["job"]: line for line in lines}
    assert {name: line["change"] for name, line in found.items()} == {
        "same": "kept",
        "changed": "changed",
        "policies": "policies",
        "added": "added",
        "anew": "added",
        "late": "kept",
        "gone": "orphaned",
    }
    assert [name for name, line in found.items() if line["at_once"]] == [
        "anew",
        "late",
    ]
    changed = found["changed"]
    assert (len(changed["before_slots"]), len(changed["after_slots"])) == (3, 3)
    assert changed["before_slots"] != changed["after_slots"]
    assert changed["after"].startswith("EVERY|2h")
    assert found["added"]["before"] is None
    assert rows(worker) == before


def test_people_see_what_changes(
    worker: ManualWorker, say: Callable[..., str]
) -> None:
    """And not what stays."""
    out = say("plan", "--app", "deployed", expected=exits.CHANGES)
    assert [line.split()[0] for line in out.splitlines()] == [
        "JOB",
        "added",
        "anew",
        "changed",
        "gone",
        "policies",
    ]


def test_nothing_to_change(worker: ManualWorker, say: Callable[..., str]) -> None:
    """After the deploy, and once the orphan is gone: status 0."""
    registry = load_registry("deployed", Path.cwd())
    with ManualWorker(
        list(registry_jobs(registry)), worker._database, ManualClock(host_now())
    ):
        say("delete", "gone", "--yes")
        assert say("plan", "--app", "deployed") == ""


def registry_jobs(registry: Any) -> Iterator[Any]:
    for found in registry.definitions.values():
        policies = (
            {"catch_up": found.catch_up} if found.catch_up != CatchUp.latest() else {}
        )
        yield a_job(found.name, found.schedule, **policies)


def test_an_older_deploy_would_be_refused(
    worker: ManualWorker, say: Callable[..., str]
) -> None:
    """It says so before, not after."""
    worker.plan("9")
    lines = json.loads(
        say(
            "plan",
            "--app",
            "deployed",
            "--revision",
            "8",
            "--json",
            expected=exits.CHANGES,
        )
    )
    assert {line["job"]: line["change"] for line in lines}["changed"] == "outdated"
    shown = say("plan", "--app", "deployed", "--revision", "8", expected=exits.CHANGES)
    assert "rejected: " in shown


def test_slots_that_a_second_deploy_skips_are_told_before_and_logged_after(
    worker: ManualWorker, say: Callable[..., str]
) -> None:
    """A job that is late by one schedule, and by the next, owes slots of two; the plan names the
    number of the first.

    Nothing is written by the plan. The deploy then logs a WARNING with the range.
    """
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    url, clock = worker.store.database.settings.database_url, ManualClock(start)
    for schedule in (Every("1h"), Every("25m")):
        with ManualWorker([a_job("added", schedule)], url, clock):
            clock.tick(timedelta(hours=2.5))
    before = rows(worker)
    lines = json.loads(
        say("plan", "--app", "deployed", "--json", expected=exits.CHANGES)
    )
    assert {
        line["job"]: line["superseded"] for line in lines if line["superseded"]
    } == {"added": 2}
    assert "2 slots are skipped (superseded); runs at once" in say(
        "plan", "--app", "deployed", expected=exits.CHANGES
    )
    assert rows(worker) == before
    with ManualWorker([a_job("added", Every("1h"))], url, clock) as newest:
        (told,) = [event for event in newest.events if isinstance(event, SlotsSkipped)]
        assert (told.level, told.reason, told.count) == (
            logging.WARNING,
            "superseded",
            2,
        )
        assert (told.first, told.last) == (
            start + timedelta(hours=1),
            start + timedelta(hours=2),
        )


def test_an_orphan_of_another_application(
    worker: ManualWorker, say: Callable[..., str]
) -> None:
    """It has a live worker, so it is none of ours, and no reason to stop a pipeline."""
    worker._worker.sign_in.membership.join()
    lines = json.loads(
        say("plan", "--app", "deployed", "--json", expected=exits.CHANGES)
    )
    (gone,) = [line for line in lines if line["job"] == "gone"]
    assert (gone["change"], gone["known_by"]) == ("orphaned", worker.name)
    registry = load_registry("deployed", Path.cwd())
    with ManualWorker(
        list(registry_jobs(registry)), worker._database, ManualClock(host_now())
    ):
        assert "gone" in say("plan", "--app", "deployed", expected=exits.OK)


def test_explain_from_the_shell(worker: ManualWorker, say: Callable[..., str]) -> None:
    """Sentences for people, an object for programs; the slot as a listing shows it."""
    slot = worker.client.operations.by("ada").trigger("same", note="please")
    shown = slot.replace(microsecond=slot.microsecond // 1000 * 1000).isoformat()
    head, *sentences = say("explain", "same", shown).splitlines()
    assert head.startswith("same 20")
    assert head.endswith("waiting (trigger)")
    assert "ada requested trigger: please" in sentences[-1]
    found = json.loads(say("explain", "same", shown, "--app", "deployed", "--json"))
    assert (found["outcome"], len(found["sentences"])) == ("waiting", len(sentences))
