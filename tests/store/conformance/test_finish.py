"""Forecasts of ``finish_by``, from the tables."""

from __future__ import annotations

from tests.store.bench import MINUTE, Bench, a_job, at

from slotwise import Every


def test_a_run_that_will_miss_its_time(bench: Bench) -> None:
    """From twenty earlier runs on; the forecast is of the slot that runs, or waits and is due."""
    found = bench.beside(
        a_job("report", Every("1h"), finish_by="25m", finish_risk=0.4)
    )
    found.plan("report")
    for number in range(1, 21):
        found.clock.set(at(60 * number))
        claim = found.claim_one("report")
        assert found.inspect.finish_forecasts() == []
        found.tick(10 if number % 2 else 30)
        found.settle(claim)
    found.clock.set(at(60 * 21 + 1))
    (waiting,) = found.inspect.finish_forecasts()
    assert (waiting.job, waiting.slot, waiting.started) == (
        "report",
        at(60 * 21),
        None,
    )
    assert waiting.finish_by == at(60 * 21) + 25 * MINUTE
    assert (waiting.share, waiting.runs, waiting.will_miss) == (0.5, 20, True)
    claim = found.claim_one("report")
    assert claim.slot == at(60 * 21)
    found.tick(5)
    (running,) = found.inspect.finish_forecasts()
    assert running.started == at(60 * 21 + 1)
    told = " ".join(found.inspect.explain("report", at(60 * 21)).sentences)
    assert "will probably miss its finish_by" in told
    assert "50% of 20 earlier runs" in told
    found.tick(20)
    (missed,) = found.inspect.finish_forecasts()
    assert missed.share == 1
    told = " ".join(found.inspect.explain("report", at(60 * 21)).sentences)
    assert "It should have ended by" in told
    found.settle(claim)
    assert found.inspect.finish_forecasts() == []


def test_a_deploy_changes_it(bench: Bench) -> None:
    """The row has what the newest deploy declares; without it, nothing is forecast."""
    first = bench.beside(a_job("plain", Every("1m"), finish_by="30s"))
    first.plan("plain")
    plan = first.inspect.finish_forecasts
    assert plan() == []
    bench.clock.tick(5 * MINUTE)
    assert [one.share for one in plan()] == [1]
    bench.beside(a_job("plain", Every("1m"))).plan("plain", started=bench.clock.now())
    assert plan() == []
