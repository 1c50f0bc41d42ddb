"""Which schedule was in force when, from what deploys have left."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from slotwise.inspect import Inspection

START = datetime(2026, 11, 1, tzinfo=UTC)
OLD, NEW = "EVERY|1h|1970-01-01T00:00:00Z", "EVERY|2h|1970-01-01T00:00:00Z"
#: A deploy: the hour, the schedule before, and the one after.
Change = tuple[float, str | None, str]


@pytest.mark.parametrize(
    ("changes", "deleted", "expected"),
    [
        pytest.param(
            [(2, OLD, NEW)],
            [],
            [(-99, 2, OLD), (2, 99, NEW)],
            id="before-the-history-the-former-one",
        ),
        pytest.param(
            [(1, None, OLD), (2, OLD, NEW)],
            [],
            [(1, 2, OLD), (2, 99, NEW)],
            id="planned-first",
        ),
        pytest.param(
            [(0.5, OLD, NEW), (1, None, OLD)],
            [],
            [(1, 1, OLD), (0.5, 99, NEW)],
            id="the-clock-was-set-back-after-the-first-planning",
        ),
        pytest.param(
            [(2, OLD, NEW), (4, None, OLD)],
            [3],
            [(-99, 2, OLD), (2, 3, NEW), (4, 99, OLD)],
            id="deleted-and-planned-anew",
        ),
    ],
)
def test_spans(
    sqlite_url: str,
    changes: list[Change],
    deleted: list[float],
    expected: list[tuple[float, float, str]],
) -> None:
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        for hours, former, schedule in changes:
            connection.execute(
                "INSERT INTO scheduled_deploys (task_name, task_instance, at, former, schedule, "
                "worker) VALUES ('j', 'recurring', ?, ?, ?, 'w')",
                (_micros(hours), former, schedule),
            )
        for hours in deleted:
            connection.execute(
                "INSERT INTO scheduled_controls (at, author, command, task_name) "
                "VALUES (?, 'ada', 'delete', 'j')",
                (_micros(hours),),
            )
    connection.close()
    with Inspection.open(sqlite_url) as inspect:
        found = inspect.schedule_spans(START, START + timedelta(hours=10))
    assert [
        (_hours(one.since), _hours(one.until), one.schedule) for one in found
    ] == expected


def _micros(hours: float) -> int:
    return int((START.timestamp() + 3600 * hours) * 1_000_000)


def _hours(instant: datetime) -> float:
    return min(max((instant - START) / timedelta(hours=1), -99.0), 99.0)
