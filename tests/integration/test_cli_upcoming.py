"""What is to come: ``slotwise slots --until``, and the next slot that runs in ``slotwise jobs``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.kit.records import host_now

from slotwise import Calendar, Cron, Daily, Every, JobContext, TaskContext, job, task
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.testing import ManualClock, ManualWorker

Say = Callable[..., str]


@job(name="often", schedule=Every("10m"))
def often(ctx: JobContext) -> None:
    """Six times an hour."""


@job(name="paused", schedule=Every("20m"))
def paused(ctx: JobContext) -> None:
    """Three times an hour."""


@job(name="bank", schedule=Daily("03:00", tz="UTC").excluding("closed"))
def bank(ctx: JobContext) -> None:
    """On business days."""


@job(name="leap", schedule=Cron("0 0 29 2 *", "UTC"))
def leap(ctx: JobContext) -> None:
    """Every four years."""


@task(name="feed")
def feed(ctx: TaskContext) -> None:
    """With recurring instances."""


@pytest.fixture
def worker(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualWorker]:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("SLOTWISE_AUTHOR", "ada")
    monkeypatch.setenv("COLUMNS", "200")
    registered = [often, paused, bank, leap, feed]
    clock = ManualClock(host_now())
    today = clock.now().date()
    days = [today + timedelta(days=number) for number in range(3)]
    with ManualWorker([feed], pg_url, clock) as first:
        closed = Calendar(name="closed", days=frozenset(days), weekend=frozenset())
        first.operations.calendars.change("closed", lambda _: closed, "calendar_add")
    with ManualWorker(registered, pg_url, clock) as worker:
        yield worker


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command; return stdout."""

    def run(*arguments: str, expected: int = exits.OK) -> str:
        found = status(list(arguments))
        out, err = capsys.readouterr()
        assert found == expected, err
        return out or err

    return run


def test_the_next_hour(worker: ManualWorker, say: Say) -> None:
    """Jobs and instances in one list, by time; with what keeps them from starting."""
    worker.client.schedule_recurring(feed, "7", "EVERY|15m")
    worker.operations.by("ada").pause("paused", note="full")
    found = json.loads(say("slots", "--until", "1h", "--json"))
    assert found == sorted(found, key=lambda one: one["next_slot"])
    told = {(one["job"], one["id"]): one for one in found}
    assert told.keys() == {
        ("often", "recurring"),
        ("paused", "recurring"),
        ("feed", "7"),
    }
    assert told["often", "recurring"]["slots"] in (6, 7)
    assert told["often", "recurring"]["reason"] is None
    assert told["paused", "recurring"]["state"] == "paused"
    assert "paused by ada" in told["paused", "recurring"]["reason"]
    table = say("slots", "--until", "1h")
    assert table.split()[:4] == ["JOB", "ID", "NEXT", "SLOT"]
    assert len(say("slots", "--until", "1h", "-n", "1").splitlines()) == 2
    (line,) = json.loads(say("slots", "feed", "--until", "1h", "--json"))
    assert line["job"] == "feed"


def test_a_slot_on_a_holiday_does_not_run(worker: ManualWorker, say: Say) -> None:
    """The list says so; ``jobs`` shows the first slot after the holidays, in text and JSON."""
    worker.run_due()
    (line,) = json.loads(say("slots", "bank", "--until", "40h", "--json"))
    assert (line["runs"], line["reason"]) == (
        False,
        "does not run: not a business day",
    )
    after = (worker.clock.now() + timedelta(days=3)).date()
    first = datetime(after.year, after.month, after.day, 3, tzinfo=UTC)
    line = json.loads(say("jobs", "bank", "--json"))
    assert datetime.fromisoformat(line["next_slot"]) == first
    (line,) = [
        one for one in json.loads(say("jobs", "--json")) if one["job"] == "bank"
    ]
    assert datetime.fromisoformat(line["next_slot"]) == first
    assert f"{first:%Y-%m-%dT%H:%M}" in say("jobs", "bank")
    assert "does not run: not a business day" in say("jobs", "bank")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["--until", "soon"], "'soon' is neither", id="no time"),
        pytest.param(
            ["--until", "2020-01-01T00:00Z"], "for what was: --since", id="past"
        ),
        pytest.param(["--until", "500d"], "within a year", id="far"),
        pytest.param(["--until", "1h", "--since", "1h"], "leave out", id="both"),
    ],
)
def test_refusals(
    worker: ManualWorker, say: Say, arguments: list[str], told: str
) -> None:
    assert told in say("slots", *arguments, expected=exits.USAGE)


def test_nothing_is_to_come(worker: ManualWorker, say: Say) -> None:
    assert "leap: no slots until" in say("slots", "leap", "--until", "1s")


def test_a_deploy_and_a_rename_in_the_audit(
    pg_url: str, worker: ManualWorker, say: Say
) -> None:
    """Added jobs have a line; instances that follow a renamed task have one together."""
    added = [
        one
        for one in json.loads(say("audit", "--json"))
        if one["operation"] == "added"
    ]
    assert {one["job"] for one in added} == {"often", "paused", "bank", "leap"}
    assert {one["number"] for one in added} == {None}
    for id in "xyz":
        worker.client.schedule_recurring(feed, id, "EVERY|15m")
    renamed = task(name="feed-new", aliases=("feed",))(lambda ctx: None)
    new = ManualWorker([renamed], pg_url, worker.clock)
    with new:
        for id in "xyz":
            new.client.schedule_recurring(renamed, id, "EVERY|15m")
        entries = json.loads(say("audit", "feed-new", "--json"))
    (one,) = [one for one in entries if one["operation"] == "rename"]
    assert one["arguments"] == {"former": "feed", "instances": 3}
