"""The live view of the demo fits a small terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from slotwise.demo.stage import Stage
from slotwise.demo.view import Scene, picture

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def a_stage() -> Stage:
    workers = [
        SimpleNamespace(
            label=f"worker {number}",
            fate="killed" if number == 1 else "",
            is_running=number > 1,
            process=SimpleNamespace(pid=number),
        )
        for number in range(1, 5)
    ]
    return cast("Stage", SimpleNamespace(workers=workers))


def a_scene() -> Scene:
    jobs = [
        {
            "job": f"job-{number}",
            "slot": NOW,
            "picked_by": f"host:{number}:a",
            "attempt": 1,
            "succeeded": 100,
            "failed": 3,
            "lost": 1,
        }
        for number in range(1, 7)
    ]
    seen = NOW - timedelta(seconds=3.4)
    workers = [{"pid": number, "last_seen": seen} for number in range(1, 5)]
    taken = {"task_name": "report", "slot": NOW, "attempts": 2, "outcome": "running"}
    return Scene(NOW, jobs, workers, [taken] * 6)


@pytest.mark.parametrize("height", [24, 40])
def test_the_story_fits(height: int) -> None:
    """With all tables; its last line is in sight, and no line is folded."""
    said = [
        f"{number:5.1f}s  {'what happens next ' * 6}{number}" for number in range(12)
    ]
    said[-1] = " 12.0s  the end"
    console = Console(width=80, height=height, color_system=None)
    with console.capture() as capture:
        console.print(picture(a_scene(), a_stage(), 12, said, height))
    lines = capture.get().splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert lines[0].startswith("slotwise demo, 12s to go")
    assert "running on worker 4" in text
    assert "3.4s ago" in text
    assert lines[-1].startswith(" 12.0s  the end")
    assert sum("what happens next" in line for line in lines) >= 3
