"""Operations from the shell: what they say, what they ask, and what they leave in the audit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import host_now

from slotwise import Every, JobContext, Retry, job
from slotwise.cli.entry import cli, status
from slotwise.cli.shared import exits
from slotwise.cli.shared.given import Done
from slotwise.testing import ManualClock, ManualWorker


@job(name="minutely", schedule=Every("1m"), retry=Retry(max_attempts=1))
def minutely(ctx: JobContext) -> None:
    """Fails in its third minute."""
    if ctx.slot.minute == 3:
        raise RuntimeError("boom")


@pytest.fixture(params=["pg_url", "sqlite_url"])
def worker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ManualWorker]:
    """A worker whose job ran each minute of 2020's first five; then its clock goes on to today."""
    url = request.getfixturevalue(request.param)
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.setenv("SLOTWISE_AUTHOR", "ada")
    monkeypatch.setenv("TZ", "UTC")
    with ManualWorker(
        [minutely], url, ManualClock(datetime(2020, 1, 1, tzinfo=UTC))
    ) as worker:
        for _ in range(5):
            worker.tick("1m")
            worker.run_due()
        worker.clock.set(host_now())
        yield worker


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command; what it printed on stdout."""

    def run(*arguments: str, expected: int = exits.OK) -> str:
        capsys.readouterr()
        found = status(arguments)
        out, err = capsys.readouterr()
        assert found == expected, out + err
        return out if expected == exits.OK else err

    return run


def test_pause_and_resume(worker: ManualWorker, say: Callable[..., str]) -> None:
    """Each says what it did, or that there was nothing to do; the audit says who and why."""
    assert say("pause", "minutely", "--note", "full") == "minutely: paused\n"
    assert say("pause", "minutely") == "minutely: paused already\n"
    assert worker.run_due() == []
    assert (
        json.loads(say("resume", "minutely", "--dry-run", "--json"))["skipped"]
        > 1_000_000
    )
    resume = ("resume", "minutely", "--dry-run", "--json")
    before = json.loads(say(*resume))["next_slot"]
    told = say("resume", "minutely")
    # a minute may begin meanwhile
    after = json.loads(say("jobs", "minutely", "--json"))["next_slot"]
    assert any(
        f"slots of 1 job skipped; next slot {slot}" in told for slot in (before, after)
    )
    assert json.loads(say("resume", "minutely", "--json"))["next_slot"] is None
    assert say("resume", "minutely") == "minutely: not paused\n"
    resumed, paused, added = json.loads(say("audit", "minutely", "--json"))
    assert added["operation"] == "added"
    assert (paused["operation"], paused["author"], paused["note"]) == (
        "pause",
        "ada",
        "full",
    )
    assert resumed["operation"] == "resume"


def test_listings_know_of_pauses(
    worker: ManualWorker, say: Callable[..., str]
) -> None:
    """Who paused it, and what it waits for; a cluster in which all is paused has nothing that is
    overdue.
    """
    before = json.loads(say("jobs", "minutely", "--json"))
    say("pause", "minutely", "--note", "full")
    paused = json.loads(say("jobs", "minutely", "--json"))
    assert paused["state"] == "paused"
    assert paused["reason"].startswith("paused by ada at ")
    assert paused["reason"].endswith(": full")
    assert (paused["next_slot"], paused["due"]) == (before["next_slot"], before["due"])
    (line, *_) = json.loads(say("slots", "minutely", "--json"))
    assert (line["outcome"], line["due"]) == ("paused", before["due"])
    say("resume", "minutely", "--replay")
    say("health", "--min-workers", "0", expected=exits.FAILED)
    say("pause", "--all", "--yes")
    found = json.loads(say("health", "--min-workers", "0", "--json"))
    assert (found["healthy"], found["overdue"], found["orphans"]) == (True, 0, 0)
    assert found["paused"].startswith("paused by ada at ")


def test_a_pause_of_all_is_in_sight(
    worker: ManualWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever lists jobs, or resumes one, is told why nothing starts; a job that nobody knows has
    no operations.
    """
    assert status(["pause", "--all", "--yes", "--note", "disk"]) == exits.OK
    for arguments in (["jobs"], ["resume", "minutely"], ["audit", "minutely"]):
        capsys.readouterr()
        assert status(arguments) == exits.OK
        err = capsys.readouterr().err
        assert ", by ada: disk; nothing starts before: slotwise resume --all" in err
    assert status(["audit", "minutley"]) == exits.FAILED
    assert (
        "no job 'minutley' in this database; did you mean 'minutely'?"
        in capsys.readouterr().err
    )


