"""What would run: the engine plays days in memory, and tells what it made of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from slotwise import CatchUp, ConfigurationError, Cron, Every, JobContext, Overlap, job
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.inspect import SlotInfo
from slotwise.simulate.forecast import Outage, forecast, remarkable
from slotwise.spi import Definition, define

START = datetime(2026, 10, 24, tzinfo=UTC)
HOUR = timedelta(hours=1)


def at(hours: float) -> datetime:
    return START + hours * HOUR


def a_job(name: str, **declared: Any) -> dict[str, Definition]:
    def explode(ctx: JobContext) -> None:
        raise AssertionError("a forecast calls no handler")

    return {
        name: define(job(name=name, **{"schedule": Every("1h"), **declared})(explode))
    }


def said(lines: Any) -> list[tuple[float, str, str | None, int]]:
    return [
        ((line.slot - START) / HOUR, line.outcome, line.reason, line.count)
        for line in lines
    ]


def test_an_ordinary_day() -> None:
    """Each slot runs on time, by the schedule, and nothing is out of the ordinary."""
    found = forecast(a_job("hourly"), START, at(24))
    assert (found.complete, found.until) == (True, at(24))
    assert said(found.slots["hourly"]) == [
        (hour, "succeeded", None, 1) for hour in range(1, 25)
    ]
    assert list(remarkable(found.slots["hourly"])) == []


@pytest.mark.extended
@pytest.mark.parametrize(
    ("catch_up", "odd"),
    [
        pytest.param(
            CatchUp.latest(),
            [(6, "skipped", "collapsed", 2), (8, "succeeded", None, 1)],
            id="latest",
        ),
        pytest.param(CatchUp.none(), [(6, "skipped", "late", 3)], id="none"),
        pytest.param(
            CatchUp.all(),
            [(hour, "succeeded", None, 1) for hour in (6, 7, 8)],
            id="all",
        ),
    ],
)
def test_an_outage_is_caught_up_as_declared(catch_up: CatchUp, odd: list[Any]) -> None:
    """Nobody is there from half past five to half past eight."""
    found = forecast(
        a_job("hourly", catch_up=catch_up),
        START,
        at(24),
        outages=[Outage(at(5.5), at(8.5))],
    )
    assert said(remarkable(found.slots["hourly"])) == odd


@pytest.mark.parametrize(
    ("policies", "odd"),
    [
        pytest.param({}, [(5, "succeeded", None, 1)], id="rerun"),
        pytest.param(
            {"on_lost": "give_up"},
            [(5, "lost", "may_still_be_running", 1)],
            id="give up",
        ),
    ],
)
def test_what_runs_when_an_outage_begins_dies(
    policies: dict[str, Any], odd: list[Any]
) -> None:
    """It is taken over after it, and becomes what its job declares."""
    found = forecast(
        a_job("long", **policies),
        START,
        at(12),
        outages=[Outage(at(5.25), at(5.75))],
        takes={"long": timedelta(minutes=30)},
    )
    line = {line.slot: line for line in found.slots["long"]}[at(5)]
    assert said([line]) == odd
    assert line.attempts == (2 if not policies else 1)


def test_runs_that_take_their_time_overlap() -> None:
    """By the job's policy; one that takes longer than its timeout fails then."""
    takes = {"long": timedelta(minutes=90)}
    skipping = forecast(a_job("long"), START, at(6), takes=takes).slots["long"]
    assert [line.outcome for line in skipping][:4] == [
        "succeeded",
        "skipped",
        "succeeded",
        "skipped",
    ]
    queued = forecast(
        a_job("long", overlap=Overlap.queue_all()), START, at(6), takes=takes
    ).slots["long"]
    assert {line.outcome for line in queued} <= {"succeeded", "running"}
    replaced = forecast(
        a_job("long", overlap=Overlap.cancel_previous()), START, at(6.5), takes=takes
    ).slots["long"]
    assert said(replaced)[:5] == [
        (hour, "cancelled", "overlap", 1) for hour in range(1, 6)
    ]
    timed = forecast(a_job("long", timeout="30m"), START, at(6), takes=takes).slots[
        "long"
    ]
    assert next((line.outcome, line.error) for line in timed) == (
        "failed",
        "timed out after 30m",
    )


