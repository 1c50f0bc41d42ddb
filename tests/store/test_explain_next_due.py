"""The look for what is due next reads a few rows, however many jobs or instances are a worker's
own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from psycopg import sql
from tests.databases import Databases
from tests.kit.records import WINDOW
from tests.kit.store import BatchSize
from tests.store.bench import a_job, a_task
from tests.store.explained import Explained, nodes
from tests.store.hearing import Sent

from slotwise import Disabled
from slotwise.store.slots.tuning import FEW

MANY, NAMES, FOREIGN = 100_000, 10_000, 1_000

#: As for claims: see postgresql_link.py.
PLANNED = """
SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off
"""

FILL = """
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, next_slot, schedule, kind, picked, version)
SELECT {name}, {instance}, due, due, due + interval '1 day', 'EVERY|1d', 'plan', false, 1000
FROM (SELECT n, statement_timestamp() + (n - 10) * interval '1 minute' AS due
      FROM generate_series(1, {count}) AS n) AS rows
"""


disabled = cache(lambda name: a_job(name, Disabled()))


class Stage(Explained):
    def __init__(self, url: str, names: list[str]) -> None:
        super().__init__(url, list(map(disabled, names)))
        self.names = names
        self.driver.execute(
            "ALTER TABLE scheduled_tasks SET (autovacuum_enabled = false)"
        )

    def fill(self, name: str, instance: str, count: int) -> None:
        self.driver.execute(FILL.format(name=name, instance=instance, count=count))

    def looked(self) -> dict[str, Any]:
        """The generic plan of the look that was sent last, with what it read."""
        *_, (statement, given) = self.sent(lambda: self.store.due.next_due(self.names))
        return self.really(statement, given)

    def really(self, statement: str, given: dict[str, Any]) -> dict[str, Any]:
        """The generic plan of a statement that is run, and rolled back."""
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
        numbered = re.sub(
            r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement
        )
        values = sql.SQL(", ").join(sql.Literal(given[name]) for name in names)
        self.driver.execute(PLANNED)
        self.driver.execute(f"PREPARE looked_at AS {numbered}")
        try:
            with self.driver.transaction(force_rollback=True):
                explain = sql.SQL(
                    "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE looked_at({})"
                ).format(values)
                found = self.driver.execute(explain).fetchone()
        finally:
            self.driver.execute("DEALLOCATE looked_at")
        assert found is not None
        return found[0][0]["Plan"]  # type: ignore[no-any-return]


@contextmanager
def a_stage(databases: Databases, names: list[str]) -> Iterator[Stage]:
    with databases.provisioned() as url:
        stage = Stage(url, names)
        try:
            yield stage
        finally:
            stage.close()


def rows_read(plan: dict[str, Any]) -> int:
    """Of the queue: those that were found, and those that were thrown away."""
    kinds = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    scans = [
        node for node in nodes(plan) if node.get("Relation Name") == "scheduled_tasks"
    ]
    assert scans
    return sum(
        sum(int(node.get(kind, 0)) for kind in kinds) * int(node["Actual Loops"])
        for node in scans
    )


def pages_read(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.extended
@pytest.mark.parametrize(
    "is_analysed", [False, True], ids=["never analysed", "analysed"]
)
def test_of_100_000_instances_the_first_is_read(
    databases: Databases, is_analysed: bool
) -> None:
    """By the front of the index of due times, and not by the key, which would read and sort
    them all.
    """
    with a_stage(databases, ["feed"]) as stage:
        stage.fill("'feed'", "n::text", MANY)
        if is_analysed:
            stage.driver.execute("VACUUM ANALYZE scheduled_tasks")
        plan = stage.looked()
    assert rows_read(plan) <= 2, json.dumps(plan, indent=1)
    assert pages_read(plan) < 50


@pytest.mark.extended
@pytest.mark.parametrize(
    "is_analysed", [False, True], ids=["never analysed", "analysed"]
)
def test_of_10_000_jobs_the_first_is_read(
    databases: Databases, is_analysed: bool
) -> None:
    """Rows of others that are due before are passed over, each by one look into a hash of the
    names: to compare a row with ten thousand names, one after the other, takes a tenth of a
    millisecond.
    """
    with a_stage(
        databases, [f"job-{number:05}" for number in range(1, NAMES + 1)]
    ) as stage:
        stage.fill("'job-' || lpad(n::text, 5, '0')", "'recurring'", NAMES)
        stage.fill("'other'", "n::text", FOREIGN)
        stage.driver.execute(
            "UPDATE scheduled_tasks SET execution_time = execution_time - "
            "interval '7 days' WHERE task_name = 'other'"
        )
        if is_analysed:
            stage.driver.execute("VACUUM ANALYZE scheduled_tasks")
        plan = stage.looked()
    shown = json.dumps(plan, indent=1)
    assert rows_read(plan) <= FOREIGN + WINDOW + 4, shown
    assert pages_read(plan) < 150, shown
    (first,) = [
        node
        for node in nodes(plan)
        if node.get("Index Name") == "scheduled_tasks_due" and "Filter" in node
    ]
    assert "hashed SubPlan" in first["Filter"], shown


@pytest.mark.extended
@pytest.mark.parametrize(
    "is_analysed", [False, True], ids=["never analysed", "analysed"]
)
def test_the_names_of_10_000_jobs_are_not_sent_to_find_the_first(
    databases: Databases, is_analysed: bool
) -> None:
    """The first few slots of all show it."""
    with a_stage(
        databases, [f"job-{number:05}" for number in range(1, NAMES + 1)]
    ) as stage:
        stage.fill("'job-' || lpad(n::text, 5, '0')", "'recurring'", NAMES)
        if is_analysed:
            stage.driver.execute("VACUUM ANALYZE scheduled_tasks")
        ((statement, given),) = stage.sent(
            lambda: stage.store.due.next_due(stage.names)
        )
        plan = stage.really(statement, given)
    assert "names" not in given
    assert rows_read(plan) <= 2 * FEW, json.dumps(plan, indent=1)
    assert pages_read(plan) < 60


def test_a_worker_without_jobs_reads_slots_of_others_by_an_index(
    databases: Databases,
) -> None:
    """Its tasks may have recurring instances: each look passes over the slots of others."""
    with a_stage(databases, []) as stage:
        stage.fill("'other'", "n::text", FOREIGN)
        stage.driver.execute("VACUUM ANALYZE scheduled_tasks")
        *_, (statement, given) = stage.sent(lambda: stage.store.due.next_due(["mail"]))
        plan = stage.really(statement, given)
    assert rows_read(plan) < 3 * FOREIGN, json.dumps(plan, indent=1)
    assert "Seq Scan" not in json.dumps(plan)


def test_behind_due_slots_that_no_worker_runs_a_claim_and_a_look_read_a_few_rows(
    databases: Databases,
) -> None:
    """A full look, at most once a second, finds where the own slots begin. Until the next one the
    others begin there, also claims that find nothing. One claim may come before the next look, so
    that no slot waits for it.
    """
    with a_stage(databases, ["job"]) as stage:
        stage.fill("'other'", "n::text", 5 * WINDOW)
        stage.driver.execute(
            f"UPDATE scheduled_tasks SET execution_time = now() - interval '{WINDOW} days'"
        )
        stage.fill("'job'", "n::text", 20)
        stage.driver.execute("VACUUM ANALYZE scheduled_tasks")
        due, claims, names = stage.store.due, stage.store.claims, stage.names
        assert rows_read(stage.looked()) > 5 * WINDOW
        due._until += 60
        assert rows_read(stage.looked()) <= 2
        for _ in range(3):
            sent = stage.sent(
                lambda: claims.claim_slots(
                    "host:1:a", 9, lease=timedelta(minutes=1), names=names
                )
            )
            claim = next(one for one in sent if "ledger AS" in one[0])
            assert rows_read(stage.really(*claim)) <= 60, claim
            stage.driver.execute(
                "UPDATE scheduled_tasks SET execution_time = now() + interval '1 day' WHERE picked"
            )
        due._until = 0.0
        assert due.since(names) is not None
        assert len(stage.sent(lambda: due.since(names))) == 1
        stage.driver.execute("DELETE FROM scheduled_tasks WHERE task_name = 'other'")
        due._until = 0.0
        due.next_due(names)
        assert due.since(names) is None


def test_full_claims_of_many_names_pass_over_what_was_claimed(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look finds the names for several claims, which begin at its first row: not at the dead
    entries before it.

    A row that comes up before that waits until the next look, which also follows a claim that was
    not full.
    """
    monkeypatch.setattr(
        BatchSize, "learn", lambda *given: None
    )  # however long a decision takes here
    names = [f"job-{number:04}" for number in range(2 * WINDOW)]
    with a_stage(databases, names) as stage:
        stage.fill("'job-' || lpad(n::text, 4, '0')", "'recurring'", 2 * WINDOW - 1)
        stage.driver.execute(
            "UPDATE scheduled_tasks SET execution_time = execution_time - interval '30 days'"
        )
        due, claims = stage.store.due, stage.store.claims
        first_due = stage.driver.execute(
            "SELECT min(execution_time) FROM scheduled_tasks"
        ).fetchone()

        def claim(limit: int) -> tuple[list[Sent], list[str]]:
            taken: list[str] = []

            def once() -> None:
                claimed = claims.claim_slots(
                    "host:1:a", limit, lease=timedelta(minutes=1), names=names
                )[1]
                taken.extend(one.row.task_name for one in claimed)

            sent = stage.sent(once)
            return [one for one in sent if "AS d" in one[0]], taken

        sent, first = claim(100)
        assert len(sent) == 2
        assert first == names[1:101]
        due._shared_until += 60
        put_back = (
            "picked = false, picked_by = NULL, execution_time = execution_time - "
            "interval '1 day'"
        )
        stage.driver.execute(
            f"UPDATE scheduled_tasks SET {put_back} WHERE task_name = 'job-0001'"
        )
        (second,), taken = claim(100)
        assert (second[1]["since"],) == first_due
        assert taken == names[101:201]
        assert rows_read(stage.really(*second)) <= 3 * 100
        due._shared_until = 0.0
        sent, taken = claim(100)
        assert (len(sent), taken) == (2, ["job-0001", *names[201:300]])
        due._shared_until += 60
        stage.driver.execute(
            "UPDATE scheduled_tasks SET picked = true WHERE task_name > 'job-0350'"
        )
        assert [
            "UNION" in statement for _ in range(2) for statement, _ in claim(100)[0]
        ] == [False, True]


