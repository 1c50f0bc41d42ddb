"""A claim of tasks says whether slots are due as well: while it says no, nobody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.store.bench import LEASE, Bench

from slotwise import Every, Settings
from slotwise.spi import Database


@pytest.fixture
def bench(pg_url: str) -> Iterator[Bench]:
    database = Database(Settings(database_url=pg_url))
    database.verify()
    bench = Bench(database).planned()
    bench.claim()  # a fixed delay starts at once
    yield bench
    database.close()


def lose(bench: Bench) -> None:
    """A task whose holder has died: the claim of slots takes it."""
    bench.client.schedule("mail", id="lost")
    (claim,) = bench.store.claims.claim_tasks(
        "host:9:z", 1, lease=LEASE, names=["mail"]
    )
    bench.take_over(claim)
    bench.change("mail", "lost", execution_time=bench.clock.now())


def lose_and_pause(bench: Bench) -> None:
    """No claim takes it."""
    lose(bench)
    bench.client.operations.pause("mail")


WORLDS: dict[str, tuple[Callable[[Bench], object], bool]] = {
    "no slot is due": (lambda bench: None, False),
    "a slot is due": (lambda bench: bench.tick(), True),
    "a lost task is due": (lose, True),
    "a lost task of a paused name": (lose_and_pause, False),
    "a slot that is due is held": (lambda bench: (bench.tick(), bench.claim()), False),
}


@pytest.mark.parametrize(("bring", "are_due"), WORLDS.values(), ids=list(WORLDS))
def test_what_a_claim_has_seen(
    bench: Bench, bring: Callable[[Bench], object], are_due: bool
) -> None:
    """Slots, and tasks that were lost before, by whomever they are to be run."""
    bring(bench)
    bench.client.schedule("sms", id="1")
    claims = bench.store.claims
    found = claims.claim_tasks("host:1:a", 1, lease=LEASE, names=["sms"])
    assert len(found) == 1
    assert bench.store.claims.slots_may_be_due is are_due


def test_a_claim_that_finds_nothing_has_seen_nothing(bench: Bench) -> None:
    """Then slots are asked for."""
    bench.client.schedule("mail", id="1")
    for may_be in (False, True):
        bench.store.claims.claim_tasks("host:1:a", 10, lease=LEASE, names=["mail"])
        assert bench.store.claims.slots_may_be_due is may_be


def test_a_worker_without_jobs_looks_for_slots_a_tenth_of_the_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that takes long has read what waits of others. It is repeated by itself, and so finds
    an instance that was made meanwhile.
    """
    due = bench.store.due
    dialect = due.dialect
    look = dialect.next_due
    looks = []

    def slow(*given: Any, no_slots: bool, **named: Any) -> Any:
        looks.append(no_slots)
        bench.clock.tick(timedelta(milliseconds=0 if no_slots else 200))
        return look(*given, no_slots=no_slots, **named)

    monkeypatch.setattr(dialect, "next_due", slow)
    assert due.next_due(["mail"]) is None
    bench.client.schedule_recurring("mail", "c-1", Every("1h"))
    assert due.next_due(["mail"]) == timedelta(seconds=2)
    bench.clock.tick(timedelta(seconds=2))
    found = due.next_due(["mail"])
    assert found is not None
    assert timedelta(minutes=55) < found < timedelta(hours=1)
    assert looks == [False, True, False]
    due.next_due(["mail", "plain"])
    due.next_due(["mail", "plain"])
    assert looks[3:] == [False, False]
