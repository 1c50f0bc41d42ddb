"""How far tasks are claimed ahead of the threads, and when their claim waits for room for a whole
batch.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.kit.events import Claimed, PollBegan
from tests.kit.loops import AT_ONCE
from tests.unit.engine.conftest import Bench, MakeBench
from tests.unit.engine.parts import Gate, a_claim

from slotwise import Every, TaskContext, job, task
from slotwise.engine.loops.tuning import FILLING, MOST_AHEAD, RATE_WINDOW
from slotwise.spi import OnLost
from slotwise.store.slots.tuning import BATCH


@pytest.fixture
def crowded(make_bench: MakeBench) -> Bench:
    """A worker whose handlers end fast, with room for a few more tasks and not for a batch; no
    slots are due.
    """
    bench = make_bench(task(name="mail")(lambda ctx: None), threads=10)
    held = [
        a_claim("mail", instance=str(number), schedule=None)
        for number in range(MOST_AHEAD - 100)
    ]
    bench.worker.active_claims.add(held, bench.clock.elapsed())
    _end_fast(bench)
    bench.worker.store.claims.slots_may_be_due = False
    return bench


def _end_fast(bench: Bench) -> None:
    """As many attempts have ended in the last two windows as make it claim as far ahead as it ever
    does.
    """
    for _ in range(2):
        bench.clock.tick(timedelta(seconds=RATE_WINDOW))
        bench.worker.active_claims.removed += 100_000
        bench.room_for_tasks()


def test_it_waits_for_room_for_a_batch(crowded: Bench) -> None:
    """Nothing is asked of the database, for a moment; with the room there, or with the time up, it
    goes on.
    """
    poller, active_claims = crowded.worker.poller, crowded.worker.active_claims
    assert poller.run_once() == FILLING
    assert crowded.said(PollBegan) == []
    crowded.registry.client.schedule("mail")
    active_claims.remove([holding.claim for holding in list(active_claims)[:BATCH]])
    assert poller.run_once() == AT_ONCE
    assert len(crowded.said(PollBegan)) == 1


def test_it_waits_no_longer_than_they_are_fast(crowded: Bench) -> None:
    """Handlers that were quick may have become slow; meanwhile slots may have come due."""
    poller = crowded.worker.poller
    assert poller.run_once() == FILLING
    crowded.clock.tick(timedelta(seconds=RATE_WINDOW))
    poller.run_once()
    assert len(crowded.said(PollBegan)) == 1


def test_slots_wait_for_no_batch(crowded: Bench) -> None:
    """Where the last claim has seen that some are due, they are claimed at once."""
    crowded.worker.store.claims.slots_may_be_due = True
    crowded.worker.poller.run_once()
    assert len(crowded.said(PollBegan)) == 1


@pytest.mark.parametrize("on_lost", ["rerun", "give_up"])
def test_tasks_are_claimed_ahead(
    make_bench: MakeBench, gate: Gate, on_lost: OnLost
) -> None:
    """Also those that give up: what has not started when the process dies is handed back."""
    bench = make_bench(
        task(name="pay", on_lost=on_lost)(lambda ctx: gate.pass_through()), threads=3
    )
    bench.registry.client.schedule_many("pay", [None] * 30)
    _end_fast(bench)
    for _ in range(3):
        bench.worker.poller.run_once()
    assert len(bench.said(Claimed)) == len(bench.worker.active_claims) == 30
    gate.open()


def test_slots_that_were_claimed_before_take_the_threads(
    make_bench: MakeBench, gate: Gate
) -> None:
    """One poll claims both kinds; tasks that may not be claimed ahead get the threads that the
    slots have left.
    """

    async def pass_through(ctx: TaskContext[None]) -> None:
        await asyncio.to_thread(gate.pass_through)

    jobs = [
        job(name=f"tick-{n}", schedule=Every("1s"))(lambda ctx: gate.pass_through())
        for n in range(2)
    ]
    bench = make_bench(*jobs, task(name="pay")(pass_through), threads=3)
    bench.registry.client.schedule_many("pay", [None] * 30)
    bench.clock.tick(timedelta(seconds=1))
    bench.worker.poller.run_once()
    assert sorted(event.job for event in bench.said(Claimed)) == [
        "pay",
        "tick-0",
        "tick-1",
    ]
    gate.open()
