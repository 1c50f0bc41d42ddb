"""The page of the tables is the tables; each index is used by the statement that the page names;
revisions stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.docs.markdown import ROOT
from tests.kit.store import Pruner, failed_attempts
from tests.store.bench import a_job, a_task, claim_due
from tests.store.explained import Explained, nodes

from slotwise import Client, Disabled, Every, migrate
from slotwise.inspect import Inspection
from slotwise.spi import tables

PAGE = (ROOT / "docs" / "schema.md").read_text()
#: Of each revision that was ever released.
REVISIONS = {
    "sw0001_scheduled_tables.py": "34970d28a0590bee",
    "sw0002_room_in_the_ledger.py": "95719ce01237ded7",
    "sw0003_guarded_rows.py": "e990b9a1e916c4a7",
    "sw0004_histories.py": "1df3f11f6bdef2cb",
    # sw0005 comes here when its release is made.
}

FILL = """
INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, slot, schedule, picked, version, state,
                             lost_count, plan_instance, order_key, picked_by)
SELECT CASE WHEN n % 2 = 0 THEN 'job' ELSE 'mail' END, n::text,
       CASE WHEN n % 10 = 0 THEN 'detached' WHEN n % 2 = 0 THEN 'plan' ELSE 'task' END,
       now() + (n - 10) * interval '1 minute', now() + n * interval '1 minute', 'EVERY|1d', n % 7 = 0, 1000,
       CASE WHEN n % 11 = 0 THEN 'dead' END, (n % 13 = 0)::integer, CASE WHEN n % 10 = 0 THEN 'recurring' END,
       n % 5, CASE WHEN n % 7 = 0 THEN 'host:1:' || n % 3 END
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, slot, schedule, picked, version)
VALUES ('job', 'recurring', 'plan', '8000-01-01Z', '8000-01-01Z', 'EVERY|1d', false, 1000);
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, finished, expires)
SELECT 'job', (n % 100)::text, now() - n * interval '1 minute', 'succeeded', 'schedule', now(), now()
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_gaps (task_name, task_instance, first_slot, last_slot, count, reason, created)
SELECT 'job', (n % 100)::text, now() - n * interval '1 minute', now() - n * interval '1 minute', 2, 'late', now()
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_attempts (task_name, task_instance, slot, token, number, ended, outcome)
SELECT 'job', n::text, now(), n, 1, now() - n * interval '1 minute', 'failed' FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_receipts SELECT n::text, NULL, now(), now() + n * interval '1 hour'
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_deploys SELECT 'job', n::text, now() - n * interval '1 hour', NULL, 'EVERY|1d', NULL, 'w'
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_worker_history (worker, host, version, capacity, started, ended)
SELECT n::text, 'host', '1', 1, now() - n * interval '1 hour', now() - n * interval '1 hour'
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_pauses SELECT 'job', 'instance', n::text, now(), now() + n * interval '1 hour', 'skip', 'me'
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_incidents SELECT 'failed', 'job', n, 1, now() + n * interval '1 hour', now(), NULL, 'text',
'{}', NULL, 0 FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_silences SELECT 'failed', n::text, now(), now() + n * interval '1 hour', 'me'
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_instances SELECT 'job', n::text, 'scope' || n % 100, NULL, now() FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_counts SELECT 'job' || n % 9, now() - n * interval '1 hour', 'slot', 'succeeded', '', 1, 0
FROM generate_series(1, 20000) AS n;
INSERT INTO scheduled_events (name, published, fanned_out, handlers)
SELECT 'order.' || n % 100, now(), CASE WHEN n % 50 <> 0 THEN now() END, (n % 30 <> 0)::integer
FROM generate_series(1, 20000) AS n;
ANALYZE;
"""


def rows_of(section: str) -> list[list[str]]:
    """The rows of the table in a section of the page, with the code of their cells."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [
        line.strip("|").split(" | ")
        for line in text.splitlines()
        if line.startswith("| `")
    ]


def name_in(cell: str) -> str:
    (found,) = re.findall(r"`([^`]+)`", cell)
    return found


