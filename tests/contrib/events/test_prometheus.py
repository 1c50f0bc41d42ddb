"""The figures of handlers for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from tests.contrib.events.shop import Shop

from slotwise.contrib.events.prometheus import EventsCollector


def test_the_lag_of_each_handler_and_its_oldest_blocked_key(url: str) -> None:
    with Shop(url, "mail", "index") as shop:
        registry = CollectorRegistry()
        registry.register(EventsCollector(shop.events))
        shop.fails = {("mail", 0)}
        for step in range(2):
            shop.publish("a", step)
        shop.run()
        shop.worker.tick("31s")
        shop.run()
        shop.publish("b", 5)
        shop.worker.tick("9s")

        def value(name: str, handler: str | None = None) -> float | None:
            labels = {} if handler is None else {"handler": handler}
            return registry.get_sample_value(f"slotwise_event{name}", labels)

        assert value("s_waiting") == 1
        assert value("s_waiting_seconds") == 9
        assert value("_handler_lag_seconds", "mail") == 40
        assert value("_handler_blocked_seconds", "mail") == 40
        assert value("_handler_open", "mail") == 2
        assert value("_handler_dead", "mail") == 1
        assert value("_handler_lag_seconds", "index") == 0
        assert value("_handler_blocked_seconds", "index") == 0
