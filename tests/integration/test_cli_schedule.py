"""``slotwise schedule``: in words, as lists, as differences, as a month and as a picture."""

from __future__ import annotations

import builtins
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from slotwise import AnyOf, Calendar, Cron, Daily
from slotwise.cli.entry import status
from slotwise.cli.schedule_months import lay_out
from slotwise.cli.shared import exits
from slotwise.cli.shared.starts import count_starts
from slotwise.contrib.picture import Box

VIENNA = ("--tz", "Europe/Vienna")
APP = """
from slotwise import Cron, Daily, DistributedJob, FixedDelay, JobRegistry, job

@job(name="hash", schedule=Cron("H 0 * * *"))
def hashed(ctx): ...

@job(name="midnight", schedule=Daily("00:00"))
def midnight(ctx): ...

@job(name="loop", schedule=FixedDelay("5m"))
def loop(ctx): ...

registry = JobRegistry(jobs=[hashed, midnight, loop])
"""

Ask = Callable[..., Any]
Say = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "SLOTWISE_DATABASE_URL", "SLOTWISE_APP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command; what it prints, errors included."""

    def run(*arguments: str, expected: int = exits.OK) -> str:
        capsys.readouterr()
        found = status(["schedule", *arguments])
        captured = capsys.readouterr()
        assert found == expected, captured
        return captured.out + captured.err

    return run


@pytest.fixture
def ask(say: Say) -> Ask:
    """Run a command with --json; its answer."""
    return lambda *arguments, expected=exits.OK: json.loads(
        say(*arguments, "--json", expected=expected)
    )


def test_explain_says_it_in_words(say: Say, ask: Ask) -> None:
    """Zone, rules and the whole text."""
    told = say("explain", "30 2 * * *", *VIENNA).splitlines()
    assert told[0] == "At 02:30 every day, by the clocks of Europe/Vienna."
    assert told[-1] == "Text: CRON|30 2 * * *|Europe/Vienna"
    assert ask("explain", "EVERY|90s")["schedule"] == "EVERY|90s|1970-01-01T00:00:00Z"


def test_next_lists_slots_in_both_times(say: Say, ask: Ask) -> None:
    """Transitions are marked; a time without an offset is meant by the clocks shown."""
    told = say(
        "next", "30 2 * * *", *VIENNA, "-n", "2", "--after", "2026-03-28T12:00+01:00"
    )
    assert [line.split("  ") for line in told.splitlines()[1:3]] == [
        [
            "2026-03-29T03:00:00+02:00",
            "2026-03-29T01:00:00Z",
            "clocks go forward from 02:00 to 03:00 before it; for 02:30:00, which does not exist",
        ],
        ["2026-03-30T02:30:00+02:00", "2026-03-30T00:30:00Z"],
    ]
    first = ask(
        "next", "30 2 * * *", *VIENNA, "-n", "1", "--after", "2026-03-30T00:00+02:00"
    )[0]
    assert first == {
        "kind": "slot",
        "instant": "2026-03-30T00:30:00Z",
        "local": "2026-03-30 02:30:00 CEST",
        "note": "",
    }


def test_next_of_what_is_over_says_so(say: Say) -> None:
    """Not an empty table."""
    assert say("next", "ONCE|2020-01-01T00:00Z") == "no further slot\n"
    assert say("next", "-") == "no further slot\n"


def test_h_needs_a_name(say: Say) -> None:
    """The hash is the job's."""
    assert "give --name" in say("next", "H 2 * * *", expected=exits.USAGE)
    assert "02:" in say("next", "H 2 * * *", "--name", "nightly", "-n", "1")


def test_mistakes_show_their_place(say: Say) -> None:
    """As everywhere."""
    assert (
        say("next", "61 * * * *", expected=exits.FAILED)
        == 'error: minute must be 0–59, got "61"\n'
    )
    assert "did you mean Europe/Vienna" in say(
        "explain", "0 2 * * *", "--tz", "Europe/Viena", expected=exits.USAGE
    )
    assert "--after soon: neither an instant" in say(
        "next", "@daily", "--after", "soon", expected=exits.USAGE
    )


DIFFS = [
    ("0 2 * * *", "CRON|0 2 * * *|UTC", [], (0, 0, 3)),
    (
        "0 2 * * *",
        "0 3 * * *",
        ["- 02", "+ 03", "- 02", "+ 03", "- 02", "+ 03"],
        (3, 3, 0),
    ),
    ("0 2 * * *", "0 2,3 * * *", ["+ 03", "+ 03", "+ 03"], (0, 3, 3)),
    ("* * * * *", "0-58 * * * *", None, (72, 0, 3 * 1440 - 72)),
    ("0 2 * * *", "-", ["- 02", "- 02", "- 02"], (3, 0, 0)),
    ("-", "0 2 * * *", ["+ 02", "+ 02", "+ 02"], (0, 3, 0)),
    ("-", "-", [], (0, 0, 0)),
]


