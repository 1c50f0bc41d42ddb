"""Pauses and rate limits of a handler: as of any task, and other handlers do not notice."""

from __future__ import annotations

import pytest
from tests.contrib.events.shop import NOON, Shop

from slotwise.testing import ManualClock


def test_a_paused_handler_keeps_its_events_in_order(url: str) -> None:
    with Shop(url, "mail", "index") as shop:
        operations = shop.worker.client.operations
        operations.pause("mail")
        for step in range(3):
            shop.publish("a", step)
        shop.run()
        assert shop.seen("mail", "a") == []
        assert shop.seen("index", "a") == [0, 1, 2]
        operations.resume("mail")
        shop.worker.tick("1s")
        shop.run()
        assert shop.seen("mail", "a") == [0, 1, 2]


class Limited(Shop):
    def handle(self, name: str, *events: str, **policies: object) -> None:
        limit = {"rate_limit": "2/m"} if name == "mail" else {}
        super().handle(name, *events, **policies, **limit)


@pytest.mark.parametrize("key", ["a", None])
def test_a_rate_limit_delays_and_keeps_the_order(url: str, key: str | None) -> None:
    with Limited(url, "mail", "index", clock=ManualClock(NOON)) as shop:
        for step in range(5):
            shop.publish(key, step)
        shop.run()
        assert len(shop.seen("mail", key or "")) == 2
        assert len(shop.seen("index", key or "")) == 5
        for _ in range(4):
            shop.worker.tick("61s")
            shop.run()
        assert sorted(shop.seen("mail", key or "")) == [0, 1, 2, 3, 4]
        assert key is None or shop.seen("mail", key) == [0, 1, 2, 3, 4]
