"""Since when a success is overdue: by the schedule, and by what became of its slots."""

from __future__ import annotations

from datetime import datetime

import pytest

from slotwise import parse_schedule
from slotwise.decide.overdue import overdue_since

HOURLY = "EVERY|1h"
WEEKLY = "0 2 * * 1"
MONTHLY = "0 2 1 * *"
#: A Wednesday.
NOW = datetime.fromisoformat("2026-07-15T12:30:00+00:00")


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-07-{text}+00:00")


@pytest.mark.parametrize(
    ("schedule", "since", "is_failing", "undecided", "skipped", "expected"),
    [
        pytest.param(HOURLY, "15T12:00", False, None, None, None, id="well"),
        pytest.param(
            HOURLY, "15T11:00", False, "15T12:00", None, "15T12:00", id="late"
        ),
        pytest.param(HOURLY, "15T10:00", True, None, None, "15T11:00", id="failing"),
        pytest.param(
            HOURLY, "15T10:00", True, "15T12:00", None, "15T11:00", id="failing-late"
        ),
        pytest.param(
            HOURLY, "15T09:00", False, None, None, None, id="paused-meanwhile"
        ),
        pytest.param(
            HOURLY, "15T09:00", False, None, "15T11:00", "15T11:00", id="skipped"
        ),
        pytest.param(WEEKLY, "13T02:10", False, None, None, None, id="weekly"),
        pytest.param(
            WEEKLY, "06T02:10", True, None, None, "13T02:00", id="weekly-failed"
        ),
        pytest.param(
            WEEKLY, "06T02:10", False, "13T02:00", None, "13T02:00", id="weekly-late"
        ),
        pytest.param(MONTHLY, "01T02:10", False, None, None, None, id="monthly"),
        pytest.param(
            MONTHLY, "01T01:00", True, None, None, "01T02:00", id="monthly-failed"
        ),
        pytest.param(
            MONTHLY, "02T00:00", True, None, None, None, id="failing-by-hand"
        ),
        pytest.param(
            None, "01T00:00", True, "15T12:00", None, "15T12:00", id="unreadable"
        ),
        pytest.param(None, "01T00:00", True, None, None, None, id="unreadable-waits"),
    ],
)
def test_overdue(
    schedule: str | None,
    since: str,
    is_failing: bool,
    undecided: str | None,
    skipped: str | None,
    expected: str | None,
) -> None:
    """A slot that was skipped on request, or that a former schedule had, is not expected."""
    found = overdue_since(
        None if schedule is None else parse_schedule(schedule),
        since=at(since),
        is_failing=is_failing,
        undecided=None if undecided is None else at(undecided),
        skipped=None if skipped is None else at(skipped),
        now=NOW,
    )
    assert found == (None if expected is None else at(expected))
