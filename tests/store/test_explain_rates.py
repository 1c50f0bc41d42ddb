"""Rates and histories are read by an index, whatever the size of the history."""

from __future__ import annotations

from datetime import timedelta

from tests.store.bench import a_job
from tests.store.explained import Explained, nodes

from slotwise import Every
from slotwise.inspect import Inspection, TaskFilter

FILL = """
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, started, finished)
SELECT 'job' || n % 50, CASE WHEN n % 2 = 0 THEN 'recurring' ELSE (n % 100)::text END,
       now() - n * interval '1 minute',
       'succeeded', 'schedule', now(), now() FROM generate_series(1, 100000) AS n;
INSERT INTO scheduled_counts
SELECT 'job' || n % 50, date_trunc('hour', now()) - n / 50 * interval '1 hour', 'slot',
       'succeeded', '', 1, 0
FROM generate_series(1, 100000) AS n;
INSERT INTO scheduled_deploys
SELECT 'job' || n % 50, n::text, now() - n * interval '1 hour', NULL, 'EVERY|1d', NULL, 'w'
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_worker_history (worker, host, version, capacity, started, ended)
SELECT n::text, 'host', '1', 1, now() - n * interval '1 hour', now() - n * interval '1 hour'
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, picked, version)
SELECT 'job' || n, 'recurring', 'plan', now() + n * interval '1 minute', false, 1
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, picked, version,
    state, last_failure, last_error)
SELECT 'task' || n % 20, n::text, 'task', CASE WHEN n < 100 THEN timestamptz '3000-01-01Z'
    ELSE now() + n * interval '1 minute' END, false, 1, CASE WHEN n < 100 THEN 'dead' END,
    CASE WHEN n < 100 THEN now() END, CASE WHEN n < 100 THEN 'refused' END
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, started, finished, error)
SELECT 'failing' || n % 50, 'recurring', now() - n * interval '1 minute', 'failed', now(),
    now() - n * interval '1 hour', 'refused' FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_attempts (task_name, task_instance, slot, token, number, outcome, ended)
SELECT task_name, task_instance, slot, 1, 1, 'failed', finished
FROM scheduled_slots WHERE outcome = 'failed';
ANALYZE;
"""
#: Tables that have a few rows here.
SMALL = ("scheduled_workers", "scheduled_pauses", "scheduled_controls")


def test_no_table_is_read_as_a_whole(pg_url: str) -> None:
    stage = Explained(pg_url, [a_job("job", Every("1d"))])
    try:
        stage.driver.execute(FILL)
        store = stage.store
        reader = Inspection(lambda: store)
        now = store.now()
        day = timedelta(days=1)
        plays = (
            lambda: reader.rates("job7"),
            lambda: reader.rates_of(["job", "job7", "job8"]),
            lambda: reader.outcome_counts(now - day, now),
            lambda: reader.outcome_totals(now - day, now),
            lambda: reader.outcome_parts(["job7", "job8"], now - day, now, 120),
            lambda: reader.backlog(),
            lambda: reader.task_counts(),
            lambda: reader.failures(now - day, limit=500),
            lambda: reader.troubles(),
            lambda: reader.pauses(),
            lambda: reader.schedule_spans(now - day, now, job="job7"),
            lambda: reader.deploys(now - day, now, job="job7"),
            lambda: reader.worker_lives(now - day, now),
        )
        scans = [
            (node["Node Type"], node.get("Relation Name"))
            for play in plays
            for sent in stage.sent(play)
            if sent[0].lstrip().upper().startswith("SELECT")
            and "scheduled_" in sent[0]
            for node in nodes(stage.plan(sent, "custom"))
        ]
    finally:
        stage.close()
    assert scans
    whole = [name for kind, name in scans if kind == "Seq Scan" and name not in SMALL]
    assert whole == []


MANY_TASKS = """
INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, picked, version, slot)
SELECT 'job' || n, 'recurring', 'plan', now() + n * interval '1 minute', false, 1,
    now() + n * interval '1 minute' FROM generate_series(1, 500) AS n;
INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, picked, version)
SELECT 'task' || n % 20, n::text, 'task', now(), false, 1 FROM generate_series(1, 20000) AS n;
ANALYZE;
"""


KEYED_TASKS = """
INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, picked, version,
    order_key)
SELECT 'handler', n::text, 'task', now(), false, 1, (n / 10)::text
FROM generate_series(1, 20000) AS n;
ANALYZE;
"""


def test_tasks_of_a_key_are_found_by_their_index(pg_url: str) -> None:
    stage = Explained(pg_url, [a_job("job", Every("1d"))])
    try:
        stage.driver.execute(KEYED_TASKS)
        store = stage.store
        reader = Inspection(lambda: store)
        where = TaskFilter(order_key="7")
        found = reader.tasks("handler", where=where)
        indexes = [
            node.get("Index Name")
            for sent in stage.sent(lambda: reader.tasks("handler", where=where))
            if "order_key =" in sent[0]
            for node in nodes(stage.plan(sent, "custom"))
        ]
    finally:
        stage.close()
    assert {one.order_key for one in found} == {"7"}
    assert len(found) == 10
    assert "scheduled_tasks_ordered" in indexes


def test_tasks_cost_nothing_where_ends_are_forecast(pg_url: str) -> None:
    stage = Explained(pg_url, [a_job("job", Every("1d"))])
    try:
        stage.driver.execute(MANY_TASKS)
        store = stage.store
        reader = Inspection(lambda: store)
        scans = [
            node["Node Type"]
            for sent in stage.sent(reader.finish_forecasts)
            if "finish_by" in sent[0]
            for node in nodes(stage.plan(sent, "custom"))
        ]
    finally:
        stage.close()
    assert "Index Scan" in scans
    assert "Seq Scan" not in scans
