"""An instance that is being made while an operation to its whole job comes: neither misses the
other. On PostgreSQL.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.store.bench import Bench
from tests.store.waiting import wait_until_blocked

from slotwise import Every


@pytest.mark.parametrize("operation", ["pause", "delete"])
def test_an_operation_waits_for_an_instance_that_is_being_made(
    pg_bench: Bench, operation: str
) -> None:
    """It is committed first, and the operation is for it, too: the new row sleeps, or goes."""
    operations = pg_bench.client.operations.by("ada")
    with ThreadPoolExecutor(1) as pool:
        with pg_bench.store.transaction() as connection:
            pg_bench.client.schedule_recurring(
                "plain", "late", Every("1m"), connection=connection
            )
            requested = pool.submit(getattr(operations, operation), "plain")
            wait_until_blocked(pg_bench)
            pg_bench.client.schedule_recurring(
                "plain", "later", Every("1m"), connection=connection
            )
        assert requested.result(30)
    states = [
        getattr(pg_bench.find("plain", instance), "state", "gone")
        for instance in ("late", "later")
    ]
    assert states == ["paused" if operation == "pause" else "gone"] * 2


def test_an_instance_waits_for_the_pause_that_is_being_ordered(
    pg_bench: Bench,
) -> None:
    """And sleeps from the beginning."""
    tasks, dialect = pg_bench.tables.tasks, pg_bench.store.dialect
    with ThreadPoolExecutor(1) as pool:
        with pg_bench.store.transaction() as connection:
            dialect.latch(connection, "plain", shared=False)
            connection.execute(
                tasks.update()
                .where(tasks.c.task_name == "plain")
                .values(state="paused")
            )
            made = pool.submit(
                pg_bench.client.schedule_recurring, "plain", "late", Every("1m")
            )
            wait_until_blocked(pg_bench)
        made.result(30)
    assert pg_bench.row("plain", "late").state == "paused"
