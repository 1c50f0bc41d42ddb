"""Two connections held at each step: publishers, fan-outs, ends and operators, on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.contrib.events.shop import NOON, Shop

from slotwise.contrib.events import events as module
from slotwise.contrib.events import fan_out as fanning
from slotwise.contrib.events import lanes, subscriptions
from slotwise.contrib.events import loop as looping
from slotwise.contrib.events.loop import SKIPS, EventLoop
from slotwise.contrib.events.retention import TURN, Forgotten, Pruned, forget_keys
from slotwise.spi import BatchSettled, Outcome, Settled, elapsed
from slotwise.testing import ManualClock

LOCK_A = sa.text("SELECT * FROM scheduled_keys WHERE key = 'a' FOR UPDATE")


@pytest.fixture
def shop(pg_url: str) -> Iterator[Shop]:
    with Shop(pg_url, "mail") as shop:
        yield shop


class Stopped:
    """A call in a thread, which stops at a named point until ``go``."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: Any,
        point: str,
        call: Callable[[], object],
        *,
        before: bool,
    ) -> None:
        self.is_there = threading.Event()
        self._may_go = threading.Event()
        self.result: object = None
        self.error: BaseException | None = None
        original = getattr(owner, point)

        def stopped(*given: Any, **named: Any) -> object:
            if threading.current_thread() is not self._thread:
                return original(*given, **named)
            if not before:
                found: object = original(*given, **named)
            self.is_there.set()
            assert self._may_go.wait(30)
            return original(*given, **named) if before else found

        monkeypatch.setattr(owner, point, stopped)
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.is_there.wait(30), self.error

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
            self.is_there.set()

    def go(self) -> None:
        self._may_go.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def aside(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def waits_for_a_lock(shop: Shop) -> bool:
    found = shop.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND datname = current_database()"
    )
    return bool(found[0][0])


# -- publishers ----------------------------------------------------------------------------------


def test_the_first_transaction_is_open_while_the_second_is_given_out(
    shop: Shop,
) -> None:
    """Both were open at once, so the order is that of the looks; nothing is lost."""
    with shop.database.main.connect() as first:
        shop.put(first, "a", 1)
        shop.publish("a", 2)
        assert shop.fan_out().events == 1
        shop.publish("a", 3)
        assert shop.fan_out().events == 1
        first.commit()
    assert shop.fan_out().events == 1
    shop.run()
    assert shop.seen("mail", "a") == [2, 3, 1]


def test_the_second_transaction_is_open_while_the_first_is_given_out(
    shop: Shop,
) -> None:
    shop.publish("a", 1)
    with shop.database.main.connect() as second:
        shop.put(second, "a", 2)
        assert shop.fan_out().events == 1
        second.commit()
    shop.run()
    assert shop.seen("mail", "a") == [1, 2]


def test_both_are_open_and_the_one_with_the_lower_number_is_committed_last(
    shop: Shop,
) -> None:
    with shop.database.main.connect() as first, shop.database.main.connect() as second:
        shop.put(first, "a", 1)
        shop.put(second, "a", 2)
        assert shop.fan_out().events == 0
        second.commit()
        first.commit()
    assert shop.fan_out().events == 2  # in one look: by number
    shop.run()
    assert shop.seen("mail", "a") == [1, 2]


@pytest.mark.parametrize("seen_first", [True, False])
def test_what_was_published_after_a_commit_comes_after_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, seen_first: bool
) -> None:
    """A number below those of the look is committed late, and B is published after that commit.
    The fan-out has looked before, and reads again after.
    """
    with shop.database.main.connect() as late:
        shop.put(late, "a", 1)  # the lower number
        if seen_first:
            shop.publish("a", 0)
        shop.publish("b", 5)
        stopped = Stopped(monkeypatch, fanning, "look", shop.fan_out, before=False)
        late.commit()
    shop.publish("a", 2)
    shop.publish("b", 6)
    stopped.go()
    shop.run()
    seen = shop.seen("mail", "a")
    assert seen.index(1) < seen.index(2)
    assert shop.seen("mail", "b") == [5, 6]


# -- fan-outs ------------------------------------------------------------------------------------


def test_two_fan_outs_give_each_event_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(3):
        shop.publish("a", step)
        shop.publish(None, step)
    stopped = Stopped(
        monkeypatch,
        fanning,
        "look",
        lambda: shop.fan_out(needs_turn=False),
        before=False,
    )
    assert shop.fan_out(needs_turn=False).events == 6
    stopped.go()
    assert stopped.result.events == 0  # type: ignore[attr-defined]
    shop.run()
    assert shop.seen("mail", "a") == [0, 1, 2]
    assert len(shop.log) == 6


