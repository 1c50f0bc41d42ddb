"""Recurring instances from the shell: counted among the jobs, listed by id, each with its own
slots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from slotwise import Disabled, JobContext, job, task
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

Say = Callable[..., str]
Ask = Callable[..., Any]


@job(name="feed", schedule=Disabled())
def feed(ctx: JobContext) -> None:
    """Fails where the data says so."""
    if ctx.data == "bad":
        raise RuntimeError("no such feed")


@pytest.fixture(params=["pg_url", "sqlite_url"])
def worker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ManualWorker]:
    """25 instances, of which one fails, after their first slot."""
    url = request.getfixturevalue(request.param)
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.setenv("TZ", "UTC")
    with ManualWorker([feed], url, ManualClock(NOON)) as made:
        for number in range(25):
            made.client.schedule_recurring(
                feed, f"c-{number:02}", "EVERY|1h", "bad" if number == 7 else "good"
            )
        made.tick("1h")
        while made.run_due():
            pass
        yield made


@pytest.fixture
def say(worker: ManualWorker, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command; what it prints, errors included."""

    def run(*arguments: str, expected: int = exits.OK) -> str:
        capsys.readouterr()
        found = status(list(arguments))
        captured = capsys.readouterr()
        assert found == expected, captured
        return captured.out + captured.err

    return run


@pytest.fixture
def ask(say: Say) -> Ask:
    """Run a command with --json; its answer."""
    return lambda *arguments: json.loads(say(*arguments, "--json"))


def test_jobs_are_listed_with_how_many_instances_they_have(say: Say, ask: Ask) -> None:
    """One line for all of them, and the command that lists them."""
    (listed,) = ask("jobs")
    assert (listed["job"], listed["id"], listed["instances"]) == (
        "feed",
        "recurring",
        25,
    )
    assert "feed: 25 recurring instances; see: slotwise jobs feed --instances" in say(
        "jobs"
    )


@pytest.mark.parametrize(
    "page",
    [7, *(pytest.param(one, marks=pytest.mark.extended) for one in (1, 500))],
    ids=lambda page: f"pages-of-{page}",
)
def test_instances_are_listed_by_id(
    say: Say, ask: Ask, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Twenty, or as many as are wanted; the command for what comes next goes on exactly there."""
    monkeypatch.setattr("slotwise.cli.jobs.PAGE", page)
    everything = [line["id"] for line in ask("jobs", "feed", "--instances", "--all")]
    assert everything == [f"c-{number:02}" for number in range(25)]
    told = say("jobs", "feed", "--instances")
    assert "… more: slotwise jobs feed --instances --after c-19" in told
    assert [
        line["id"] for line in ask("jobs", "feed", "--instances", "--after", "c-19")
    ] == everything[20:]
    failing = [
        line["id"]
        for line in ask("jobs", "feed", "--instances", "--all")
        if line["consecutive_failures"]
    ]
    assert failing == ["c-07"]


def test_one_instance(say: Say, ask: Ask) -> None:
    """Its row, and its slots apart from all others'."""
    shown = ask("jobs", "feed", "--id", "c-07")
    assert (shown["id"], shown["next_slot"], shown["consecutive_failures"]) == (
        "c-07",
        "2026-01-01T14:00:00Z",
        1,
    )
    assert say("jobs", "feed", "--id", "c-07").splitlines()[1].split() == [
        "id",
        "c-07",
    ]
    lines = ask("slots", "feed", "--id", "c-07")
    assert [(line["id"], line["outcome"]) for line in lines] == [
        ("c-07", "waiting"),
        ("c-07", "failed"),
    ]
    assert say("slots", "feed", "-n", "3").split()[0] == "ID"
    assert len(ask("slots", "feed", "--all")) == 50
    assert len(ask("slots", "feed", "-n", "3")) == 3


def test_what_is_not_there(say: Say) -> None:
    """One line, with the command that lists what is."""
    told = say("jobs", "feed", "--id", "nobody", expected=exits.FAILED)
    assert (
        "'feed' has no recurring instance 'nobody'; see: slotwise jobs feed --instances"
        in told
    )
    assert "no job 'food'" in say("jobs", "food", "--instances", expected=exits.FAILED)


def test_a_task_that_has_instances_only_is_listed(ask: Ask) -> None:
    """It has no row of its own."""
    with ManualWorker([task(name="other")(print)], os.environ["DATABASE_URL"]) as other:
        other.client.schedule_recurring("other", "x", "EVERY|1h")
    assert ask("jobs")[-1] == {"job": "other", "state": "instances", "instances": 1}


def test_the_month_counts_instances(say: Say) -> None:
    """Each as often as it goes by its schedule."""
    assert "18,600 starts of 26 jobs" in say("schedule", "next", "--month", "2026-01")