PAUSED = """
INSERT INTO scheduled_pauses (task_name, scope, task_instance, created, missed, author)
SELECT 'feed', 'instance', n::text, statement_timestamp(), 'skip', 'ada'
FROM generate_series(1, 10000) AS n
"""


class Queue(Stage):
    """Of one-time tasks."""

    def __init__(self, url: str) -> None:
        names = ["mail", "letter"]
        Explained.__init__(self, url, list(map(a_task, names)))
        self.names = names

    def claimed(self) -> dict[str, Any]:
        """The generic plan of a claim."""
        claims, lease = self.store.claims, timedelta(minutes=1)
        *_, (statement, given) = self.sent(
            lambda: claims.claim_tasks("a", 9, lease=lease, names=self.names)
        )
        return self.really(statement, given)


@pytest.mark.extended
@pytest.mark.parametrize(
    "is_analysed", [False, True], ids=["never analysed", "analysed"]
)
def test_paused_instances_are_not_read(
    databases: Databases, is_analysed: bool
) -> None:
    """Whether a name of one-time tasks is paused is looked up by that name."""
    with databases.provisioned() as url:
        queue = Queue(url)
        queue.driver.execute(PAUSED)
        if is_analysed:
            queue.driver.execute("VACUUM ANALYZE scheduled_pauses")
        plans = [queue.looked(), queue.claimed()]
        queue.close()
    for plan in plans:
        read = [
            int(node["Actual Rows"]) + int(node.get("Rows Removed by Filter", 0))
            for node in nodes(plan)
            if node.get("Relation Name") == "scheduled_pauses" and node["Actual Loops"]
        ]
        assert sum(read) < 10, json.dumps(plan, indent=1)