def test_a_pause_of_all_asks_first(
    worker: ManualWorker, say: Callable[..., str]
) -> None:
    """Without a terminal it wants to be told; a rehearsal does not ask."""
    assert "--yes" in say("pause", "--all", expected=exits.USAGE)
    assert say("pause", "--all", "--dry-run") == "dry run: all: paused\n"
    assert say("pause", "--all", "--yes", "--note", "maintenance") == "all: paused\n"
    assert worker.run_due() == []
    assert "--yes" in say("resume", "--all", expected=exits.USAGE)
    assert "all: resumed" in say("resume", "--all", "--yes")
    assert say("resume", "--all", "--yes") == "all: not paused\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["pause"],
        ["pause", "minutely", "--all"],
        ["resume"],
        ["cancel", "minutely", "2020-01-01", "--backfill"],
        ["retry", "minutely", "yesterday"],
        ["backfill", "minutely", "--from", "1d"],
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_a_usage_error(
    worker: ManualWorker, say: Callable[..., str], arguments: list[str]
) -> None:
    """One line, status 2."""
    assert "error:" in say(*arguments, expected=exits.USAGE)


def test_a_trigger_is_found_again(
    worker: ManualWorker, say: Callable[..., str]
) -> None:
    """Its slot can be told from what a listing shows: to the millisecond."""
    said = json.loads(say("trigger", "minutely", "--json"))
    slot = datetime.fromisoformat(said["slot"])
    shown = slot.replace(microsecond=slot.microsecond // 1000 * 1000)
    assert "asked" in say("cancel", "minutely", shown.isoformat())


def test_skip_next(worker: ManualWorker, say: Callable[..., str]) -> None:
    """It says which slot; with a slot that is not the next one it changes nothing."""
    assert say("skip-next", "minutely", "--dry-run") == (
        "dry run: minutely: slot 2020-01-01T00:06:00Z skipped\n"
    )
    assert "slot 2020-01-01T00:06:00Z skipped" in say(
        "skip-next", "minutely", "2020-01-01T00:06Z"
    )
    assert "the next slot of job 'minutely' is" in say(
        "skip-next", "minutely", "2020-01-01T00:06Z", expected=exits.FAILED
    )


def test_cancel_says_whether_anything_runs(
    worker: ManualWorker, say: Callable[..., str]
) -> None:
    """Status 1 where nothing does."""
    say("cancel", "minutely", expected=exits.FAILED)
    worker.poll()
    assert "to stop" in say("cancel", "minutely")


def test_retry(worker: ManualWorker, say: Callable[..., str]) -> None:
    """The failed slot runs once more; the others are refused in one line."""
    assert "will be retried" in say("retry", "minutely", "2020-01-01T00:03Z")
    assert "has not ended" in say(
        "retry", "minutely", "2020-01-01T00:03Z", expected=exits.FAILED
    )
    assert "is succeeded" in say(
        "retry", "minutely", "2020-01-01T00:02Z", expected=exits.FAILED
    )


def test_backfill(worker: ManualWorker, say: Callable[..., str]) -> None:
    """It shows what is missing, asks, and can be called off."""
    span = ["--from", "2019-12-31T23:50Z", "--to", "2020-01-01T00:05Z"]
    found = json.loads(say("backfill", "minutely", *span, "--dry-run", "--json"))
    assert (len(found["slots"]), found["present"], found["dry_run"]) == (11, 5, True)
    assert "--yes" in say("backfill", "minutely", *span, expected=exits.USAGE)
    assert (
        say("backfill", "minutely", *span, "--pace", "1s", "--yes")
        == "minutely: 11 slots run\n"
    )
    assert (
        say("backfill", "minutely", *span, "--yes") == "minutely: nothing is missing\n"
    )
    assert (
        say("cancel", "minutely", "--backfill", "--yes")
        == "minutely: 11 slots cancelled\n"
    )


def test_delete(worker: ManualWorker, say: Callable[..., str]) -> None:
    """It asks, and says how many rows have gone; the history stays."""
    assert (
        say("delete", "minutely", "--dry-run") == "dry run: minutely: 1 row deleted\n"
    )
    assert say("delete", "minutely", "--yes") == "minutely: 1 row deleted\n"
    assert "no job 'minutely'" in say(
        "delete", "minutely", "--yes", expected=exits.FAILED
    )
    assert len(json.loads(say("slots", "minutely", "--all", "--json"))) == 6


def test_the_audit_is_a_table(worker: ManualWorker, say: Callable[..., str]) -> None:
    """For people: when, who, what, and with what."""
    _, added = say("audit").splitlines()
    assert "added" in added
    say("backfill", "minutely", "--from", "2019-12-31", "--to", "2020-01-01", "--yes")
    head, line, _ = say("audit").splitlines()
    assert head.split() == ["AT", "AUTHOR", "OPERATION", "JOB", "SLOT", "WITH", "NOTE"]
    assert "ada" in line
    assert "slots=1441" in line


def test_the_audit_of_a_period(worker: ManualWorker, say: Callable[..., str]) -> None:
    """The newest operations of it, also behind many newer ones."""
    for note in ("first", "second", "third", "fourth"):
        worker.clock.set(host_now())
        worker.operations.by("ada").pause("minutely", note=note)
        worker.clock.set(host_now())
        worker.operations.by("ada").resume("minutely", note=note)
    entries = json.loads(say("audit", "--json"))
    since, before = entries[5]["at"], entries[2]["at"]
    period = ("audit", "minutely", "--since", since, "--before", before, "--json")
    assert json.loads(say(*period)) == entries[3:6]
    assert json.loads(say(*period, "-n", "1")) == entries[3:4]
    assert json.loads(say("audit", "--before", since, "-n", "1", "--json")) == [
        entries[6]
    ]
    assert say("audit", "--since", "1d", "--before", "23h") == "no such operations\n"


def test_the_audit_cuts_what_is_long(
    worker: ManualWorker, say: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done to which job stays in view, and so does the end of the author, where the
    database writes its role; ``--json`` has all.
    """
    long = "a" * 150 + " (database role r)"
    worker.operations.by("ada").pause("minutely")
    engine = sa.create_engine(os.environ["DATABASE_URL"])
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "UPDATE scheduled_controls SET author = :author, arguments = :given"
            ),
            {"author": long, "given": json.dumps({"before": "x" * 10_000})},
        )
    engine.dispose()
    monkeypatch.setenv("COLUMNS", "200")
    head, line, _ = say("audit").splitlines()
    assert head.split()[:4] == ["AT", "AUTHOR", "OPERATION", "JOB"]
    assert "before=xxx" in line
    assert "(database role r)  pause      minutely" in line
    entry, _ = json.loads(say("audit", "--json"))
    assert entry["author"] == long


def test_an_interrupted_backfill_says_what_is_done(
    worker: ManualWorker, say: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that the same command does the rest."""
    monkeypatch.setattr("slotwise.store.operations.transaction.CHUNK", 2)
    span = ["--from", "2019-12-31T23:50Z", "--to", "2020-01-01T00:05Z"]
    told = Done.__call__

    def interrupt(done: Done, rows: int) -> None:
        told(done, rows)
        if rows == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as pressed:
        pressed.setattr(Done, "__call__", interrupt)
        message = say(
            "backfill", "minutely", *span, "--yes", expected=exits.INTERRUPTED
        )
    assert message.endswith(
        "\ninterrupted: 4 rows are done; run the same command again for the rest\n"
    )
    assert say("backfill", "minutely", *span, "--yes") == "minutely: 11 slots run\n"


OPERATIONS = [
    "pause",
    "resume",
    "trigger",
    "skip-next",
    "cancel",
    "retry",
    "backfill",
    "delete",
]


@pytest.mark.parametrize("name", [*OPERATIONS, "audit"])
def test_every_operation_shows_examples(name: str, say: Callable[..., str]) -> None:
    """And takes what all operations take."""
    text = say(name, "--help")
    assert f"slotwise {name}" in text.partition("Examples:")[2]
    options: set[Any] = {
        option for parameter in cli.commands[name].params for option in parameter.opts
    }
    assert "--json" in options
    if name in OPERATIONS:
        assert {"--author", "--note", "--dry-run"} <= options
