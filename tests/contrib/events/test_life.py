"""The life of events, on each database: given out once, in order, kept and deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contrib.events.shop import NOON, Shop

from slotwise.testing import ManualClock


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    with Shop(url) as shop:
        yield shop


def test_each_handler_sees_each_event_once_in_the_order_of_its_key(shop: Shop) -> None:
    for step in range(5):
        for order in ("a", "b"):
            shop.publish(order, step)
    found = shop.fan_out()
    assert (found.events, found.rows, found.left) == (10, 20, 0)
    assert shop.fan_out().events == 0
    shop.run()
    for handler in ("mail", "index"):
        for order in ("a", "b"):
            assert shop.seen(handler, order) == [0, 1, 2, 3, 4]
    assert shop.rows("mail") == shop.rows("index") == []


def test_one_row_of_a_key_may_run_and_the_others_are_blocked(shop: Shop) -> None:
    for step in range(3):
        shop.publish("a", step)
    shop.publish(None, 9)
    shop.fan_out()
    assert [state for _, state in shop.rows("mail")].count(None) == 2
    assert [state for _, state in shop.rows("mail")].count("blocked") == 2
    assert len(shop.worker.poll()) == 4  # two handlers


def test_what_was_rolled_back_was_not_published(shop: Shop) -> None:
    with shop.database.main.connect() as connection:
        shop.put(connection, "a")
        connection.rollback()
    assert shop.run() == []


def test_a_failure_is_tried_again_and_holds_back_its_own_key_and_handler(
    shop: Shop,
) -> None:
    shop.fails = {("mail", 0)}
    for step in range(2):
        shop.publish("a", step)
        shop.publish("b", step + 10)
    shop.run()
    assert shop.seen("mail", "a") == [0]
    assert shop.seen("mail", "b") == [10, 11]
    assert shop.seen("index", "a") == [0, 1]
    shop.fails = set()
    shop.worker.tick("31s")
    shop.run()
    assert shop.seen("mail", "a") == [0, 0, 1]


def test_a_dead_event_blocks_its_key_until_it_is_retried(shop: Shop) -> None:
    shop.fails = {("mail", 0)}
    for step in range(3):
        shop.publish("a", step)
    shop.run()
    shop.worker.tick("31s")
    shop.run()
    assert [state for _, state in shop.rows("mail")] == ["dead", "blocked", "blocked"]
    shop.publish("a", 3)
    shop.run()
    assert shop.seen("mail", "a") == [0, 0]
    shop.fails = set()
    ((id, _), *_) = shop.rows("mail")
    shop.worker.client.retry("mail", id)
    assert next(state for _, state in shop.rows("mail")) == "blocked"
    assert shop.events.repair().names == ["mail"]
    shop.run()
    assert shop.seen("mail", "a") == [0, 0, 0, 1, 2, 3]


def test_a_dead_event_lets_the_others_continue_if_the_handler_says_so(
    url: str,
) -> None:
    with Shop(url, on_failure="continue") as shop:
        shop.fails = {("mail", 0)}
        for step in range(3):
            shop.publish("a", step)
        shop.run()
        shop.worker.tick("31s")
        shop.run()
        assert shop.seen("mail", "a") == [0, 0, 1, 2]
        shop.publish("a", 3)
        shop.fan_out()
        assert [state for _, state in shop.rows("mail")] == ["dead", None]
        shop.fails = set()
        # retried, it comes before what waits, and never beside what runs
        (claim, *_) = [
            one for one in shop.worker.poll() if one.key.task_name == "mail"
        ]
        ((id, _), _) = shop.rows("mail")
        shop.worker.client.retry("mail", id)
        shop.publish("a", 4)
        shop.fan_out()
        assert shop.events.repair().names == []
        states = [state for _, state in shop.rows("mail")]
        assert states == ["blocked", None, "blocked"]
        shop.worker.run(claim)
        shop.worker.settle()
        shop.run()
        assert shop.seen("mail", "a") == [0, 0, 1, 2, 3, 0, 4]


def test_an_operator_who_removes_the_first_row_lets_the_next_one_run(
    shop: Shop,
) -> None:
    for step in range(3):
        shop.publish("a", step)
    shop.fan_out()
    ((id, _), *_) = shop.rows("mail")
    shop.worker.client.cancel("mail", id)
    assert [state for _, state in shop.rows("mail")] == ["blocked", "blocked"]
    shop.events.repair()
    shop.run()
    assert shop.seen("mail", "a") == [1, 2]


def test_the_walk_of_the_repair_sees_each_lane(shop: Shop) -> None:
    for number in range(20):
        for step in range(3):
            shop.publish(f"key{number:02}", step)
    shop.fan_out()
    shop.execute("DELETE FROM scheduled_tasks WHERE state IS NULL")
    place = shop.events.repair().place
    for _ in range(5):
        place = shop.events.repair(place).place
    shop.run()
    for number in range(20):
        assert shop.seen("mail", f"key{number:02}") == [1, 2]


def test_a_new_handler_gets_what_is_given_out_after_its_registration(
    url: str,
) -> None:
    clock = ManualClock(NOON)
    with Shop(url, "mail", clock=clock) as shop:
        shop.publish("a", 0)
        shop.publish("a", 1, "order.sent")
        assert shop.fan_out().events == 2
        shop.publish(
            "a", 2
        )  # not given out before the second handler comes: it gets it
        old = shop
        with Shop(url, "late", clock=clock) as new:
            new.publish("a", 3)
            new.run()
            old.run()
            assert new.seen("late", "a") == [2, 3]
        assert old.seen("mail", "a") == [0, 2, 3]


def test_an_event_without_a_handler_is_kept_for_one_that_comes(url: str) -> None:
    clock = ManualClock(NOON)
    with Shop(url, "mail", clock=clock) as shop:
        shop.publish("a", 1, "order.sent")
        shop.publish("a", 2, "order.sent")
        assert shop.fan_out().rows == 0
        shop.publish("a", 3, "order.sent")
    with Shop.sent(url, clock) as later:
        later.run()
        assert later.seen("track", "a") == [1, 2, 3]


def test_a_renamed_handler_goes_on_where_it_was(url: str) -> None:
    clock = ManualClock(NOON)
    with Shop(url, "mail", clock=clock) as old:
        for step in range(2):
            old.publish("a", step)
        old.fan_out()
        (claim,) = old.worker.poll()
        with Renamed(url, "post", clock=clock) as new:
            new.publish("a", 2)
            old.fan_out()  # a worker of the release before
            new.publish("a", 3)
            new.fan_out()
            assert new.rows("post")[0][1] == "blocked"
            assert new.run() == []  # the first row still runs, under the former name
            old.worker.run(claim)
            old.worker.settle()
            new.events.repair()
            new.run()
            assert new.seen("post", "a") == [1, 2, 3]
            old.events.register()  # the release before starts once more
            new.publish("a", 4)
            assert new.fan_out().rows == 1


def test_a_renamed_handler_with_fewer_events_keeps_the_order_of_its_lanes(
    url: str,
) -> None:
    clock = ManualClock(NOON)
    with _Two(url, "mail", clock=clock) as old:
        old.publish("a", 0)
        old.publish("a", 1)
        old.fan_out()
        (claim,) = old.worker.poll()
        with Renamed(url, "post", clock=clock) as new:
            new.events.retire("post", "order.sent")
            new.events.register()
            new.publish("a", 2)
            new.fan_out()
            assert [state for _, state in new.rows("post")] == ["blocked"]
            old.worker.run(claim)
            old.worker.settle()
            assert [state for _, state in new.rows("mail")] == [None]
            new.run()
            assert new.seen("post", "a") == [1, 2]


def test_a_worker_of_the_release_before_takes_no_event_from_a_handler(
    url: str,
) -> None:
    clock = ManualClock(NOON)
    with _Two(url, "index", clock=clock) as new, Shop(url, "index", clock=clock):
        new.publish("a", 1, "order.sent")
        assert new.fan_out().rows == 1
        assert new.events.retire("index", "order.sent") == 1
        new.publish("a", 2, "order.sent")
        assert new.fan_out().rows == 0


class _Two(Shop):
    def handle(self, name: str, *events: str, **policies: object) -> None:
        super().handle(name, "order.paid", "order.sent", **policies)


class Renamed(Shop):
    def handle(self, name: str, *events: str, **policies: object) -> None:
        super().handle(name, *events, aliases=["mail"], **policies)


def test_retention_deletes_what_has_ended_and_keeps_what_has_not(shop: Shop) -> None:
    shop.fails = {("mail", 0)}
    for step in range(3):
        shop.publish("a", step)  # dead for mail, and those behind it blocked
        shop.publish("b", step + 10)
        shop.publish("c", step, "order.sent")  # never had a handler
    shop.run()
    shop.worker.tick("31s")
    shop.run()
    assert shop.events.prune().deleted == 0
    shop.worker.tick("8d")
    shop.publish("d", 20)
    assert shop.events.prune().deleted == 6
    left = [key for (key,) in shop.execute("SELECT key FROM scheduled_events")]
    assert sorted(left) == ["a", "a", "a", "d"]
    assert shop.events.forget_keys().deleted == 2
    shop.fails = set()
    shop.worker.client.retry("mail", shop.rows("mail")[0][0])
    shop.events.repair()
    shop.run()
    assert shop.seen("mail", "a") == [0, 0, 0, 1, 2]
    assert shop.seen("mail", "d") == [20]


def test_retention_walks_in_batches_past_what_stays(shop: Shop) -> None:
    for number in range(10):
        shop.publish("a" if number % 2 else "b", number)
    shop.fan_out()
    shop.execute("DELETE FROM scheduled_tasks WHERE order_key = 'b'")
    shop.worker.tick("8d")
    deleted = 0
    after: int | None = 0
    from slotwise.contrib.events.retention import prune

    dialect = shop.worker.store.dialect
    while after is not None:
        with shop.database.transaction() as connection:
            found = prune(connection, dialect, after=after, batch=3)
        deleted += found.deleted
        after = found.after
    assert deleted == 5
