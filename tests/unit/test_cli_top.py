"""The screen of ``slotwise top``: what a key does, and what fits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from slotwise.cli.top_screen import (
    Act,
    Screen,
    Situation,
    ordered,
    picture,
    press,
    shown_jobs,
)
from slotwise.inspect import JobInfo, JobRates, Rate, TaskCount, WorkerInfo

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NAMES = ["alpha", "beta", "gamma"]


def a_job(name: str, minutes: int = 5, **more: object) -> JobInfo:
    due = NOW + minutes * MINUTE
    return JobInfo(
        job=name,
        id="recurring",
        **{"state": "waiting", "next_slot": due, "due": due, **more},  # type: ignore[arg-type]
    )


def shown(found: Situation, screen: Screen, height: int = 24) -> list[str]:
    console = Console(width=80, height=height, file=None, color_system=None)
    with console.capture() as capture:
        console.print(picture(found, screen, height))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_what_runs_and_fails_comes_first() -> None:
    """Then what is due next; what has no slot comes last."""
    jobs = [
        a_job("later", 60),
        a_job("ended", next_slot=None, due=None, state="ended"),
        a_job("soon", 1),
        a_job("failing", 90, consecutive_failures=3),
        a_job("runs", running_since=NOW, state="running"),
    ]
    names = [line.job for line in ordered(jobs)]
    assert names == ["runs", "failing", "soon", "later", "ended"]


def test_keys_select_a_job() -> None:
    """By its name, so that it stays selected when the order changes."""
    screen, act = press(Screen(), "down", NAMES)
    assert (screen.selected, act) == ("beta", None)
    screen, _ = press(screen, "j", ["beta", *NAMES])
    assert screen.selected == "alpha"
    screen, _ = press(screen, "k", NAMES)
    assert screen.selected == "alpha"
    screen, _ = press(Screen(selected="gone"), "up", NAMES)
    assert screen.selected == "alpha"
    assert press(Screen(), "p", []) == (Screen(), None)


@pytest.mark.parametrize(
    ("key", "act"),
    [
        ("p", Act.PAUSE),
        ("r", Act.RESUME),
        ("t", Act.TRIGGER),
        ("s", Act.SKIP_NEXT),
        ("c", Act.CANCEL),
    ],
)
def test_an_operation_is_asked_about(key: str, act: Act) -> None:
    """Only y does it; any other key drops the question."""
    asked, nothing = press(Screen(selected="beta"), key, NAMES)
    assert nothing is None
    assert asked.message == f"{act.replace('_', ' ')} beta? y/n"
    assert press(asked, "y", NAMES) == (Screen(selected="beta"), act)
    for other in ("n", "escape", "q", "Y", "p"):
        assert press(asked, other, NAMES) == (Screen(selected="beta"), None)


def test_reads_need_no_answer() -> None:
    """A page is closed by a key, and takes no other."""
    assert press(Screen(selected="beta"), "e", NAMES)[1] is Act.EXPLAIN
    assert press(Screen(), "w", NAMES) == (Screen(selected="alpha"), Act.WHERE)
    page = Screen(selected="beta", page=["It waits."])
    assert press(page, "p", NAMES) == (page, None)
    assert press(page, "q", NAMES) == (Screen(selected="beta"), None)
    assert press(Screen(selected="beta"), "q", NAMES)[1] is Act.QUIT


def test_it_fits_80_by_24() -> None:
    """With hundreds of jobs, the selected one among them, and long names; no line is folded."""
    jobs = [a_job(f"job-{number:03}-{'x' * 60}", number) for number in range(300)]
    rates = {
        line.job: JobRates(
            job=line.job,
            day=Rate(runs=288, failures=3),
            week=Rate(runs=2016, duration_p50=MINUTE, duration_p95=MINUTE),
            strip="✓" * 19 + "✗",
        )
        for line in jobs
    }
    tasks = [
        TaskCount(task=f"task-{n}", waiting=10_001, due=9, dead=1) for n in range(9)
    ]
    workers = [
        WorkerInfo(
            worker="h:1:a",
            state="running",
            live=True,
            capacity=8,
            running=3,
            started=NOW,
            last_seen=NOW,
        )
    ]
    found = Situation(now=NOW, jobs=jobs, rates=rates, tasks=tasks, workers=workers)
    lines = shown(found, Screen(selected=jobs[200].job, message="m" * 300))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "workers: 1 live, 3 of 8 busy" in text
    assert "›  job-200" in text
    assert "✓✓✗" in text
    assert "over 10,000" in text
    for height in (1, 5, 10):
        assert shown(found, Screen(), height)


def test_the_selected_job_stays_in_sight() -> None:
    """At the ends, too."""
    jobs = [a_job(str(number)) for number in range(10)]
    for place in range(10):
        part = shown_jobs(jobs, str(place), 4)
        assert str(place) in [line.job for line in part]
        assert len(part) == 4


def test_stored_text_is_escaped() -> None:
    """A name, a pause's note and a page cannot move the cursor."""
    hostile = "a\x1b[2Jb"
    found = Situation(now=NOW, jobs=[a_job(hostile)], paused=f"paused by {hostile}")
    for screen in (Screen(message=hostile), Screen(page=[hostile])):
        assert "\x1b" not in "\n".join(shown(found, screen))
