"""Publish, retention and fan-out at the sizes of real tables: in the full form only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from statistics import median

import pytest
from tests.contrib.events.shop import Shop
from tests.contrib.events.test_plans import assert_by_index, plans_of
from tests.databases import Databases

from slotwise.contrib.events.retention import prune

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
KEPT = """
    INSERT INTO scheduled_events (name, key, data, published, fanned_out, handlers)
    SELECT 'order.paid', (n % 1000)::text, '{}', now() - interval '1 day', now(), 1
    FROM generate_series(1, 1000000) AS n;
    ANALYZE;
"""
KEYS = """
    INSERT INTO scheduled_keys (task_name, kind, key)
    SELECT '', 'order', 'k' || n FROM generate_series(1, 100000) AS n;
    INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, slot, picked,
        version, created_version, state, order_key)
    SELECT 'mail', 'old-' || n, 'task', '9000-01-01Z', now(), false, n, n,
        CASE n WHEN 1 THEN 'dead' ELSE 'blocked' END, 'blocked'
    FROM generate_series(1, 10000) AS n;
    ANALYZE;
"""


@pytest.fixture
def shops(databases: Databases) -> Iterator[tuple[Shop, Shop]]:
    with (
        databases.provisioned() as empty,
        databases.provisioned() as full,
        Shop(empty, "mail") as one,
        Shop(full, "mail") as other,
    ):
        yield one, other


def seconds(shop: Shop, start: int, *, keys: int) -> float:
    """Publish 200 events in one transaction; return how long that took."""
    began = time.perf_counter()
    with shop.database.transaction() as connection:
        for step in range(200):
            shop.put(connection, f"k{(start + step) % keys + 1}", step)
    return time.perf_counter() - began


def test_events_in_retention_do_not_slow_publish(shops: tuple[Shop, Shop]) -> None:
    empty, full = shops
    full.execute(KEPT)
    took: dict[Shop, list[float]] = {empty: [], full: []}
    for number in range(42):
        for shop in shops if number % 2 else reversed(shops):
            took[shop].append(seconds(shop, number, keys=1000))
    ratio = median(took[full][2:]) / median(took[empty][2:])
    print(f"publish with 1,000,000 events in retention: {ratio:.3f} x")
    assert ratio <= 1.1
    plans = plans_of(full, lambda: full.publish("a"))
    assert_by_index(plans)
    dialect = full.worker.store.dialect
    old = partial(prune, dialect=dialect, kept=timedelta(0), after=500_000)
    assert_by_index(plans_of(full, partial(full.worker.client.within, old)))


def test_a_blocked_key_slows_no_other_of_a_hundred_thousand(
    shops: tuple[Shop, Shop],
) -> None:
    empty, blocked = shops
    for shop in shops:
        shop.execute(KEYS)
    empty.execute("DELETE FROM scheduled_tasks")
    took: dict[Shop, list[float]] = {empty: [], blocked: []}
    for number in range(22):
        for shop in shops if number % 2 else reversed(shops):
            seconds(shop, 200 * number, keys=100_000)
            began = time.perf_counter()
            assert shop.fan_out().rows == 200
            shop.worker.run_due()
            took[shop].append(time.perf_counter() - began)
    ratio = median(took[blocked][2:]) / median(took[empty][2:])
    print(f"with one key blocked by 10,000 rows: {ratio:.3f} x")
    assert ratio <= 1.3
