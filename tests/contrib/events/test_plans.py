"""What PostgreSQL does for publish, fan-out, promotion and retention, with many events and keys."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
import sqlalchemy as sa
from tests.contrib.events.shop import Shop

from slotwise.contrib.events.repair import BEGIN, repair
from slotwise.contrib.events.retention import forget_keys, prune

FILL = """
    INSERT INTO scheduled_events (name, key, data, published, fanned_out, handlers)
    SELECT 'order.paid', (n % 1000)::text, '{}', now() - interval '1 day', now(), 1
    FROM generate_series(1, 30000) AS n;
    INSERT INTO scheduled_keys (task_name, kind, key)
    SELECT '', 'order', n::text FROM generate_series(0, 20000) AS n;
    INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, slot, picked,
        version, created_version, state, order_key)
    SELECT 'mail', n::text, 'task', '9000-01-01Z', now(), false, n, n, 'blocked', (n % 20000)::text
    FROM generate_series(1, 30000) AS n;
    ANALYZE;
"""


@pytest.fixture
def shop(pg_url: str) -> Iterator[Shop]:
    with Shop(pg_url, "mail") as shop:
        shop.execute(FILL)
        yield shop


def plans_of(shop: Shop, work: object) -> list[str]:
    """Explain each statement that reads or changes rows while ``work`` runs."""
    engine = shop.database.main
    sent: list[tuple[str, object]] = []

    def heard(
        connection: sa.Connection,
        cursor: object,
        statement: str,
        parameters: object,
        *_: object,
    ) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE", "INSERT")):
            sent.append((statement, parameters))

    sa.event.listen(engine, "before_cursor_execute", heard)
    try:
        assert callable(work)
        work()
    finally:
        sa.event.remove(engine, "before_cursor_execute", heard)
    found = []
    with engine.connect() as connection:
        for statement, parameters in sent:
            if isinstance(parameters, list):
                continue
            rows = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)  # type: ignore[arg-type]
            found.append("\n".join(row[0] for row in rows))
        connection.rollback()
    return found


BIG = ("scheduled_events", "scheduled_tasks", "scheduled_keys")


def assert_by_index(plans: list[str]) -> None:
    assert plans
    for plan in plans:
        for table in BIG:
            assert f"Seq Scan on {table}" not in plan, plan


def test_publish_reads_nothing(shop: Shop) -> None:
    plans = plans_of(shop, lambda: shop.publish("a"))
    assert [plan for plan in plans if "scheduled_events" in plan] == [
        plan for plan in plans if plan.startswith("Insert on scheduled_events")
    ]
    assert_by_index(plans)


def test_the_fan_out_reads_by_indexes(shop: Shop) -> None:
    for step in range(3):
        shop.publish("17", step)
    plans = plans_of(shop, shop.fan_out)
    assert any("scheduled_events_waiting" in plan for plan in plans)
    assert any("scheduled_tasks_ordered" in plan for plan in plans)
    assert_by_index(plans)


def test_a_promotion_and_the_repair_read_by_indexes(shop: Shop) -> None:
    dialect = shop.worker.store.dialect
    within = shop.worker.client.within
    page = partial(repair, dialect=dialect, place=BEGIN, page=20)
    plans = plans_of(shop, lambda: within(page))
    assert any("scheduled_tasks_ordered" in plan for plan in plans)
    assert_by_index(plans)


def test_the_retention_reads_by_the_key(shop: Shop) -> None:
    dialect = shop.worker.store.dialect
    within = shop.worker.client.within
    kept = timedelta(0)
    for work in (
        partial(prune, dialect=dialect, kept=kept, batch=20),
        partial(forget_keys, dialect=dialect, batch=20),
    ):
        assert_by_index(plans_of(shop, partial(within, work)))