@pytest.mark.parametrize(("old", "new", "lines", "sums"), DIFFS)
def test_diff_counts_exactly_and_lists_some(
    ask: Ask, old: str, new: str, lines: list[str] | None, sums: tuple[int, int, int]
) -> None:
    """Taken away, added, kept; exit status 1 where there is a difference."""
    found = ask(
        "diff",
        old,
        new,
        "--days",
        "3",
        "--after",
        "2026-06-01T00:30Z",
        expected=int(any(sums[:2])),
    )
    assert (found["removed"], found["added"], found["kept"]) == sums
    if lines is None:
        assert len(found["differences"]) == 50
    else:
        assert [
            f"{one['change']} {one['slot'][11:13]}" for one in found["differences"]
        ] == lines


def test_diff_for_people(say: Say) -> None:
    """Signs, local time and UTC, a sum."""
    told = say(
        "diff",
        "0 2 * * *",
        "0 3 * * *",
        "--days",
        "3",
        "-n",
        "1",
        "--after",
        "2026-06-01T00:30Z",
        expected=1,
    )
    assert "- 2026-06-01T02:00:00Z  2026-06-01T02:00:00Z" in told
    assert "… 5 more differences" in told
    assert "in 3 days: 3 removed, 3 added, 0 kept" in told


def test_a_spread_moves_no_slot(say: Say) -> None:
    """It is the same schedule, only due later: as a job's row has it."""
    told = say("diff", "0 2 * * *", "SPREAD(0 2 * * *; 90s)", "--days", "3")
    assert "0 removed, 0 added, 3 kept" in told


def test_a_delay_after_each_run_cannot_be_compared(say: Say) -> None:
    """Its slots come with the ends of its runs; said so, and what to ask instead."""
    told = say("diff", "0 2 * * *", "FIXED_DELAY|2m", expected=exits.FAILED)
    assert "FIXED_DELAY|2m: its slots are unknown before its runs have ended" in told
    assert "slotwise schedule explain 'FIXED_DELAY|2m'" in told


def test_a_month_on_the_terminal(say: Say, ask: Ask) -> None:
    """Weeks from Monday on; the day on which clocks change has a mark."""
    told = say("next", "0 9,17 * * MON-FRI", *VIENNA, "--month", "2026-03")
    assert told.startswith(
        "March 2026, Europe/Vienna: 44 starts of 0 9,17 * * MON-FRI\n"
    )
    assert "29±" in told
    assert told.splitlines()[3].split() == [
        "2",
        "2",
        "3",
        "2",
        "4",
        "2",
        "5",
        "2",
        "6",
        "2",
        "7",
        "·",
        "8",
        "·",
    ]
    closed = "EXCLUDING(DAILY|09:00; AT@1[SAT,SUN 2026:0501])"
    days = ask("next", closed, "--month", "2026-05")["days"]
    assert [(day["starts"], day["passed_over"]) for day in days[:5]] == [
        (0, 1),
        (0, 1),
        (0, 1),
        (1, 0),
        (1, 0),
    ]
    assert "11 more are passed over by a calendar" in say(
        "next", closed, "--month", "2026-05"
    )
    assert "write a year and a month" in say(
        "next", "@daily", "--month", "May", expected=exits.USAGE
    )


def test_the_month_of_an_application(say: Say, ask: Ask, tmp_path: Path) -> None:
    """All of its jobs, each with its own H; those with a fixed delay cannot be counted."""
    (tmp_path / "herd.py").write_text(APP)
    found = ask("next", "--app", "herd", "--month", "2026-11")
    assert sum(day["hours"][0] for day in found["days"]) == 60
    assert sorted(found["schedules"].values()) == [1, 1, 1]
    assert [
        text for text in found["schedules"] if "H" in text.removeprefix("CRON")
    ] == []
    told = say("next", "--app", "herd", "--month", "2026-11")
    assert "60 starts of 3 jobs" in told
    assert "not counted: 1 with a fixed delay after each run" in told


def test_the_schedules_that_there_are(
    say: Say, ask: Ask, tmp_path: Path, sqlite_url: str
) -> None:
    """Each with its next slot, those that are due first on top; how many jobs have it."""
    (tmp_path / "herd.py").write_text(APP)
    found = ask("next", "--app", "herd", "--after", "2026-11-01T00:30Z")
    assert [line["jobs"] for line in found] == [1, 1, 1]
    slots = [line["next_slot"] for line in found]
    assert slots[-1] is None, "a fixed delay has no slot before its run has ended"
    assert slots[:-1] == sorted(slots[:-1])
    told = say("next", "--app", "herd", "-n", "2")
    assert told.splitlines()[0].split() == ["SCHEDULE", "JOBS", "NEXT", "SLOT"]
    assert told.splitlines()[3] == "… 1 more; -n shows them"
    assert "no schedules yet" in say("next", "--database-url", sqlite_url)


