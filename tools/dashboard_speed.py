#!/usr/bin/env python3
"""Measure the server time of each page of the dashboard on large tables.

``tools/dashboard_speed.py URL`` fills the tables of an empty database, and prints the median of
five answers of each page, in milliseconds, without the two seconds that visitors share a read. The
status is 1 if a page takes longer than ``--most``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import psycopg

from slotwise import Settings
from slotwise.contrib.dashboard import Dashboard, Request
from slotwise.operations import Schema

FILL = """
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, schedule, kind, picked,
    version, created_version, last_success)
SELECT 'job-' || to_char(n, 'FM000000'), 'recurring', now() + n % 3600 * interval '1 second',
    now() + n % 3600 * interval '1 second', 'CRON|' || n % 60 || ' * * * *|Europe/Vienna', 'plan',
    false, 9, 9, now() FROM generate_series(1, {jobs}) AS n;
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, attempts, token, worker,
    started, finished)
SELECT 'job-' || to_char(n % {jobs} + 1, 'FM000000'), 'recurring',
    date_trunc('hour', now()) - n / {jobs} * interval '1 hour' - n % 60 * interval '1 minute',
    CASE WHEN n % 997 = 0 THEN 'failed' ELSE 'succeeded' END, 1, n, 'worker-1', now(), now()
FROM generate_series(1, {slots}) AS n ON CONFLICT DO NOTHING;
X || n % 20, 'id-' || n, now() + n % 600 * interval '1 second', 'task', false, 9, 9
FROM generate_series(1, {tasks}) AS n;
INSERT INTO scheduled_attempts (task_name, task_instance, slot, token, number, outcome, ended)
SELECT task_name, task_instance, slot, token, 1, 'failed', finished
FROM scheduled_slots WHERE outcome = 'failed';
INSERT INTO scheduled_counts (task_name, hour, kind, outcome, reason, count)
SELECT task_name, date_trunc('hour', slot), 'slot', outcome, '', count(*)
FROM scheduled_slots GROUP BY 1, 2, 4;
ANALYZE"""
REPEATS = 5


def pages() -> dict[str, dict[str, str]]:
    """Return each page with the values that it is measured with."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    year = {"from": (hour - timedelta(days=360)).isoformat(), "to": hour.isoformat()}
    week = {"from": (hour - timedelta(days=7)).isoformat(), "to": hour.isoformat()}
    return {
        "/": {},
        "/timeline": {},
        "/timeline of a week": week,
        "/timeline of a year": year,
        "/timeline with a tag": {"tag": "gpu"},
        "/jobs": {},
        "/job": {"name": "job-000007"},
        "/instant": {"name": "job-000007", "at": hour.isoformat()},
        "/what-if": {"name": "job-000007", "schedule": "5 * * * *"},
        "/tasks": {"name": "task-7"},
        "/tasks by error": {"name": "task-7", "error": "refused"},
        "/task": {"name": "task-7", "id": "id-7"},
        "/load": {},
        "/workers": {},
        "/calendars": {},
        "/audit": {},
        "/database": {},
    }


def measured(url: str, path: str, given: dict[str, str]) -> tuple[float, int]:
    """Return the median time of a page in milliseconds, and its status."""
    took = list[float]()
    dashboard = Dashboard(url, role="viewer")
    request = Request(method="GET", path=path.split()[0], query=urlencode(given))
    dashboard.respond(Request(method="GET", path="/audit"))  # opens the connections
    for _ in range(REPEATS):
        dashboard.forget()
        began = time.perf_counter()
        status = dashboard.respond(request).status
        took.append(1000 * (time.perf_counter() - began))
    dashboard.close()
    return statistics.median(took), status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="an empty PostgreSQL database")
    parser.add_argument("--slots", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument(
        "--most", type=float, default=50.0, help="milliseconds per page"
    )
    given = parser.parse_args()
    Schema(Settings.load(database_url=given.url)).upgrade()
    with psycopg.connect(given.url, autocommit=True) as connection:
        sizes = {"jobs": given.jobs, "slots": given.slots, "tasks": given.tasks}
        connection.execute(FILL.format(**sizes))
    slow = 0
    for path, values in pages().items():
        took, status = measured(given.url, path, values)
        slow += took > given.most
        print(
            f"{path:22} {status} {took:8.1f} ms{'  slow' if took > given.most else ''}",
            flush=True,
        )
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