def test_a_fan_out_that_has_its_locks_is_not_overtaken(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.publish("a", 0)
    shop.publish("b", 0)
    stopped = Stopped(
        monkeypatch,
        fanning,
        "_append",
        lambda: shop.fan_out(needs_turn=False),
        before=True,
    )
    shop.publish("a", 1)
    shop.publish("c", 1)
    # the keys a and b are locked: their events are left, and c goes on
    other = shop.fan_out(needs_turn=False)
    assert (other.events, other.left) == (1, 3)
    stopped.go()
    shop.run()
    assert shop.seen("mail", "a") == [0, 1]
    assert shop.seen("mail", "c") == [1]


def test_a_fan_out_without_its_turn_does_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.publish("a", 0)
    stopped = Stopped(monkeypatch, fanning, "_append", shop.fan_out, before=True)
    assert shop.fan_out().is_busy
    stopped.go()


def test_a_fan_out_that_is_killed_leaves_all_or_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.publish("a", 0)
    stopped = Stopped(monkeypatch, fanning, "_mark", shop.fan_out, before=True)
    shop.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE state = 'idle in transaction' AND datname = current_database() "
        "AND pid <> pg_backend_pid()"
    )
    with pytest.raises(Exception, match=r"connection|server"):
        stopped.go()
    assert shop.rows("mail") == []
    shop.run()
    assert shop.seen("mail", "a") == [0]


