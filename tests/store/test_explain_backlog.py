"""The read for monitoring stays cheap beside millions of rows: it reads what is due, up to its
bound, by the index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import sql
from tests.databases import Databases
from tests.store.explained import Explained, nodes, scanned

from slotwise.store.reading.monitoring import backlog
from slotwise.store.reading.task_counts import MOST

FILL = """
ALTER TABLE scheduled_tasks SET (autovacuum_enabled = false);
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, kind, priority)
SELECT 'later', n::text, statement_timestamp() + interval '1 day', false, 1000, 'task', 50
FROM generate_series(1, 100000) AS n;
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, kind, priority)
SELECT 'many', n::text, statement_timestamp() - n * interval '1 second', false, 1000, 'task', 50
FROM generate_series(1, 30000) AS n;
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, kind, priority)
SELECT 'few-' || n, '1', statement_timestamp() - interval '5 s', false, 1000, 'task', 10 * n
FROM generate_series(1, 5) AS n
"""


@pytest.fixture(scope="module")
def stage(databases: Databases) -> Iterator[Explained]:
    with databases.provisioned() as url:
        made = Explained(url, [])
        made.driver.execute(FILL)
        yield made
        made.close()


def test_counts_and_oldest(stage: Explained) -> None:
    found = {one.name: one for one in backlog(stage.store)}
    assert {name: one.waiting for name, one in found.items()} == {
        "many": MOST,
        "few-1": 1,
        "few-2": 1,
        "few-3": 1,
        "few-4": 1,
        "few-5": 1,
    }
    assert found["many"].oldest.total_seconds() >= 30_000


@pytest.mark.parametrize(
    "is_analysed", [False, True], ids=["never analysed", "analysed"]
)
def test_rows_that_are_not_due_are_not_read(
    stage: Explained, is_analysed: bool
) -> None:
    """Two statements, none of which reads the table from one end to the other, nor rows beyond the
    bound.
    """
    if is_analysed:
        stage.driver.execute("VACUUM ANALYZE scheduled_tasks")
    sent = [
        one
        for one in stage.sent(lambda: backlog(stage.store))
        if "scheduled_tasks" in one[0]
    ]
    assert len(sent) == 2
    for statement, given in sent:
        plan = analysed(stage, statement, given)
        shown = json.dumps(plan, indent=1)
        assert not scanned(plan), shown
        assert rows_read(plan) <= MOST + 200, shown


def analysed(
    stage: Explained, statement: str, given: dict[str, Any]
) -> dict[str, Any]:
    values = {name: sql.Literal(value) for name, value in given.items()}
    text = sql.SQL(re.sub(r"%\((\w+)\)s", r"{\1}", statement)).format(**values)
    found = stage.driver.execute(
        sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) ") + text
    ).fetchone()
    assert found is not None
    return found[0][0]["Plan"]  # type: ignore[no-any-return]


def rows_read(plan: dict[str, Any]) -> int:
    kinds = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    scans = [
        node for node in nodes(plan) if node.get("Relation Name") == "scheduled_tasks"
    ]
    return sum(
        sum(int(node.get(kind, 0)) for kind in kinds) * int(node["Actual Loops"])
        for node in scans
    )
