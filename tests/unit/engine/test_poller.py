"""When the poller claims, how much, and how long it sleeps."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.kit.connections import LOOK
from tests.kit.events import Claimed, PollBegan
from tests.kit.loops import AT_ONCE, Peers
from tests.unit.engine.conftest import Bench, MakeBench
from tests.unit.engine.parts import Gate

from slotwise import Disabled, Every, JobContext, job, task
from slotwise.engine.loops.tuning import CROWDED, LONGEST_OFFSET
from slotwise.spi import HandedBackEvent, Settled


def nothing(ctx: JobContext) -> None:
    """Returns."""


mail = task(name="mail")(nothing)


def test_it_sleeps_until_the_next_row_is_due(make_bench: MakeBench) -> None:
    """By the database's clock; a row that is due sooner shortens the sleep."""
    bench = make_bench(job(name="slow", schedule=Every("8s"))(nothing), mail)
    assert bench.worker.poller.run_once() == timedelta(seconds=8)
    bench.registry.client.schedule(mail, delay="3s")
    assert bench.worker.poller.run_once() == timedelta(seconds=3)
    bench.clock.tick(timedelta(seconds=2))
    assert bench.worker.poller.run_once() == timedelta(seconds=1)


def test_it_never_sleeps_longer_than_the_poll_interval(make_bench: MakeBench) -> None:
    """Others put rows in, too."""
    bench = make_bench(
        job(name="rare", schedule=Every("1d"))(nothing),
        job(name="off", schedule=Disabled())(nothing),
    )
    assert bench.worker.poller.run_once() == timedelta(seconds=10)
    nobody = make_bench(task(name="other")(nothing))
    assert nobody.worker.poller.run_once() == timedelta(seconds=10)


def test_a_worker_with_nothing_to_do_only_looks(make_bench: MakeBench) -> None:
    """After a full poll interval without a wake-up: one statement, until something is due."""
    bench = make_bench(mail)
    assert bench.worker.poller.run_once() == timedelta(seconds=10)
    assert len(bench.said(PollBegan)) == 1
    bench.clock.tick(timedelta(seconds=10))
    assert bench.worker.poller.run_once() == timedelta(seconds=10)
    assert len(bench.said(PollBegan)) == 1
    bench.registry.client.schedule(mail)
    assert bench.worker.poller.run_once() == AT_ONCE  # woken: it claims at once
    assert bench.worker.poller.run_once() == timedelta(seconds=10)
    bench.registry.client.schedule(mail)
    bench.clock.tick(timedelta(seconds=10))
    assert bench.worker.poller.run_once() == AT_ONCE
    assert len(bench.said(Claimed)) == 2


def test_after_a_short_batch_it_only_looks(make_bench: MakeBench) -> None:
    """One statement, where a claim of slots and one of tasks would bring as little; but for a
    word, it claims.
    """
    bench = make_bench(mail, threads=10)
    bench.registry.client.schedule(mail)
    assert bench.worker.poller.run_once() == AT_ONCE
    assert bench.worker.poller.run_once() == timedelta(seconds=10)
    assert len(bench.said(PollBegan)) == 1
    bench.registry.client.schedule(mail)
    assert bench.worker.poller.run_once() == AT_ONCE
    bench.worker.poller.wake_for(["mail"])
    assert bench.worker.poller.run_once() == timedelta(seconds=10)
    assert len(bench.said(PollBegan)) == 3


def test_after_an_end_it_only_looks(make_bench: MakeBench) -> None:
    """One statement, as long as nothing was known to be due; what the handler has left to do is
    found by it.
    """
    bench = make_bench(job(name="slow", schedule=Every("8s"))(nothing), mail)
    assert bench.worker.poller.run_once() == timedelta(seconds=8)
    bench.worker.poller.poll_now()
    assert bench.worker.poller.run_once() == timedelta(seconds=8)
    assert len(bench.said(PollBegan)) == 1
    bench.registry.client.schedule(mail)
    bench.worker.poller.poll_now()
    assert bench.worker.poller.run_once() == AT_ONCE
    assert len(bench.said(PollBegan)) == 2
    bench.worker.poller.run_once()
    bench.clock.tick(timedelta(seconds=8))
    bench.worker.poller.poll_now()  # what was known to come is there: no look before the claim
    began = len(bench.said(PollBegan))
    assert bench.worker.poller.run_once() == AT_ONCE
    assert len(bench.said(PollBegan)) == began + 1


def test_after_a_large_batch_it_claims(make_bench: MakeBench, gate: Gate) -> None:
    """A look would only say what is likely, that there is more; also for whoever has slept
    before.
    """
    bench = make_bench(task(name="mail")(lambda ctx: gate.pass_through()), threads=10)
    assert bench.worker.poller.run_once() == timedelta(seconds=10)
    bench.clock.tick(timedelta(seconds=10))
    for _ in range(9):
        bench.registry.client.schedule("mail")
    assert bench.worker.poller.run_once() == AT_ONCE
    bench.worker.poller.run_once()
    assert len(bench.said(PollBegan)) == 3
    gate.open()


