"""A claim of tasks says whether slots are due as well: while it says no, nobody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.store.bench import LEASE, Bench

from slotwise import Settings
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


WORLDS: dict[str, tuple[Callable[[Bench], object], bool]] = {
    "no slot is due": (lambda bench: None, False),
    "a slot is due": (lambda bench: bench.tick(), True),
    "a lost task is due": (lose, True),
    "a slot that is due is held": (lambda bench: (bench.tick(), bench.claim()), False),
}


@pytest.mark.parametrize(("bring", "are_due"), WORLDS.values(), ids=list(WORLDS))
def test_what_a_claim_has_seen(
    bench: Bench, bring: Callable[[Bench], object], are_due: bool
) -> None:
    """Slots, and tasks that were lost before, by whomever they are to be run."""
    bring(bench)
    bench.client.schedule("mail", id="1")
    assert (
        len(
            bench.store.claims.claim_tasks("host:1:a", 10, lease=LEASE, names=["mail"])
        )
        == 1
    )
    assert bench.store.claims.slots_may_be_due is are_due


def test_a_claim_that_finds_nothing_has_seen_nothing(bench: Bench) -> None:
    """Then slots are asked for."""
    bench.client.schedule("mail", id="1")
    for may_be in (False, True):
        bench.store.claims.claim_tasks("host:1:a", 10, lease=LEASE, names=["mail"])
        assert bench.store.claims.slots_may_be_due is may_be
