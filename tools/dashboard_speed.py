#!/usr/bin/env python3
"""Measure the server time of each page of the dashboard on large tables.

``tools/dashboard_speed.py URL`` fills the tables of an empty database, and prints of each page, in
milliseconds: the median of nine answers, each read anew but for what is kept for half a minute; the
processor time in it, of this process and of the server's (where it runs on this machine, and this
account may see its processes); and the first answer after a start. Tables that are filled are
measured as they are. The status is 1 if the processor time of a page, which does not depend on what
else runs here, exceeds ``--most``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, kind, picked, version,
    created_version)
SELECT 'task-' || n % 20, 'id-' || n, now() + n % 600 * interval '1 second', 'task', false, 9, 9
FROM generate_series(1, {tasks}) AS n;
INSERT INTO scheduled_attempts (task_name, task_instance, slot, token, number, outcome, ended)
SELECT task_name, task_instance, slot, token, 1, 'failed', finished
FROM scheduled_slots WHERE outcome = 'failed';
INSERT INTO scheduled_counts (task_name, hour, kind, outcome, reason, count)
SELECT task_name, date_trunc('hour', slot), 'slot', outcome, '', count(*)
FROM scheduled_slots GROUP BY 1, 2, 4;
ANALYZE"""
REPEATS = 9


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


@dataclass(frozen=True)
class Measured:
    """Of a page: milliseconds of the median answer, of the processor in it, and of the first."""

    median: float
    processor: float
    first: float
    status: int


def measured(url: str, path: str, given: dict[str, str]) -> Measured:
    """Ask for a page again and again, each time as if it had not been read before."""
    took, worked = list[float](), list[float]()
    dashboard = Dashboard(url, role="viewer")
    dashboard.respond(Request(method="GET", path="/audit"))  # opens the connections
    status = 0
    for number in range(1 + REPEATS):
        query = urlencode({**given, "n": number})
        request = Request(method="GET", path=path.split()[0], query=query)
        began, worked_before = time.perf_counter(), processor_time(url)
        status = dashboard.respond(request).status
        took.append(1000 * (time.perf_counter() - began))
        worked.append(1000 * (processor_time(url) - worked_before))
    dashboard.close()
    return Measured(
        median=statistics.median(took[1:]),
        processor=statistics.median(worked[1:]),
        first=took[0],
        status=status,
    )


def processor_time(url: str) -> float:
    """Return the seconds that this process and the server's for this database have worked."""
    found = time.process_time()
    for process in processes_of(url):
        with suppress(OSError):
            scheduled = Path(f"/proc/{process}/schedstat").read_text()
            found += int(scheduled.split()[0]) / 1e9
    return found


def processes_of(url: str) -> list[int]:
    with psycopg.connect(url, autocommit=True) as connection:
        own = "pid <> pg_backend_pid() AND datname = current_database()"
        rows = connection.execute(f"SELECT pid FROM pg_stat_activity WHERE {own}")
        return [row[0] for row in rows]


def fill(url: str, sizes: dict[str, int]) -> None:
    """Fill the tables, if they are empty."""
    Schema(Settings.load(database_url=url)).upgrade()
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT 1 FROM scheduled_slots LIMIT 1").fetchone()
        if found is None:
            connection.execute(FILL.format(**sizes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="an empty PostgreSQL database")
    parser.add_argument("--slots", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--page", help="measure this one alone")
    parser.add_argument(
        "--most", type=float, default=50.0, help="milliseconds per page"
    )
    given = parser.parse_args()
    fill(given.url, {"jobs": given.jobs, "slots": given.slots, "tasks": given.tasks})
    slow = 0
    for path, values in pages().items():
        if given.page and path != given.page:
            continue
        took = measured(given.url, path, values)
        slow += took.processor > given.most
        print(
            f"{path:22} {took.status} {took.median:8.1f} ms, processor {took.processor:6.1f}, "
            f"first {took.first:8.1f}{'  slow' if took.processor > given.most else ''}",
            flush=True,
        )
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