def test_the_month_of_what_the_database_has(sqlite_url: str, say: Say) -> None:
    """Without an application."""
    assert "0 starts of 0 jobs" in say(
        "next", "--month", "this", "--database-url", sqlite_url
    )


def test_the_picture_is_a_picture(say: Say, tmp_path: Path) -> None:
    """SVG that a parser reads, and PNG; each hour of each day in it."""
    say("next", "0 0 * * *", "--month", "2026-02", "--plot", "starts.svg")
    root = ElementTree.parse(tmp_path / "starts.svg").getroot()
    cells = [
        cell for cell in root.iter("{http://www.w3.org/2000/svg}rect") if len(cell)
    ]
    assert len(cells) == 28 * 24
    assert cells[0][0].text == "Sun 01, 00:00: 1"
    assert cells[0].get("fill") != cells[1].get("fill")
    say("next", "0 0 * * *", "--plot", "starts.png")
    assert (tmp_path / "starts.png").read_bytes().startswith(b"\x89PNG")
    assert "write a name that ends with .svg or .png" in say(
        "next", "@daily", "--plot", "x.gif", expected=2
    )


def test_a_picture_that_needs_pillow_says_so(
    say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In one line, with the cure; SVG needs nothing."""
    found = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.split(".")[0] == "PIL":
            raise ImportError(name)
        return found(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    told = say("next", "@daily", "--plot", "starts.png", expected=exits.FAILED)
    assert told.splitlines()[-1].endswith(
        "PNG needs Pillow; run: pip install 'slotwise[plot]', or write .svg"
    )
    say("next", "@daily", "--plot", "starts.svg")
    assert (tmp_path / "starts.svg").exists()


def test_hours_of_the_days_on_which_clocks_change() -> None:
    """The hour that does not exist has no start of its own, the repeated one those of both passes;
    nothing is lost.
    """
    zone = ZoneInfo("Europe/Vienna")
    schedules = {Cron("*/30 * * * *", zone): 1, Daily("02:30", tz=zone): 3}
    spring, autumn = (
        count_starts(schedules, [day], zone)
        for day in (date(2026, 3, 29), date(2026, 10, 25))
    )
    assert [starts.of_day(0) for starts in (spring, autumn)] == [
        23 * 2 + 3,
        25 * 2 + 3,
    ]
    assert [spring.hours[0][hour] for hour in (1, 2, 3)] == [2, 0, 5]
    assert [autumn.hours[0][hour] for hour in (1, 2, 3)] == [2, 7, 2]


def test_a_day_that_never_was_has_no_starts() -> None:
    """In Samoa 30 December 2011 was left out: its hours are nobody's, and those of the next day
    are its own.
    """
    zone = ZoneInfo("Pacific/Apia")
    days = [date(2011, 12, day) for day in (29, 30, 31)]
    starts = count_starts(
        {Cron("0 * * * *", zone): 1, Daily("09:00", gap="skip", tz=zone): 1},
        days,
        zone,
    )
    assert [starts.of_day(number) for number in range(3)] == [25, 0, 25]


def test_sparse_and_dense_schedules_are_counted_alike() -> None:
    """Walked or counted: the same figures; what a calendar passes over is counted apart."""
    days = [date(2026, 11, day) for day in range(1, 31)]
    closed = Calendar(name="CO", days=frozenset({date(2026, 11, 2)}))
    sparse = Cron("0 9 * * *").excluding(closed)
    dense = AnyOf(
        sparse,
        *(Cron(f"{minute} 9 * * *").excluding(closed) for minute in range(1, 30)),
    )
    for schedule, count in ((sparse, 1), (dense, 30)):
        starts = count_starts({schedule: 2}, days, ZoneInfo("UTC"))
        assert [starts.hours[number][9] for number in range(3)] == [0, 0, 2 * count]
        assert [starts.passed_over[number] for number in range(3)] == [
            2 * count,
            2 * count,
            0,
        ]


def test_few_starts_are_seen_among_many() -> None:
    """Each darker than fewer; nothing is paler than something."""
    counts = [0, 1, 10, 100, 1000]
    picture = lay_out("x", ["day"], [counts + [0] * 19])
    cells = [
        shape for shape in picture.shapes if isinstance(shape, Box) and shape.told
    ][:5]
    assert len({cell.colour for cell in cells}) == 5