def test_a_handler_is_registered_between_the_looks(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets what had no handler and what comes later, in order, and nothing twice."""
    clock = ManualClock(NOON)
    with Shop(pg_url, "mail", clock=clock) as shop:
        shop.publish("a", 1, "order.sent")
        shop.fan_out()  # without a handler
        shop.publish("a", 2, "order.sent")
        stopped = Stopped(monkeypatch, fanning, "look", shop.fan_out, before=False)
        with Shop.sent(pg_url, clock) as later:
            later.publish("a", 3, "order.sent")
            stopped.go()
            later.run()
            assert later.seen("track", "a") == [1, 2, 3]


def test_an_event_is_published_after_a_registration_that_the_look_has_not_seen(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fan-out has read who there is, and looks for events only then."""
    clock = ManualClock(NOON)
    with Shop(pg_url, "mail", clock=clock) as shop:
        stopped = Stopped(monkeypatch, fanning, "look", shop.fan_out, before=True)
        with Shop(pg_url, "index", clock=clock) as later:
            later.publish("a", 1)
            stopped.go()
            later.run()
            assert later.seen("index", "a") == [1]


def test_two_releases_register_at_once(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that has renamed the handler waits, and finds the row of the former name."""
    clock = ManualClock(NOON)
    old = Shop(pg_url, "mail", clock=clock)
    new = Renamed(pg_url, "post", clock=clock)
    with old.worker, new.worker:
        register = old.events.register
        stopped = Stopped(monkeypatch, subscriptions, "_put", register, before=False)
        other = aside(new.events.register)
        while not waits_for_a_lock(old):
            assert other.is_alive()
        stopped.go()
        other.join(30)
        found = old.execute("SELECT handler, event FROM scheduled_event_handlers")
        assert [tuple(row) for row in found] == [("post", "order.paid")]
        new.registry.database.close()
        old.registry.database.close()


class Renamed(Shop):
    def handle(self, name: str, *events: str, **policies: Any) -> None:
        super().handle(name, *events, aliases=["mail"], **policies)


# -- ends and fan-outs ---------------------------------------------------------------------------


def test_an_end_is_stopped_between_its_lock_and_its_write(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fan-out leaves the key, and finds the lane empty later."""
    shop.publish("a", 0)
    shop.fan_out()
    (claim,) = shop.worker.poll()
    shop.worker.run(claim)
    stopped = Stopped(monkeypatch, module, "promote", shop.worker.settle, before=True)
    shop.publish("a", 1)
    found = shop.fan_out()
    assert (found.events, found.left) == (0, 1)
    stopped.go()
    assert shop.fan_out().events == 1
    assert [state for _, state in shop.rows("mail")] == [None]
    shop.run()
    assert shop.seen("mail", "a") == [0, 1]


def test_an_end_is_stopped_before_its_lock(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fan-out appends behind a row that is being deleted; the end then finds the new row."""
    shop.publish("a", 0)
    shop.fan_out()
    (claim,) = shop.worker.poll()
    shop.worker.run(claim)
    stopped = Stopped(
        monkeypatch, module, "lock_soon", shop.worker.settle, before=True
    )
    shop.publish("a", 1)
    assert shop.fan_out().events == 1
    assert [state for _, state in shop.rows("mail")] == [None, "blocked"]
    stopped.go()
    assert [state for _, state in shop.rows("mail")] == [None]
    shop.run()
    assert shop.seen("mail", "a") == [0, 1]


@pytest.mark.parametrize("point", ["_append", "_mark"])
def test_a_fan_out_is_stopped_between_its_lock_and_its_write(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The end looks for the lock of the key again, and promotes what was appended."""
    shop.publish("a", 0)
    shop.fan_out()
    (claim,) = shop.worker.poll()
    shop.worker.run(claim)
    shop.publish("a", 1)
    stopped = Stopped(monkeypatch, fanning, point, shop.fan_out, before=True)
    monkeypatch.setattr(lanes, "sleep", lambda _: stopped.go())
    shop.worker.settle()
    assert [state for _, state in shop.rows("mail")] == [None]
    shop.run()
    assert shop.seen("mail", "a") == [0, 1]


def test_a_promotion_that_cannot_lock_its_key_is_made_up_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook's error costs its own writes, and the loop promotes after the settlement."""
    for step in range(2):
        shop.publish("a", step)
    shop.fan_out()
    (claim,) = shop.worker.poll()
    shop.worker.run(claim)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no lock")

    with monkeypatch.context() as patch:
        patch.setattr(module, "lock_soon", fails)
        shop.worker.settle()
    assert [state for _, state in shop.rows("mail")] == ["blocked"]
    assert shop.events.repair_owed() == ["mail"]
    shop.run()
    assert shop.seen("mail", "a") == [0, 1]


def test_a_settlement_leaves_a_key_that_stays_locked(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for long, as other rows are settled with it; the loop promotes later."""
    for step in range(2):
        shop.publish("a", step)
    shop.fan_out()
    (claim,) = shop.worker.poll()
    shop.worker.run(claim)
    pauses: list[float] = []
    monkeypatch.setattr(lanes, "sleep", pauses.append)
    with shop.database.main.connect() as other:
        other.execute(LOCK_A)
        shop.worker.settle()
        assert sum(pauses) == pytest.approx(0.25)
        assert [state for _, state in shop.rows("mail")] == ["blocked"]
        assert shop.events.repair_owed() == []
        other.rollback()
    assert shop.events.repair_owed() == ["mail"]
    shop.run()
    assert shop.seen("mail", "a") == [0, 1]


def test_a_debt_outlives_a_look_before_its_settlement_is_committed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(2):
        shop.publish("a", step)
    shop.fan_out()
    (claim,) = shop.worker.poll()
    shop.worker.run(claim)
    hook = shop.events.after_settle
    took = timedelta(0)
    another = BatchSettled(worker="w", count=1, took=took, succeeded=(), others=())
    monkeypatch.setattr(lanes, "sleep", lambda _: None)
    with shop.database.main.connect() as other, shop.database.main.connect() as tx:
        other.execute(LOCK_A)
        tx.execute(sa.text("DELETE FROM scheduled_tasks WHERE state IS NULL"))
        hook([settled_by(claim)], tx)
        other.rollback()
        shop.events(another)
        assert shop.events.repair_owed() == []
        tx.commit()
    assert shop.events.repair_owed() == ["mail"]


def settled_by(claim: Any) -> Settled:
    return Settled(
        worker="w",
        job=claim.key.task_name,
        id=claim.key.task_instance,
        slot=NOON,
        attempt=1,
        token=claim.token,
        outcome=Outcome.SUCCEEDED,
    )


def test_two_settlements_of_many_keys_lock_them_in_one_order(pg_url: str) -> None:
    """Each settles both keys, of another handler; without an order they would deadlock."""
    with Shop(pg_url) as shop:
        for step in range(20):
            for key in ("a", "b", "c"):
                shop.publish(key, step)
        shop.fan_out()
        while shop.worker.poll():
            claims = shop.worker.waiting
            for claim in claims:
                shop.worker.run(claim)
            shop.worker.settle()
        assert shop.seen("mail", "a") == list(range(20))
        assert shop.seen("index", "c") == list(range(20))


def test_a_key_that_is_forgotten_meanwhile_is_made_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.publish("a", 0)
    shop.run()
    shop.publish("a", 1)
    stopped = Stopped(monkeypatch, fanning, "look", shop.fan_out, before=False)
    assert shop.events.forget_keys().deleted == 1
    stopped.go()
    shop.publish("a", 2)
    shop.run()
    assert shop.seen("mail", "a") == [0, 1, 2]


def test_a_locked_key_starves_no_other_though_it_fills_the_look(shop: Shop) -> None:
    for step in range(4):
        shop.publish("a", step)
    shop.fan_out()
    shop.run()
    for step in range(4, 8):
        shop.publish("a", step)
    shop.publish("b", 0)
    with shop.database.main.connect() as other:
        other.execute(
            sa.text("SELECT * FROM scheduled_keys WHERE key = 'a' FOR UPDATE")
        )
        assert shop.fan_out(limit=4).events == 0
        assert shop.fan_out(limit=8).events == 1
        other.rollback()
    shop.run()
    assert shop.seen("mail", "a") == list(range(8))


@pytest.fixture
def loop(shop: Shop) -> Iterator[EventLoop]:
    """A loop whose rounds the test runs."""
    loop = EventLoop(shop.events, shop.registry, lambda *_: None)
    yield loop
    loop.stop()
    loop.start().join(30)  # it ends at once, and closes what it has opened


def test_a_key_that_stays_locked_holds_up_no_other(
    shop: Shop, loop: EventLoop
) -> None:
    """A worker that is frozen in a settlement keeps it for long; each look gives out the rest."""
    shop.publish("a", 0)
    shop.run()
    shop.publish("a", 1)
    with shop.database.main.connect() as other:
        other.execute(LOCK_A)
        for step in range(SKIPS + 3):
            shop.publish("b", step)
            loop.run_once()
            assert len(shop.rows("mail")) == step + 1
        other.rollback()
    shop.run()
    assert shop.seen("mail", "a") == [0, 1]


def test_an_event_without_a_key_that_is_locked_holds_up_no_other(shop: Shop) -> None:
    id = shop.publish(None, 0)
    shop.publish(None, 1)
    with shop.database.main.connect() as other:
        locked = "SELECT * FROM scheduled_events WHERE id = :id FOR UPDATE"
        other.execute(sa.text(locked), {"id": id})
        found = shop.fan_out()
        assert (found.events, found.left) == (1, 1)
        other.rollback()
    assert shop.fan_out().events == 1


def test_a_look_that_is_too_big_becomes_smaller(
    shop: Shop, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(20):
        shop.publish("a", step)
    append = fanning._append

    def refuse(own: Any, dialect: Any, events: Any, known: Any) -> object:
        if len(events) > 4:
            raise MemoryError
        return append(own, dialect, events, known)

    monkeypatch.setattr(fanning, "_append", refuse)
    for _ in range(80):
        with suppress(MemoryError):
            loop.run_once()
    shop.run()
    assert shop.seen("mail", "a") == list(range(20))


def test_retention_holds_up_no_event(
    shop: Shop, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round looks at one batch, and the next round goes on there."""
    now = iter(range(1_000, 100_000, 2))
    monkeypatch.setattr(looping, "elapsed", lambda: float(next(now)) + elapsed())
    seen: list[int | str] = []

    def prune(after: int) -> Pruned:
        seen.append(after)
        return Pruned(0, after + 1 if after < 3 else None)

    def forget_keys(after: str) -> Forgotten:
        seen.append(after)
        return Forgotten(0, "a" if after == "" else None)

    monkeypatch.setattr(shop.events, "prune", prune)
    monkeypatch.setattr(shop.events, "forget_keys", forget_keys)
    for count in range(1, 7):
        loop.run_once()
        assert len(seen) == count
    assert seen == [0, 1, 2, 3, "", "a"]
    loop.run_once()
    assert len(seen) == 6


def test_one_worker_deletes_at_a_time(shop: Shop) -> None:
    shop.publish("a", 0)
    shop.run()
    shop.worker.tick("8d")
    dialect = shop.worker.store.dialect
    with shop.database.main.connect() as other:
        assert dialect.alone(other, TURN)
        other.commit()
        assert dialect.alone(other, TURN)
        assert shop.events.prune() == (0, 0)
        assert shop.events.forget_keys() == (0, "")
        other.rollback()
    assert shop.events.prune().deleted == 1
    assert shop.events.forget_keys().deleted == 1


def test_retention_locks_no_key_that_has_rows(shop: Shop) -> None:
    shop.publish("a", 0)
    shop.fan_out()
    with shop.database.main.connect() as one, shop.database.main.connect() as other:
        assert forget_keys(one, shop.worker.store.dialect).deleted == 0
        other.execute(sa.text(f"{LOCK_A} NOWAIT"))
        other.rollback()
        one.rollback()
