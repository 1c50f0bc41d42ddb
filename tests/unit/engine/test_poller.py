"""When the poller claims, how much, and how long it sleeps."""

from __future__ import annotations

from datetime import timedelta

from tests.unit.engine.conftest import MakeBench
from tests.unit.engine.parts import Gate

from slotwise import Disabled, Every, JobContext, job, task
from slotwise.engine.service import AT_ONCE
from slotwise.events import Claimed, PollBegan, Settled


def nothing(ctx: JobContext) -> None:
    """Returns."""


mail = task(name="mail")(nothing)


def test_it_sleeps_until_the_next_row_is_due(make_bench: MakeBench) -> None:
    """By the database's clock; a row that is due sooner shortens the sleep."""
    bench = make_bench(job(name="slow", schedule=Every("8s"))(nothing), mail)
    assert bench.worker.poller.run_once() == timedelta(seconds=8)
    bench.registry.client.schedule(mail, in_="3s")
    assert bench.worker.poller.run_once() == timedelta(seconds=3)
    bench.clock.tick(timedelta(seconds=2))
    assert bench.worker.poller.run_once() == timedelta(seconds=1)


def test_it_never_sleeps_longer_than_the_poll_interval(make_bench: MakeBench) -> None:
    """Others put rows in, too."""
    bench = make_bench(job(name="rare", schedule=Every("1d"))(nothing), job(name="off", schedule=Disabled())(nothing))
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


def test_it_claims_what_there_is_room_for(make_bench: MakeBench, gate: Gate) -> None:
    """Two of three; the third when the first has been settled."""
    bench = make_bench(task(name="mail")(lambda ctx: gate.pass_through()), threads=2)
    for _ in range(3):
        bench.registry.client.schedule("mail")
    assert bench.worker.poller.run_once() == AT_ONCE
    assert len(bench.said(Claimed)) == 2
    assert bench.worker.poller.run_once() == bench.worker.settings.poll_interval
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
    bench.worker.runner.drain()
    bench.worker.poller.run_once()
    assert bench.events == []


def test_a_claim_that_comes_in_during_a_drain_goes_back(make_bench: MakeBench) -> None:
    """Race: the drain begins while the claim statement is under way."""
    bench = make_bench(mail)
    bench.registry.client.schedule(mail)
    bench.worker.runner.drain()
    assert bench.worker.poller.claim(1) == 1
    (holding,) = bench.worker.holdings
    bench.worker.settler.flush()
    row = bench.row(holding)
    assert (row.picked, row.attempt) == (False, 0)


def test_rows_of_others_are_not_touched(make_bench: MakeBench) -> None:
    """A row of a task that this worker does not know is claimed, deleted and counted by nobody here."""
    bench = make_bench(mail)
    bench.registry.client.schedule("of-another-service", {"id": 1})
    assert bench.worker.poller.run_once() == timedelta(seconds=10)
    assert bench.said(Claimed) == []