def test_the_night_when_clocks_go_back() -> None:
    """The engine's own schedules: once by default, though the clocks say it twice."""
    found = forecast(
        a_job("nightly", schedule=Cron("30 2 * * *", tz="Europe/Vienna")),
        START,
        at(72),
    )
    assert [line.slot for line in found.slots["nightly"]] == [
        at(0.5),
        at(24.5),
        at(49.5),
    ]


def test_too_much_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it says until when it went."""
    monkeypatch.setattr("slotwise.simulate.forecast.LONGEST", 10)
    found = forecast(a_job("hourly"), START, at(24 * 365))
    assert not found.complete
    assert len(found.slots["hourly"]) in (10, 11)


@pytest.mark.parametrize(
    "outages",
    [
        [Outage(at(-1), at(1))],
        [Outage(at(23), at(25))],
        [Outage(at(2), at(4)), Outage(at(3), at(5))],
        [Outage(at(3), at(3))],
    ],
    ids=["before", "after", "within another", "empty"],
)
def test_outages_lie_within_the_time(outages: list[Outage]) -> None:
    """One line with the cure."""
    with pytest.raises(ConfigurationError, match="an outage from"):
        forecast(a_job("hourly"), START, at(24), outages=outages)


APP = """
from slotwise import Cron, Every, JobRegistry, job

def of(name, schedule, **policies):
    return job(name=name, schedule=schedule, **policies)(lambda ctx: 1 / 0)

registry = JobRegistry(jobs=[
    of("hourly", Every("1h")), of("nightly", Cron("30 2 * * *", tz="Europe/Vienna")),
])
"""


@pytest.fixture
def say(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Without any database."""
    (tmp_path / "simulated.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "simulated", raising=False)

    def run(*arguments: str, expected: int = exits.OK) -> str:
        found = status(
            [
                "simulate",
                "--app",
                "simulated",
                "--from",
                "2026-10-24T00:00Z",
                *arguments,
            ]
        )
        out, err = capsys.readouterr()
        assert found == expected, out + err
        return out if expected == exits.OK else err

    return run


@pytest.mark.extended
def test_simulate_tells_what_is_out_of_the_ordinary(say: Callable[..., str]) -> None:
    """Counts for each job; then slots that were missed, and those that a change of the clocks has
    doubled.
    """
    out = say("--days", "2", "--outage", "2026-10-24T05:30Z/3h")
    head, hourly, nightly, *rest = out.splitlines()
    assert head.split()[:2] == ["JOB", "RAN"]
    assert hourly.split() == ["hourly", "46", "1", "2", "collapsed", "–"]
    assert nightly.split()[:2] == ["nightly", "2"]
    assert any("stands for 2 more" in line for line in rest)
    assert any("the first time" in line for line in rest)


def test_simulate_tells_how_far_it_is(
    say: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every few seconds, on stderr, with what makes it shorter."""
    monkeypatch.setattr("slotwise.cli.simulate.PROGRESS", 0.0)
    assert (
        status(
            [
                "simulate",
                "--app",
                "simulated",
                "--from",
                "2026-10-24T00:00Z",
                "--days",
                "0.1",
            ]
        )
        == exits.OK
    )
    assert (
        "3 runs up to 2026-10-24T02:00:00Z, of at most 100,000; for a shorter "
        "run: fewer --days, or --only NAME"
    ) in (capsys.readouterr().err)


def test_simulate_for_programs(say: Callable[..., str]) -> None:
    """All slots, with local time and note."""
    lines = json.loads(say("--days", "2", "--only", "nightly", "--json"))
    assert [(line["job"], line["local"], line["note"]) for line in lines] == [
        ("nightly", "2026-10-24 02:30:00 CEST", ""),
        ("nightly", "2026-10-25 02:30:00 CEST", "the first time"),
    ]
    assert set(lines[0]) > set(SlotInfo.__dataclass_fields__)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nobody"],
        ["--takes", "nobody=1m"],
        ["--outage", "tomorrow"],
        ["--outage", "x/1h"],
        ["--days", "0"],
    ],
    ids=" ".join,
)
def test_simulate_refuses_what_makes_no_sense(
    say: Callable[..., str], arguments: list[str]
) -> None:
    """Status 2, in one line."""
    assert "error:" in say(*arguments, expected=exits.USAGE)