def test_the_page_has_each_table_and_column() -> None:
    """In their order, and none that is not there; those of db-scheduler are marked."""
    found = {
        table.name: [column.name for column in table.columns]
        for table in tables().metadata.tables.values()
    }
    assert {
        name: [name_in(row[0]) for row in rows_of(name)] for name in found
    } == found
    marked = [
        name_in(row[0]) for row in rows_of("scheduled_tasks") if row[0].endswith("*")
    ]
    assert marked == found["scheduled_tasks"][:12]
    assert set(re.findall(r"\n## (scheduled_\w+)", PAGE)) == set(found)


def test_the_page_has_each_index() -> None:
    """In the order of the tables."""
    found = [
        str(index.name)
        for table in tables().metadata.sorted_tables
        for index in table.indexes
    ]
    assert sorted(name_in(row[0]) for row in rows_of("Indexes")) == sorted(found)


def test_each_index_is_used(pg_url: str) -> None:
    """By a statement that is sent, or by the one that the page gives for a later feature: what
    none uses only costs.
    """
    stage = Explained(
        pg_url, [a_job("job", Every("1d")), a_job("off", Disabled()), a_task("mail")]
    )
    try:
        stage.driver.execute(FILL)
        used = {
            index
            for play in _plays(stage)
            for sent in stage.sent(play)
            for index in _indexes(stage, sent)
        }
        for row in rows_of("Indexes"):
            if (statement := name_in(row[1]) if "`" in row[1] else None) is not None:
                used |= _indexes(stage, (statement, {}))
    finally:
        stage.close()
    assert {name_in(row[0]) for row in rows_of("Indexes")} <= used


def _plays(stage: Explained) -> list[Callable[[], Any]]:
    """Claim, reap, operate, read and prune."""
    store, client, lease = (
        stage.store,
        Client(lambda: stage.store),
        timedelta(minutes=1),
    )
    reader = Inspection(lambda: store)
    long_ago = store.now() - timedelta(days=100)
    return [
        lambda: claim_due(store, "host:1:a", 10, lease=lease, names=["job", "mail"]),
        lambda: store.held.held_by("host:1:a"),
        lambda: client.retry("mail"),
        lambda: client.operations.trigger("job", dry_run=True),
        lambda: reader.slots("job", limit=10),
        lambda: failed_attempts(store, store.now() - timedelta(days=1), limit=50),
        lambda: list(
            Pruner(store, keep=timedelta(0), failure_retention=timedelta(0)).pages()
        ),
        lambda: reader.deploys(long_ago, long_ago + timedelta(days=1)),
        lambda: reader.worker_lives(long_ago, long_ago + timedelta(days=1)),
        lambda: reader.outcome_counts(long_ago, long_ago + timedelta(days=1)),
    ]


def _indexes(stage: Explained, sent: Any) -> set[str]:
    if (
        not sent[0]
        .lstrip("( \n")
        .upper()
        .startswith(("SELECT", "WITH", "UPDATE", "DELETE", "INSERT"))
    ):
        return set()
    return {
        node["Index Name"]
        for node in nodes(stage.plan(sent, "custom"))
        if "Index Name" in node
    }


def test_revisions_are_append_only() -> None:
    """A revision that was released never changes: tables that it has made would differ from those
    that it makes. It may gain a branch for another database, beside the next test.
    """
    files = sorted((migrate.scripts() / "versions").glob("sw*.py"))
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files
    }
    assert {name: found.get(name) for name in REVISIONS} == REVISIONS


#: The hashes of what the revisions up to sw0006 print.
PRINTED = {"postgresql": "e4b9494a6980e909", "sqlite": "4b9112868dc880f5"}


@pytest.mark.parametrize("dialect", PRINTED)
def test_the_sql_of_released_revisions_stays(dialect: str) -> None:
    """Byte for byte, whatever branches they gain."""
    printed = migrate.sql(dialect).partition("-- Running upgrade sw0006")[0]
    assert hashlib.sha256(printed.encode()).hexdigest()[:16] == PRINTED[dialect]