def test_it_claims_what_there_is_room_for(make_bench: MakeBench, gate: Gate) -> None:
    """Two of three; the third when the first has been settled."""
    bench = make_bench(task(name="mail")(lambda ctx: gate.pass_through()), threads=2)
    for _ in range(3):
        bench.registry.client.schedule("mail")
    assert bench.worker.poller.run_once() == AT_ONCE
    assert len(bench.said(Claimed)) == 2
    assert bench.worker.poller.run_once() == CROWDED
    assert bench.said(PollBegan)[0].capacity == 2
    gate.open()
    while len(bench.said(Settled)) < 2:
        bench.worker.settler.run_once()
    bench.worker.poller.run_once()
    assert len(bench.said(Claimed)) == 3


def test_a_drain_claims_nothing(make_bench: MakeBench) -> None:
    """There is no room any more."""
    bench = make_bench(mail)
    bench.registry.client.schedule(mail)
    bench.worker.runner.is_draining = True
    bench.worker.poller.run_once()
    assert bench.events == []


def test_a_claim_that_comes_in_during_a_drain_goes_back(make_bench: MakeBench) -> None:
    """Race: the drain begins while the claim statement is under way."""
    bench = make_bench(mail)
    bench.registry.client.schedule(mail)
    bench.worker.runner.is_draining = True
    assert bench.worker.poller.claim(1) == 1
    (holding,) = bench.worker.active_claims
    bench.worker.settler.flush()
    row = bench.row(holding)
    assert (row.picked, row.attempt) == (False, 0)


@pytest.mark.parametrize(
    ("name", "question"), [("plain", "claim_slots"), ("mail", "claim_tasks")]
)
def test_a_claim_is_believed_in_from_before_it_was_sent(
    make_bench: MakeBench, name: str, question: str
) -> None:
    """Law 6: the lease runs from the claim, not from its reply. When little of it is left, nothing
    starts.
    """
    entered = list[object]()
    subjects = {
        "plain": job(name="plain", schedule=Every("1m"))(entered.append),
        "mail": task(name="mail")(entered.append),
    }
    bench = make_bench(subjects[name])
    if name == "mail":
        bench.registry.client.schedule("mail", delay="1m")
    bench.clock.tick(timedelta(minutes=1))
    bench.delay_reply(bench.worker.store.claims, question, timedelta(seconds=55))
    assert bench.worker.poller.run_once() == AT_ONCE
    (holding,) = bench.worker.active_claims
    assert (holding.claim.row.task_name, bench.clock.elapsed() - holding.renewed) == (
        name,
        55,
    )
    while not (ends := bench.said(Settled) + bench.said(HandedBackEvent)):
        bench.worker.settler.run_once()
    assert [event.reason for event in ends] == ["suspect"]
    assert entered == []


def test_rows_of_others_are_not_touched(make_bench: MakeBench) -> None:
    """A row of a task that this worker does not know is claimed, deleted and counted by nobody
    here.
    """
    bench = make_bench(mail)
    bench.registry.client.schedule("of-another-service", {"id": 1})
    assert bench.worker.poller.run_once() == timedelta(seconds=10)
    assert bench.said(Claimed) == []


# -- several workers ------------------------------------------------------------------------------


def told(bench: Bench) -> list[str]:
    """What the worker's process said to others since the last time."""
    bench.registry.database.wake_ups.flush()
    words, bench.words = bench.words, []
    return words


def test_who_has_no_room_tells_others_what_comes_due(
    make_bench: MakeBench, gate: Gate
) -> None:
    """Race: only the worker that settled a slot knows the next; it is full when that is due. It
    says so once.
    """
    bench = make_bench(task(name="mail")(lambda ctx: gate.pass_through()), threads=1)
    client, poller = bench.registry.client, bench.worker.poller
    client.schedule("mail")
    client.schedule("mail", delay="5s")
    assert poller.run_once() == AT_ONCE
    told(bench)
    assert poller.run_once() == CROWDED  # there may be room in a moment
    bench.clock.tick(CROWDED)
    assert poller.run_once() == timedelta(seconds=5) - CROWDED
    assert told(bench) == []
    bench.clock.tick(timedelta(seconds=5) - CROWDED)
    assert poller.run_once() == bench.worker.settings.poll_interval
    assert told(bench) == [LOOK]
    assert (
        poller.run_once() == bench.worker.settings.poll_interval
    )  # woken by somebody else who has no room
    assert told(bench) == []


def test_who_drains_leaves_what_comes_to_others(make_bench: MakeBench) -> None:
    """At the begin of the drain, and with every settlement in it, which may have handed back what
    is due.
    """
    bench = make_bench(mail)
    bench.worker.runner.is_draining = True
    bench.worker.poller.poll_now()
    assert told(bench) == [LOOK]


@pytest.mark.parametrize("count", [1, 2, 3, 40, 1000])
def test_peers_keep_out_of_each_others_way(count: int) -> None:
    """Alone, at once and at the full interval; else a little later, a little earlier, within
    bounds.
    """
    peers, interval = Peers(), timedelta(seconds=10)
    peers.count = count
    offsets = {peers.offset() for _ in range(50)}
    spreads = {peers.spread(interval) for _ in range(50)}
    assert max(offsets) <= min(timedelta(milliseconds=count - 1), LONGEST_OFFSET)
    assert timedelta(seconds=9) <= min(spreads) <= max(spreads) <= interval
    assert (offsets == {timedelta(0)}, spreads == {interval}) == (
        count == 1,
        count == 1,
    )
