"""What people and programs get to read: times, durations, tables of any width, JSON."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import click
import pytest

from slotwise.cli.shared.output import ago, print_json_list, print_table, shortened
from slotwise.cli.shared.terminal import moment

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "instant", "said"),
    [
        ("UTC", NOON, "2026-01-31T12:00:00Z"),
        ("Europe/Vienna", NOON, "2026-01-31T13:00:00+01:00"),
        (
            "Europe/Vienna",
            NOON + timedelta(hours=11, minutes=30),
            "2026-02-01T00:30:00+01:00",
        ),
        ("America/New_York", NOON, "2026-01-31T07:00:00-05:00"),
        ("Europe/London", NOON, "2026-01-31T12:00:00+00:00"),
        (
            "Europe/Vienna",
            datetime(2026, 7, 1, tzinfo=UTC),
            "2026-07-01T02:00:00+02:00",
        ),
        ("UTC", NOON + timedelta(microseconds=1500), "2026-01-31T12:00:00.001Z"),
        ("UTC", None, "–"),
    ],
)
def test_moment(zone: str, instant: datetime | None, said: str) -> None:
    """An instant in a job's zone, with its offset, as every command takes it."""
    assert moment(instant, ZoneInfo(zone)) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0s"),
        (0.12, "120ms"),
        (3.44, "3.4s"),
        (70, "1m10s"),
        (7800, "2h10m"),
        (273_600, "3d4h"),
        (-3, "-3s"),
    ],
)
def test_ago(seconds: float, said: str) -> None:
    """In the two largest units."""
    assert ago(NOON, NOON + timedelta(seconds=seconds)) == f"{said} ago"


def test_absent() -> None:
    """What is not there is a dash."""
    assert (ago(None, NOON), shortened(None)) == ("–", "–")


@pytest.mark.parametrize(("worker", "said"), [("a:1:f0", "a:1"), ("odd", "odd")])
def test_shortened(worker: str, said: str) -> None:
    """A worker by host and process."""
    assert shortened(worker) == said


COLUMNS = ["JOB", "STATE", "FAILURES", "NOTE"]
ROWS = [
    ["a-job", "waiting", "–", "x" * 60],
    ["other", "failed", "3", "no\x1b[31m way [bold]"],
]


def test_piped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal: one line per row, however long, without escape codes; what is in a cell
    stays text.
    """
    monkeypatch.setenv("COLUMNS", "30")
    print_table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].split() == COLUMNS
    assert lines[1].split() == ["a-job", "waiting", "–", "x" * 60]
    assert lines[2].endswith(r"no\x1b[31m way [bold]")
    assert not any(line != line.rstrip() or "\x1b" in line for line in lines)


def test_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal that is too narrow, a row becomes a few lines; what begins like a number says
    what it is.
    """
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    print_table(COLUMNS, ROWS)
    text = click.unstyle(capsys.readouterr().out)
    assert "failures 3" in text
    assert max(map(len, text.splitlines())) <= 30
    assert (
        "".join(text.split()).count("x") == 61
    )  # one more stands in a cell's escape code


def test_spare_columns_go_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns a list stays a list: a line per row, without the columns that matter least."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    rows = [[f"job-{number}", "waiting", "3", "x" * 40] for number in range(3)]
    for width, left in (
        ("80", []),
        ("60", ["FAILURES"]),
        ("50", ["FAILURES", "STATE"]),
        ("40", ["FAILURES", "STATE"]),
    ):
        monkeypatch.setenv("COLUMNS", width)
        print_table(COLUMNS, rows, spare=("FAILURES", "STATE"), folds="NOTE")
        told = capsys.readouterr()
        lines = click.unstyle(told.out).splitlines()
        assert lines[0].split() == [one for one in COLUMNS if one not in left]
        assert max(map(len, lines)) <= int(width)
        assert (told.err != "") == bool(left)
        for one in left:
            assert one in told.err
    assert len(lines) == 7, "the note is folded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    slot: datetime
    took: timedelta | None
    tags: tuple[str, ...] = ("a",)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """An array with one object per line: instants in UTC, durations in seconds; empty is an array,
    too.
    """
    print_json_list(
        [Line(slot=NOON, took=timedelta(seconds=1.5)), Line(slot=NOON, took=None)]
    )
    text = capsys.readouterr().out
    assert json.loads(text)[0] == {
        "slot": "2026-01-31T12:00:00Z",
        "took": 1.5,
        "tags": ["a"],
    }
    assert json.loads(text)[1]["took"] is None
    assert len(text.splitlines()) == 4
    print_json_list([])
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("columns", ["40", "400"])
def test_long_listings_are_quick(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """Ten thousand rows take about a second of CPU, not a minute; wide characters are aligned."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    rows = [[f"job{number}", "waiting", "3", "日本"] for number in range(10_000)]
    begun = time.process_time()
    print_table(COLUMNS, [*rows, ["日本", "x", "–", "end"]])
    assert time.process_time() - begun < 8
    *_, last = click.unstyle(capsys.readouterr().out).splitlines()
    assert last.rstrip().endswith("end")
    if columns == "400":
        assert last == "日本     x        –         end"
