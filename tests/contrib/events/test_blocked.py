"""What holds up one key, or fills one look, holds up no other key: PostgreSQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from tests.contrib.events.shop import Shop

from slotwise import TaskContext
from slotwise.contrib.events import fan_out

BIG = 1_000_000
NEW_KEY = sa.text(
    "INSERT INTO scheduled_keys (task_name, kind, {key}) VALUES ('', 'order', 'new1')"
)


@pytest.fixture(params=["pg_url", "mysql_url"])
def any_url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def shop(any_url: str) -> Iterator[Shop]:
    with Shop(any_url, "mail") as shop:
        yield shop


def test_a_publisher_that_stays_open_holds_up_no_other_key(shop: Shop) -> None:
    with shop.database.transaction() as slow:
        shop.put(slow, "slow", 1)
        shop.publish("fast", 1)
        shop.publish(None, 2)
        assert shop.fan_out().events == 2
        shop.worker.run_due()
        assert shop.seen("mail", "fast") == [1]
    shop.run()
    assert shop.seen("mail", "slow") == [1]


def test_a_publisher_that_stays_open_holds_up_no_retention(shop: Shop) -> None:
    for step in range(30):
        shop.publish(f"k{step}", step)
    shop.run()
    shop.worker.tick("8d")
    with shop.database.transaction() as slow:
        shop.put(slow, "slow", 1)
        assert shop.events.prune().deleted == 30
        assert shop.events.forget_keys().deleted == 30


def test_an_event_that_is_locked_holds_up_its_own_key_only(shop: Shop) -> None:
    first = shop.publish("a", 1)
    shop.publish("a", 2)
    shop.publish("b", 1)
    with shop.database.transaction() as other:
        locked = "SELECT * FROM scheduled_events WHERE id = :id FOR UPDATE"
        other.execute(sa.text(locked), {"id": first})
        found = shop.fan_out()
        assert (found.events, found.left, found.left_keys) == (1, 2, ["a"])
    shop.run()
    assert shop.seen("mail", "a") == [1, 2]


def test_a_key_whose_row_is_not_committed_holds_up_no_other(shop: Shop) -> None:
    with shop.database.transaction() as frozen:
        quote = frozen.dialect.identifier_preparer.quote
        frozen.execute(sa.text(str(NEW_KEY).format(key=quote("key"))))
        shop.publish("new1", 1)
        shop.publish("other", 1)
        found = shop.fan_out(needs_turn=False)
        assert (found.events, found.left_keys) == (1, ["new1"])
    shop.run()
    assert shop.seen("mail", "new1") == [1]


def test_many_big_events_for_many_handlers_are_given_out(any_url: str) -> None:
    """An insert of all of them would be larger than what a server accepts at once."""
    names = [f"h{number:02}" for number in range(16)]
    with OfText(any_url, *names) as shop:
        with shop.database.transaction() as connection:
            shop.events.publish(connection, "x", "z" * BIG, key=1)
            shop.events.publish(connection, "x", "small", key=1)
        given = [shop.fan_out() for _ in range(2)]
        assert sum(one.events for one in given) == 2
        assert sum(one.rows for one in given) == 32


class OfText(Shop):
    """A shop whose handlers take any text."""

    def handle(self, name: str, *events: str, **policies: object) -> None:
        def handle(ctx: TaskContext[str]) -> None:
            """Never run here."""

        self.events.on("x", name=name)(handle)


def test_a_look_takes_some_of_many_bytes_and_the_next_one_goes_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fan_out, "MOST_BYTES", 100)
    for step in range(6):
        shop.publish("a", step)
    first = shop.fan_out()
    assert 0 < first.events < 6
    assert first.is_full
    shop.run()
    assert shop.seen("mail", "a") == list(range(6))


def test_a_new_handler_gets_what_is_committed_after_its_registration(
    shop: Shop,
) -> None:
    """Also an event with a lower number than one that was committed before."""
    with shop.database.transaction() as first:
        a = shop.put(first, "k", 1)
        shop.publish("other", 2)
        shop.run()
        shop.events._registry = None
        shop.handle("second")
        shop.events.register()
    shop.publish("k", 3)
    found = shop.fan_out()
    assert found.events == 2
    assert next(id for id, _ in shop.rows("second")) == f"event-{a}"
