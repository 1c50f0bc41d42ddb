"""One-time tasks from the shell: scheduled, looked at, moved, cancelled, driven again."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.kit.records import Failed

from slotwise import Fail, JobRegistry, Retry, TaskContext, task
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.testing import ManualWorker

APP = """
from slotwise import JobRegistry, TaskContext, task

from typing import TypedDict

class Parcel(TypedDict, total=False):
    number: int

@task(name="mail", priority=70)
def mail(ctx: TaskContext[dict[str, int]]) -> None: ...

@task(name="ship")
def ship(ctx: TaskContext[Parcel]) -> None: ...

registry = JobRegistry(tasks=[mail, ship])
"""


@pytest.fixture(params=["pg_url", "sqlite_url"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found: str = request.getfixturevalue(request.param)
    monkeypatch.setenv("DATABASE_URL", found)
    monkeypatch.setenv("TZ", "UTC")
    return found


@pytest.fixture
def ask(url: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with --json; its answer."""

    def run(*arguments: str, code: int = exits.OK) -> Any:
        capsys.readouterr()
        assert status(["tasks", *arguments, "--json"]) == code, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("place", ["file", "-"])
def test_data_from_a_file(
    ask: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """Or from another program."""
    (tmp_path / "file").write_text('{"n": "ü"}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO('{"n": "ü"}'))
    ask("schedule", "mail", "--data", f"@{place}", "--id", "7")
    assert ask("list", "mail", "7")["task"]["data"] == {"n": "ü"}


def test_the_life_of_a_task(ask: Callable[..., Any]) -> None:
    """Each command answers what the client answers."""
    assert (
        ask("schedule", "mail", "--data", '{"n": 1}', "--id", "7", "--at", "1h")[
            "status"
        ]
        == "scheduled"
    )
    assert (
        ask("schedule", "mail", "--id", "7", "--if-exists", "keep")["status"]
        == "exists"
    )
    (line,) = ask("list", "mail")
    assert (line["task"], line["id"], line["state"], line["priority"]) == (
        "mail",
        "7",
        "waiting",
        50,
    )
    assert (
        ask("reschedule", "mail", "7", "--at", "2100-01-31T02:00Z")["status"]
        == "scheduled"
    )
    shown = ask("list", "mail", "7")
    assert (shown["task"]["data"], shown["task"]["due"], shown["history"]) == (
        {"n": 1},
        "2100-01-31T02:00:00Z",
        [],
    )
    assert ask("cancel", "mail", "7") == {
        "task": "mail",
        "id": "7",
        "status": "cancelled",
    }
    assert ask("cancel", "mail", "7", code=exits.FAILED)["status"] == "gone"
    assert ask("list", "--state", "dead") == []


def test_dead_tasks(
    url: str, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Found, understood, and driven again: some, or all when one is sure."""

    @task(name="mail", retry=None, record="failures")
    def mail(ctx: TaskContext[int]) -> None:
        raise ValueError("boom")

    with ManualWorker([mail], url) as worker:
        for number in range(3):
            worker.client.schedule(mail, number, id=str(number))
        worker.run_due()
    assert [line["id"] for line in ask("list", "--state", "dead")] == ["0", "1", "2"]
    assert [line["id"] for line in ask("list", "mail", "-n", "1", "--after", "0")] == [
        "1"
    ]
    shown = ask("list", "mail", "1")
    assert "ValueError: boom" in shown["task"]["last_error"]
    assert [end["outcome"] for end in shown["history"]] == ["failed"]
    assert ask("retry", "mail", "--dry-run") == {
        "task": "mail",
        "scheduled": ["0", "1", "2"],
        "dry_run": True,
    }
    found = ask("retry", "mail", "1", "7", "--dry-run", code=exits.FAILED)
    assert [(one["id"], one["status"]) for one in found] == [
        ("1", "scheduled"),
        ("7", "gone"),
    ]
    assert ask("reschedule", "mail", "1", code=exits.FAILED)["status"] == "exists"
    assert ask("retry", "mail", "1") == {
        "task": "mail",
        "id": "1",
        "status": "scheduled",
    }
    assert status(["tasks", "retry", "mail"]) == exits.USAGE
    assert "--yes" in capsys.readouterr().err
    assert ask("retry", "mail", "--yes")["scheduled"] == ["0", "2"]
    assert status(["audit", "--json"]) == exits.OK
    found = json.loads(capsys.readouterr().out)
    assert [one["operation"] for one in found] == ["retry_tasks", "retry_tasks"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["list", "mail", "7"], exits.FAILED, "no task 'mail' with id '7'"),
        (
            ["cancel", "mail", "7", "8"],
            exits.FAILED,
            "no task 'mail' has the id '7', '8'; it has ended",
        ),
        (["reschedule", "mail", "7"], exits.FAILED, "no task 'mail' has the id '7'"),
        (["retry", "mail", "7"], exits.FAILED, "no task 'mail' has the id '7'"),
        (["schedule", "mail", "--data", "{"], exits.USAGE, "'{' is not valid JSON"),
        (
            ["schedule", "mail", "--data", "@no/such"],
            exits.USAGE,
            "'@no/such' cannot be read: No such file",
        ),
        (["schedule", "mail", "--at", "soon"], exits.USAGE, "'soon' is neither"),
        (["list", "--after", "7"], exits.USAGE, "--after needs the NAME"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_right(
    url: str,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    """In one line, with the cure."""
    assert status(["tasks", *arguments]) == code
    assert words in capsys.readouterr().err


def test_with_the_application(
    url: str,
    ask: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Data and priority are as the application's task has them."""
    # imported once in a process, and its registry keeps its address
    module = f"app_of_{url.partition(':')[0]}"
    (tmp_path / f"{module}.py").write_text(APP)
    app = ["--app", module, "--app-dir", str(tmp_path)]
    assert (
        ask("schedule", "mail", "--data", '{"n": 1}', "--id", "7", *app)["status"]
        == "scheduled"
    )
    assert ask("list")[0]["priority"] == 70
    assert (
        status(["tasks", "schedule", "ship", "--data", '{"numbre": 1}', *app])
        == exits.FAILED
    )
    assert "numbre: would be lost; the type has" in capsys.readouterr().err
    assert (
        status(["tasks", "schedule", "mail", "--data", '{"n": "x"}', *app])
        == exits.FAILED
    )
    assert "n: expected int, got 'x'" in capsys.readouterr().err


def test_of_the_application(
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A named application, also by the environment, must have the task; without one any name
    will do.
    """
    module = f"named_app_of_{url.partition(':')[0]}"
    (tmp_path / f"{module}.py").write_text(APP)
    order = ["tasks", "schedule", "--app-dir", str(tmp_path)]
    for app in (["--app", module], []):
        assert status([*order, "mali", *app]) == exits.FAILED
        assert (
            f"{module} has no task 'mali'; did you mean 'mail'?"
            in capsys.readouterr().err
        )
        monkeypatch.setenv("SLOTWISE_APP", module)
    assert status([*order, "mail", "--data", '{"n": "x"}']) == exits.FAILED
    assert "n: expected int, got 'x'" in capsys.readouterr().err
    monkeypatch.setenv("SLOTWISE_APP", "")
    assert status([*order, "mali"]) == exits.OK


def test_for_people(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables and fields; nothing to list is said."""
    assert status(["tasks", "list"]) == exits.OK
    assert capsys.readouterr().out == "no such tasks\n"
    ask("schedule", "mail", "--data", '"ü"', "--id", "7")
    ask("schedule", "mail", "--id", "8", "--at", "1h")
    for command in (["list"], ["list", "mail", "8"]):
        assert status(["tasks", *command]) == exits.OK
        assert "waiting" in capsys.readouterr().out


def test_counts(
    url: str, ask: Callable[..., Any], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name and state, the next due time, and why nobody runs it; no further than there is use
    in counting.
    """
    with ManualWorker(
        [task(name=name)(lambda ctx: None) for name in ("mail", "other")], url
    ) as worker:
        client = worker.client
        client.schedule_many("mail", range(3), at=datetime(2100, 1, 1, tzinfo=UTC))
        client.schedule("mail", id="blocked", countdown=1)
        client.schedule("other", at=datetime(2026, 1, 1, tzinfo=UTC))
        (claim,) = worker.poll()
        worker.finish(claim, Failed("no", final=True))
        worker.settle()
        client.schedule("other", at=datetime(2026, 1, 1, tzinfo=UTC))
        client.schedule_recurring("mail", "often", "EVERY|5m")
        mail, other = ask("list", "--count")
        assert mail == {
            "task": "mail",
            "waiting": 3,
            "next_due": "2100-01-01T00:00:00Z",
            "due": 0,
            "oldest": None,
            "came": None,
            "ended": 0.0,
            "left": None,
            "running": 0,
            "paused": 0,
            "blocked": 1,
            "dead": 0,
            "reason": None,
        }
        assert (other["waiting"], other["dead"], other["reason"]) == (
            1,
            1,
            "no worker is alive",
        )
        monkeypatch.setattr("slotwise.store.reading.task_counts.MOST", 2)
        assert status(["tasks"]) == exits.OK
        told = capsys.readouterr()
    assert "over 2" in told.out
    assert "other is due: no worker is alive" in told.err


def test_a_page_and_the_next(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is more, it is said how one goes on."""
    for number in range(3):
        ask("schedule", "mail", "--id", f"no {number}", "--at", "1h")
    assert (
        status(["tasks", "list", "mail", "--state", "waiting", "-n", "2"]) == exits.OK
    )
    assert (
        capsys.readouterr().err
        == "… more: slotwise tasks list mail --after 'no 1' --state waiting\n"
    )
    assert status(["tasks", "list", "mail", "-n", "3"]) == exits.OK
    assert capsys.readouterr().err == ""


def test_some_and_all_are_cancelled(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Several ids, all of a state, or all; rehearsed first; never by a slip."""
    for number in range(5):
        ask("schedule", "mail", "--id", str(number), "--at", "1h")
    assert ask("cancel", "mail", "0", "7", "--dry-run", code=exits.FAILED) == [
        {"task": "mail", "id": "0", "status": "cancelled", "dry_run": True},
        {"task": "mail", "id": "7", "status": "gone", "dry_run": True},
    ]
    assert [
        one["status"] for one in ask("cancel", "mail", "0", "7", code=exits.FAILED)
    ] == ["cancelled", "gone"]
    assert ask("cancel", "mail", "--all", "--dry-run") == {
        "task": "mail",
        "cancelled": 4,
        "dry_run": True,
    }
    assert ask("cancel", "mail", "--state", "dead", "--yes")["cancelled"] == 0
    assert len(ask("list", "mail")) == 4
    for arguments, words in (
        (["mail"], "name the tasks by one of: their IDS, --state, --all"),
        (["mail", "--all"], "--dry-run"),
    ):
        assert status(["tasks", "cancel", *arguments]) == exits.USAGE
        assert words in capsys.readouterr().err
    assert ask("cancel", "mail", "--all", "--yes")["cancelled"] == 4
    assert ask("list") == []


def test_tasks_are_tried_again_now(url: str, ask: Callable[..., Any]) -> None:
    """A dead one, and one that waits for its next attempt; a rehearsal changes nothing."""

    @task(
        name="mail",
        retry=Retry.exponential(max_attempts=2, initial="366d", max_wait="366d"),
    )
    def mail(ctx: TaskContext[str]) -> None:
        raise Fail("never") if ctx.data == "dead" else OSError("later")

    with ManualWorker([mail], url) as worker:
        for data in ("dead", "later"):
            worker.client.schedule(mail, data, id=data)
        worker.run_due()
    for rehearsed in (["--dry-run"], []):
        assert {line["id"]: line["state"] for line in ask("list")} == {
            "dead": "dead",
            "later": "waiting",
        }
        answers = ask(
            "retry", "mail", "dead", "later", "gone", *rehearsed, code=exits.FAILED
        )
        assert [(one["id"], one["status"]) for one in answers] == [
            ("dead", "scheduled"),
            ("later", "scheduled"),
            ("gone", "gone"),
        ]
    assert {line["state"] for line in ask("list")} == {
        "no_live_worker"
    }  # due at once; nobody is there to run it


def test_a_due_task_that_no_live_worker_can_take(
    url: str, ask: Callable[..., Any], capsys: Any
) -> None:
    """Is shown as that, with the tags that are missing; health fails on it. One that is not due
    yet is just waiting.
    """

    @task(name="render", runs_on=["gpu"])
    def render(ctx: TaskContext[None]) -> None: ...

    registry = JobRegistry(
        tasks=[render], database_url=url, process_hook=False, heartbeat_interval="1h"
    )
    registry.client.schedule(render, id="now", at=datetime(2026, 1, 1, tzinfo=UTC))
    registry.client.schedule(render, id="later", delay="1h")
    with registry:
        lines = {
            line["id"]: (line["state"], line["reason"])
            for line in ask("list", "render")
        }
        reason = "no live worker that knows it carries gpu"
        assert lines == {"now": ("unroutable", reason), "later": ("waiting", None)}
        assert ask("list", "render", "now")["task"]["reason"] == reason
        assert status(["tasks", "list"]) == exits.OK
        assert f"render is due, and unroutable: {reason}" in capsys.readouterr().err
        assert status(["health", "--max-rows", "9", "--json"]) == exits.FAILED
        assert json.loads(capsys.readouterr().out)["problems"] == [
            f"render is due, and unroutable: {reason}"
        ]
        able = JobRegistry(
            tasks=[render],
            database_url=url,
            process_hook=False,
            tags={"gpu"},
            threads=1,
        )
        with able:
            assert ask("list", "render")[0]["reason"] is None
