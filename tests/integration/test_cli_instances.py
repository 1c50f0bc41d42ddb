"""Recurring instances from the shell: a scope from a CSV file, and operations on many of them."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from slotwise.cli.entry import status
from slotwise.cli.shared import exits

APP = """
from dataclasses import dataclass

from slotwise import JobRegistry, TaskContext, task


@dataclass
class Customer:
    number: int


@task(name="report")
def report(ctx: TaskContext[Customer]) -> None:
    pass


registry = JobRegistry(tasks=[report])
"""
CUSTOMERS = """\
id,schedule,data,tags,priority
customer-1,CRON|H 7 * * *|Europe/Vienna,"{""number"": 1}",gold eu,
customer-2,EVERY|5m,"{""number"": 2}",,90
other-3,@daily,"{""number"": 3}",gold,
"""
NUMBER = '"{""number"": 1}"'
SYNC = ("schedule", "sync", "report", "customers.csv", "--scope", "crm")


@pytest.fixture(autouse=True)
def application(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Path:
    """A directory with an application and a list of customers."""
    monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("pg_url"))
    monkeypatch.setenv("SLOTWISE_APP", "reports_by_customer")
    monkeypatch.setenv("SLOTWISE_AUTHOR", "ada")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports_by_customer.py").write_text(APP)
    (tmp_path / "customers.csv").write_text(CUSTOMERS)
    return tmp_path


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command; what it printed."""

    def run(*arguments: str, expected: int = exits.OK) -> str:
        capsys.readouterr()
        found = status(arguments)
        out, err = capsys.readouterr()
        assert found == expected, out + err
        return err + out

    return run


def ids(say: Callable[..., str]) -> list[str]:
    if not json.loads(say("jobs", "--json")):
        return []
    lines = json.loads(say("jobs", "report", "--instances", "--json"))
    return [line["id"] for line in lines]


def test_a_file_becomes_a_scope(application: Path, say: Callable[..., str]) -> None:
    """After a dry run; a second time nothing is left to do."""
    found = say(*SYNC, "--dry-run")
    assert "added: customer-1, customer-2, other-3\n" in found
    assert (
        "report, scope crm: would be 3 added, 0 changed, 0 removed; 0 unchanged"
        in found
    )
    assert "3 added" in say(*SYNC)
    assert json.loads(say(*SYNC, "--json"))["unchanged"] == 3
    assert ids(say) == ["customer-1", "customer-2", "other-3"]
    shown = json.loads(say("jobs", "report", "--id", "customer-2", "--json"))
    assert (shown["priority"], shown["schedule"]) == (
        90,
        "EVERY|5m|1970-01-01T00:00:00Z",
    )


