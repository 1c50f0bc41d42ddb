"""One-time tasks from the shell: scheduled, looked at, moved, cancelled, driven again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotwise import TaskContext, task
from slotwise.cli import exits
from slotwise.cli.entry import status
from slotwise.testing import ManualWorker

APP = """
from slotwise import JobRegistry, TaskContext, task

@task(name="mail", priority=70)
def mail(ctx: TaskContext[dict[str, int]]) -> None: ...

registry = JobRegistry(tasks=[mail])
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

    def run(*arguments: str) -> Any:
        capsys.readouterr()
        assert status(["tasks", *arguments, "--json"]) == exits.OK, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run


def test_the_life_of_a_task(ask: Callable[..., Any]) -> None:
    """Each command answers what the client answers."""
    assert ask("schedule", "mail", "--data", '{"n": 1}', "--id", "7", "--in", "1h")["status"] == "scheduled"
    assert ask("schedule", "mail", "--id", "7", "--if-exists", "keep")["status"] == "exists"
    (line,) = ask("list", "mail")
    assert (line["task"], line["id"], line["state"], line["priority"]) == ("mail", "7", "waiting", 50)
    assert ask("reschedule", "mail", "7", "--at", "2100-01-31T02:00Z")["status"] == "scheduled"
    shown = ask("show", "mail", "7")
    assert (shown["task"]["data"], shown["task"]["due"], shown["history"]) == ({"n": 1}, "2100-01-31T02:00:00Z", [])
    assert ask("cancel", "mail", "7") == {"task": "mail", "id": "7", "status": "cancelled"}
    assert ask("cancel", "mail", "7")["status"] == "gone"
    assert ask("list", "--state", "dead") == []


def test_dead_tasks(url: str, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Found, understood, and driven again: some, or all when one is sure."""

    @task(name="mail", retry=None, history="failures")
    def mail(ctx: TaskContext[int]) -> None:
        raise ValueError("boom")

    with ManualWorker([mail], url) as worker:
        for number in range(3):
            worker.client.schedule(mail, number, id=str(number))
        worker.run_due()
    assert [line["id"] for line in ask("list", "--state", "dead")] == ["0", "1", "2"]
    assert [line["id"] for line in ask("list", "mail", "-n", "1", "--after", "0")] == ["1"]
    shown = ask("show", "mail", "1")
    assert "ValueError: boom" in shown["task"]["last_error"]
    assert [end["outcome"] for end in shown["history"]] == ["failed"]
    assert ask("redrive", "mail", "1") == {"task": "mail", "scheduled": ["1"]}
    assert status(["tasks", "redrive", "mail"]) == exits.USAGE
    assert "--yes" in capsys.readouterr().err
    assert ask("redrive", "mail", "--yes")["scheduled"] == ["0", "2"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "mail", "7"], exits.FAILED, "no task 'mail' with id '7'"),
        (["schedule", "mail", "--data", "{"], exits.FAILED, "--data '{' is no JSON"),
        (["schedule", "mail", "--at", "soon"], exits.USAGE, "'soon' is no instant"),
        (["schedule", "mail", "--in", "5"], exits.FAILED, "'5' is not a duration"),
        (["list", "--after", "7"], exits.USAGE, "--after needs the NAME"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_cannot_be_right(
    url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    """In one line, with the cure."""
    assert status(["tasks", *arguments]) == code
    assert words in capsys.readouterr().err


def test_with_the_application(
    url: str, ask: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data and priority are as the application's task has them."""
    module = f"app_of_{url.partition(':')[0]}"  # imported once in a process, and its registry keeps its address
    (tmp_path / f"{module}.py").write_text(APP)
    app = ["--app", module, "--app-dir", str(tmp_path)]
    assert ask("schedule", "mail", "--data", '{"n": 1}', "--id", "7", *app)["status"] == "scheduled"
    assert ask("list")[0]["priority"] == 70
    assert status(["tasks", "schedule", "mail", "--data", '{"n": "x"}', *app]) == exits.FAILED
    assert "n: expected int, got 'x'" in capsys.readouterr().err


def test_for_people(ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Tables and fields; nothing to list is said."""
    assert status(["tasks", "list"]) == exits.OK
    assert capsys.readouterr().out == "no such tasks\n"
    ask("schedule", "mail", "--data", '"ü"', "--id", "7")
    for command in (["list"], ["show", "mail", "7"]):
        assert status(["tasks", *command]) == exits.OK
        assert "waiting" in capsys.readouterr().out
