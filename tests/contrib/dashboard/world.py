"""A small cluster in the tables, as it would be on a working day: for tests of the pages."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import psycopg

VIENNA = "Europe/Vienna"
LONG_NAME = "reconcile-the-ledger-of-every-subsidiary-" + "and-then-some-more-" * 8
CJK_NAME = "夜間請求書の作成と送信"
RTL_NAME = "تقرير-المبيعات-اليومي"
#: Nothing in a row is HTML.
HOSTILE_NAME = "<script>alert('x')</script>&\"'"
HOSTILE_ERROR = "ValueError: <img src=x onerror=alert(1)>"

_JOBS = """
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, next_slot, schedule,
    kind, picked, version, created_version, last_success, last_failure, consecutive_failures,
    last_error)
VALUES (%(name)s, 'recurring', now() + interval '7 minutes', now() + interval '7 minutes', NULL,
    %(schedule)s, 'plan', false, 9, extract(epoch FROM now() - interval '100 days') * 1000000,
    now() - interval '10 minutes', now() - interval '5 minutes', %(failures)s, %(error)s)"""
_SLOTS = """
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, attempts, token, worker,
    started, finished, error)
SELECT %(name)s, 'recurring', at, CASE WHEN %(every)s > 0 AND n %% %(every)s = 0 THEN 'failed'
    ELSE 'succeeded' END, 1, n, 'worker-1', at + interval '120 ms',
    at + interval '120 ms' + (n %% 9 + 1) * interval '700 ms',
    CASE WHEN %(every)s > 0 AND n %% %(every)s = 0 THEN %(error)s END
FROM (SELECT n, date_trunc('hour', now()) - n * make_interval(mins => %(minutes)s) AS at
      FROM generate_series(1, %(count)s) AS n) AS times"""
_NOT_RUN = """
DELETE FROM scheduled_slots WHERE task_name = 'poll-orders'
AND slot BETWEEN date_trunc('hour', now()) - interval '3 hours 25 minutes'
    AND date_trunc('hour', now()) - interval '2 hours 5 minutes'"""
_GAP = """
INSERT INTO scheduled_gaps (task_name, task_instance, first_slot, last_slot, count, reason, created)
SELECT %(name)s, 'recurring', date_trunc('hour', now()) - interval '3 hours 25 minutes',
    date_trunc('hour', now()) - interval '2 hours 5 minutes', 17, %(reason)s, now()"""
_REST = """
INSERT INTO scheduled_workers (worker, host, pid, boot_id, tags, tasks, version, capacity, state,
    started, last_seen, lease, skew, revision)
VALUES ('worker-1', 'app-1', 4711, 'a', '["gpu"]', '["poll-orders"]', '0.1.0', 10, 'running',
    now() - interval '3 hours', now(), interval '1 hour', 0.004, 'release-41'),
    ('worker-2', 'app-2', 4712, 'b', '[]', '[]', '0.1.0', 10, 'running',
    now() - interval '2 days', now() - interval '1 day', interval '1 minute', 0.3, NULL);
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, kind, picked, version,
    created_version, state, attempt, last_failure, last_error, parked_due, task_data)
SELECT 'send-mail', 'order-' || n, CASE WHEN n < 4 THEN timestamptz '3000-01-01Z' ELSE now()
    - interval '3 minutes' END, 'task', false, 9, 9, CASE WHEN n < 4 THEN 'dead' END,
    CASE WHEN n < 4 THEN 10 ELSE 0 END, CASE WHEN n < 4 THEN now() - interval '2 minutes' END,
    CASE WHEN n < 4 THEN 'SMTPError: relay refused order ' || n END,
    CASE WHEN n < 4 THEN now() - interval '1 hour' END,
    convert_to('{"to": "ada@example.com"}', 'UTF8')
FROM generate_series(1, 12) AS n;
INSERT INTO scheduled_controls (at, author, command, task_name, note)
VALUES (now() - interval '20 minutes', 'ada@example', 'pause', 'month-end-close',
    'until the audit is through');
UPDATE scheduled_tasks SET state = 'paused', control = (SELECT max(id) FROM scheduled_controls),
    parked_due = execution_time, execution_time = '3000-01-01Z'
WHERE task_name = 'month-end-close';
INSERT INTO scheduled_pauses (task_name, scope, task_instance, created, missed, author, note)
VALUES ('month-end-close', 'job', 'recurring', now() - interval '20 minutes',
    'catch_up', 'ada@example',
    'until the audit is through');
INSERT INTO scheduled_calendars (name, revision, weekend, days, updated)
VALUES ('AT', 3, 'SAT,SUN', '2026:0101,0106,1026,1208,1225,1226', now() - interval '9 days');
"""
_ATTEMPTS = """
INSERT INTO scheduled_attempts (task_name, task_instance, slot, token, number, outcome, ended,
    error)