def test_from_the_standard_input(
    say: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the columns that are needed."""
    text = "schedule,id\n@daily,a\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    found = say(
        "schedule", "sync", "report", "-", "--scope", "crm", expected=exits.FAILED
    )
    assert "-:2: data does not fit the task's type" in found
    assert ids(say) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id\na\n", "customers.csv:1: no column 'schedule'; the first line names"),
        ("id,schedule,zone\n", "customers.csv:1: column 'zone'"),
        ("", "no column 'id'"),
        ("id,schedule\na\n", "customers.csv:2: this line has more or fewer values"),
        (
            "id,schedule\na,b,c\n",
            "customers.csv:2: this line has more or fewer values",
        ),
        ("id,schedule,data\na,@daily,{\n", "customers.csv:2: data is no JSON"),
        ("id,schedule,priority\na,@daily,x\n", "priority 'x': write a number"),
        ('id,schedule\n"a,@daily\n', "write a CSV file in UTF-8"),
        (
            'id,schedule,data\na,@daily,"{""number"": ""x""}"\n',
            "customers.csv:2: data does not fit",
        ),
    ],
)
def test_bad_files(
    application: Path, say: Callable[..., str], text: str, message: str
) -> None:
    """By file, line, value and cure; nothing is changed."""
    (application / "customers.csv").write_text(text)
    found = say(*SYNC, expected=exits.FAILED)
    assert message in found
    assert ids(say) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("b,@dayly", "customers.csv:4 (id 'b'): "),
        ("a,@hourly", "customers.csv:4 (id 'a'): this id comes twice"),
    ],
)
def test_a_bad_item_is_named_by_its_line(
    application: Path, say: Callable[..., str], line: str, message: str
) -> None:
    """Also after blank lines and values of several lines."""
    (application / "customers.csv").write_text(
        f"id,schedule,data\na,@daily,{NUMBER}\n\n{line},{NUMBER}\n"
    )
    assert message in say(*SYNC, expected=exits.FAILED)


@pytest.mark.parametrize("is_piped", [False, True])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "id,schedule\nMüller,@daily\n".encode("latin-1"),
            ":2: the byte 0xfc",
        ),
        ("id,schedule\na,@daily\n".encode("utf-16"), ":1: the byte 0xff"),
        (b"\x80\x00\x1f\xc3", ":1: the byte 0x80"),
    ],
    ids=["latin-1", "utf-16", "random"],
)
def test_a_file_that_is_not_in_utf8(
    application: Path,
    say: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    message: str,
    is_piped: bool,
) -> None:
    """Its first bad line is named."""
    (application / "customers.csv").write_bytes(content)
    file = "-" if is_piped else "customers.csv"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
    found = say(*SYNC[:3], file, *SYNC[4:], expected=exits.FAILED)
    assert f"{file}{message} is not UTF-8; save the file" in found
    assert len(found.splitlines()) == 1


def test_what_a_short_file_would_remove(
    application: Path, say: Callable[..., str]
) -> None:
    """It is refused, and forced."""
    say(*SYNC)
    (application / "customers.csv").write_text(CUSTOMERS.rpartition("other-3")[0])
    assert "needs --force" in say(*SYNC, "--dry-run")
    assert "1 of 3 instances would be removed" in say(*SYNC, expected=exits.FAILED)
    assert "1 removed" in say(*SYNC, "--force")
    assert ids(say) == ["customer-1", "customer-2"]


def test_a_file_that_is_not_there(application: Path, say: Callable[..., str]) -> None:
    """In one line."""
    (application / "customers.csv").unlink()
    assert "check the path" in say(*SYNC, expected=exits.FAILED)


@pytest.mark.parametrize("verb", ["pause", "trigger", "skip-next", "delete"])
def test_operations_by_filter(say: Callable[..., str], verb: str) -> None:
    """Previewed, asked, done."""
    say(*SYNC)
    found = say(verb, "report", "--tag", "gold", "--dry-run")
    assert "report: customer-1, other-3\n" in found
    assert "Confirm with --yes" in say(
        verb, "report", "--tag", "gold", expected=exits.USAGE
    )
    done = json.loads(say(verb, "report", "--tag", "gold", "--yes", "--json"))
    assert done["ids"] == ["customer-1", "other-3"]
    assert say(verb, "report", "--scope", "none", "--yes").startswith(
        "report: no instance"
    )


def test_resume_by_filter(say: Callable[..., str]) -> None:
    """By the beginning of the id."""
    say(*SYNC)
    say(
        "pause",
        "report",
        "--scope",
        "crm",
        "--yes",
        "--note",
        "moving",
        "--until",
        "2h",
    )
    found = say("resume", "report", "--prefix", "customer-", "--yes")
    assert "report: 2 instances resumed" in found
    states = json.loads(say("jobs", "report", "--instances", "--json"))
    assert [line["state"] for line in states].count("paused") == 1


def test_one_instance_is_deleted(say: Callable[..., str]) -> None:
    """By its id."""
    say(*SYNC)
    assert "1 instance deleted" in say("delete", "report", "--id", "other-3", "--yes")
    assert ids(say) == ["customer-1", "customer-2"]


def test_which_instances_fail_or_are_stale(say: Callable[..., str]) -> None:
    """By filters, of the listing."""
    say(*SYNC)
    say("jobs", "report", "--failing", expected=exits.USAGE)
    listing = ("jobs", "report", "--instances", "--json")
    with psycopg.connect(os.environ["DATABASE_URL"]) as driver:
        old = int((datetime.now(UTC) - timedelta(hours=2)).timestamp() * 1_000_000)
        driver.execute("UPDATE scheduled_tasks SET created_version = %s", (old,))
        driver.execute(
            "UPDATE scheduled_tasks SET consecutive_failures = 2 "
            "WHERE task_instance = 'customer-1'"
        )
        driver.execute(
            "UPDATE scheduled_tasks SET last_success = now() "
            "WHERE task_instance = 'customer-2'"
        )
    for options, expected in (
        (["--failing"], ["customer-1"]),
        (["--stale", "1h"], ["customer-1", "other-3"]),
        (["--stale", "3h"], []),
        (["--stale", "1h", "--tag", "eu"], ["customer-1"]),
    ):
        found = json.loads(say(*listing, *options))
        assert [line["id"] for line in found] == expected
    none = say("jobs", "report", "--instances", "--stale", "3h")
    assert none.strip() == "report: no such instances"


def test_the_next_page_keeps_the_filters(say: Callable[..., str]) -> None:
    """And the number of lines."""
    say(*SYNC)
    listing = ("jobs", "report", "--instances")
    found = say(*listing, "--tag", "gold", "--stale", "0s", "-n", "1")
    more = "slotwise jobs report --instances --tag gold --stale 0s -n 1 --after customer-1"
    assert f"… more: {more}\n" in found
    found = say(*listing, "--failing")
    assert found == "report: no such instances\n"
