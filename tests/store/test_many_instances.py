"""100,000 recurring instances cost a claim what 100 cost: only what is due is ever looked at."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from statistics import median

import psycopg
import pytest
from tests.databases import Databases
from tests.kit.records import HAS_SLOT, RANK, WINDOW, Succeeded
from tests.kit.store import Store
from tests.store.bench import LEASE, a_job, claim_due

from slotwise import Disabled, Settings
from slotwise.spi import Database
from slotwise.testing import ManualClock

FEW, MANY, BATCH = 100, 100_000, 100
SECOND = timedelta(seconds=1)
START = datetime(2026, 1, 1, tzinfo=UTC)

#: Each second a hundred instances are due, the same ones again when all have had their turn.
FILL = """
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, next_slot, schedule, kind, picked, version,
                             created_version, task_data)
SELECT 'feed', 'customer-' || n, due, due, due + turn, 'EVERY|' || extract(epoch FROM turn)::integer || 's|'
       || to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'plan', false,
       1767225600000000, 1767225600000000,
       convert_to('{"url":"https://example.org/' || n || '"}', 'UTF8')
FROM (SELECT n, timestamptz '2026-01-01Z' + n / 100 * interval '1 second' AS due,
             greatest(%(count)s / 100, 1) * interval '1 second' AS turn
      FROM generate_series(0, %(count)s - 1) AS n) AS instances;
"""


class Cluster:
    """A worker's store over so many instances, on a clock of its own."""

    def __init__(self, url: str, count: int) -> None:
        self.database = Database(Settings(database_url=url))
        self.clock = ManualClock(START)
        self.store = Store(
            self.database, {"feed": a_job_of_instances}, clock=self.clock
        )
        self.driver = psycopg.connect(url, autocommit=True)
        self.driver.execute(FILL.replace("%(count)s", str(count)))
        self.driver.execute("VACUUM ANALYZE scheduled_tasks")

    def close(self) -> None:
        self.driver.close()
        self.database.close()

    def round(self) -> float:
        """Claim what is due in this second, settle it, and let a second pass; the seconds that the
        claim took.
        """
        started = time.perf_counter()
        _, claims = claim_due(
            self.store, "host:1:a", BATCH, lease=LEASE, names=["feed"]
        )
        took = time.perf_counter() - started
        assert len(claims) == BATCH
        assert all(
            settled.transition
            for settled in self.store.settlements.settle(
                [(claim, Succeeded()) for claim in claims]
            )
        )
        self.clock.tick(SECOND)
        return took


a_job_of_instances = a_job("feed", Disabled())


@pytest.fixture
def clusters(databases: Databases) -> Iterator[tuple[Cluster, Cluster]]:
    """The same work, from few and from many instances."""
    with ExitStack() as stack:
        made = [
            Cluster(stack.enter_context(databases.provisioned()), count)
            for count in (FEW, MANY)
        ]
        for cluster in made:
            stack.callback(cluster.close)
        yield made[0], made[1]


def test_a_claim_reads_what_is_due(clusters: tuple[Cluster, Cluster]) -> None:
    """Of 100,000 waiting instances, the hundred that are due: by the index of due rows, never from
    end to end.
    """
    _, many = clusters
    many.round()
    statement = (
        "SELECT ctid FROM scheduled_tasks AS c WHERE c.ctid = ANY (ARRAY("
        "SELECT d.ctid FROM scheduled_tasks AS d WHERE NOT d.picked AND d.state "
        "IS NULL AND d.execution_time <= %s"
        f" AND ({HAS_SLOT}) AND d.task_name = ANY (%s::text[]) ORDER BY "
        f"d.execution_time LIMIT {WINDOW}))"
        f" ORDER BY {RANK}, c.execution_time LIMIT 100 FOR UPDATE SKIP LOCKED"
    )
    found = many.driver.execute(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}",
        (many.clock.now(), ["feed"]),
    ).fetchone()
    assert found is not None
    plan = found[0][0]["Plan"]
    assert "scheduled_tasks_due" in str(plan)
    assert "Seq Scan" not in str(plan)
    assert plan["Actual Rows"] == 100
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 1000


@pytest.mark.slow
def test_many_cost_what_few_cost(
    clusters: tuple[Cluster, Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """A claim of a hundred among 100,000 takes at most 1.2 × what it takes among 100 (measured:
    see the docs).
    """
    few, many = clusters
    ratios = []
    for _ in range(5):
        for cluster in clusters:
            cluster.driver.execute("VACUUM scheduled_tasks, scheduled_slots")
        took = [(few.round(), many.round()) for _ in range(40)]
        costs = [median(round[number] for round in took) for number in (0, 1)]
        ratios.append(costs[1] / costs[0])
        with capsys.disabled():
            print(
                f"\na claim of {BATCH}: of {FEW} {costs[0] * 1000:.2f} ms, of "
                f"{MANY:,} {costs[1] * 1000:.2f} ms"
            )
    assert median(ratios) <= 1.2, ratios