SELECT task_name, task_instance, slot, token, 1, 'failed', finished, error
FROM scheduled_slots WHERE outcome = 'failed'"""
#: As the workers would have counted it.
_COUNTS = """
INSERT INTO scheduled_counts (task_name, hour, kind, outcome, reason, count)
SELECT task_name, date_trunc('hour', slot), 'slot', outcome, coalesce(reason, ''), count(*)
FROM scheduled_slots GROUP BY 1, 2, 4, 5
UNION ALL
SELECT task_name, date_trunc('hour', last_slot), 'slot', 'skipped', reason, sum(count)
FROM scheduled_gaps GROUP BY 1, 2, 5"""
#: A deploy, and a night without any worker.
_HISTORY = """
INSERT INTO scheduled_deploys (task_name, task_instance, at, former, schedule, revision, worker)
VALUES ('poll-orders', 'recurring', now() - interval '5 hours', 'CRON|*/10 * * * *|Europe/Vienna',
    'CRON|*/5 * * * *|Europe/Vienna', 'release-41', 'worker-1');
INSERT INTO scheduled_worker_history (worker, host, version, capacity, tags, tasks, started, ended,
    outcome)
VALUES ('worker-0', 'app-1', '0.1.0', 10, '[]', '[]', now() - interval '3 days',
    date_trunc('hour', now()) - interval '3 hours 26 minutes', 'gone'),
    ('worker-1', 'app-1', '0.1.0', 10, '[]', '[]',
    date_trunc('hour', now()) - interval '2 hours 4 minutes', NULL, NULL)"""

#: Beside what the small cluster has: a calendar whose days have ended, a worker that is full,
#: what waits for it, and a worker with a slow handler.
PLANTED = """
INSERT INTO scheduled_calendars (name, revision, weekend, days, updated)
VALUES ('old', 1, 'SAT,SUN', '2020:0101,1225', now());
INSERT INTO scheduled_workers (worker, host, pid, boot_id, tags, tasks, version, capacity, state,
    started, last_seen, lease, skew)
VALUES ('worker-3', 'app-3', 4713, 'c', '[]', '["resize"]', '0.1.0', 2, 'running',
    now() - interval '3 hours', now(), interval '1 hour', 0.0);
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, kind, picked, picked_by,
    version, created_version, last_heartbeat, lease, attempt)
SELECT 'resize', 'picture-' || n, now() - interval '5 minutes', 'task', n < 3,
    CASE WHEN n < 3 THEN 'worker-3' END, extract(epoch FROM now()) * 1000000, 9,
    CASE WHEN n < 3 THEN now() END, CASE WHEN n < 3 THEN interval '1 hour' END, 1
FROM generate_series(1, 30) AS n;
INSERT INTO scheduled_workers (worker, host, pid, boot_id, tags, tasks, version, capacity, state,
    started, last_seen, lease, skew)
VALUES ('worker-4', 'app-4', 4714, 'd', '[]', '["poll-orders"]', '0.1.0', 2, 'slow',
    now() - interval '3 hours', now(), interval '1 hour', 0.0);
INSERT INTO scheduled_tasks (task_name, task_instance, plan_instance, kind, execution_time, slot,
    origin, picked, picked_by, version, created_version, last_heartbeat, lease, attempt)
VALUES ('poll-orders', 'trigger:1', 'recurring', 'detached', now(), now(), 'trigger', true,
    'worker-4', extract(epoch FROM now() - interval '14 minutes') * 1000000, 9, now(),
    interval '1 hour', 1);
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, attempts, token, worker,
    started, origin)
SELECT task_name, 'recurring', slot, 'running', 1, version, picked_by,
    now() - interval '14 minutes', origin FROM scheduled_tasks WHERE task_instance = 'trigger:1'"""


def zone() -> str:
    """A zone in which the cluster's last hours are of today, and the clocks are changed."""
    is_night = datetime.now(UTC).astimezone(ZoneInfo(VIENNA)).hour < 5
    return "America/Los_Angeles" if is_night else VIENNA


def fill(url: str) -> None:
    """Put the cluster into a database that has the tables."""
    here = zone()
    with psycopg.connect(url, autocommit=True) as connection:
        for name, schedule, every in (
            ("poll-orders", "CRON|*/5 * * * *|Europe/Vienna", 0),
            ("nightly-report", "CRON|30 2 * * *|Europe/Vienna", 3),
            ("month-end-close", "CRON|0 6 * * *|Europe/Vienna", 0),
            (LONG_NAME, "EVERY|1h|1970-01-01T00:00:00Z", 0),
            (CJK_NAME, "EVERY|1h|1970-01-01T00:00:00Z", 4),
            (RTL_NAME, "EVERY|1h|1970-01-01T00:00:00Z", 0),
            (HOSTILE_NAME, "EVERY|1h|1970-01-01T00:00:00Z", 2),
        ):
            given = {
                "name": name,
                "schedule": schedule.replace(VIENNA, here),
                "every": every,
                "failures": 2 if every else 0,
                "error": HOSTILE_ERROR if every else None,
                "minutes": 5 if name == "poll-orders" else 60,
                "count": 100,
            }
            connection.execute(_JOBS, given)
            connection.execute(_SLOTS, given)
        connection.execute(_NOT_RUN)
        connection.execute(_GAP, {"name": "poll-orders", "reason": "worker_absent"})
        connection.execute(_ATTEMPTS)
        connection.execute(_COUNTS)
        connection.execute(_HISTORY.replace(VIENNA, here).encode())
        connection.execute(_REST)
