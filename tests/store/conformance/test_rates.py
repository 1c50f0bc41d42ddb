"""How a job fares, and what explanations say of deploys and absent workers."""

from __future__ import annotations

from datetime import timedelta

from tests.store.bench import Bench, a_job, at
from tests.store.conformance.test_membership import a_member

from slotwise import Daily
from slotwise.model.records import Failed
from slotwise.store.planning.planner import Planner
from slotwise.store.planning.revision import Revision
from slotwise.store.slots.counts import Counts

HOUR = timedelta(hours=1)


def ran(bench: Bench, minutes: range, failing: set[int]) -> None:
    """Of each minute the slot runs for ten seconds, five seconds late."""
    for minute in minutes:
        bench.clock.set(at(minute) + timedelta(seconds=5))
        claim = bench.claim_one("plain")
        bench.clock.set(at(minute) + timedelta(seconds=15))
        bench.settle(claim, Failed("boom") if minute in failing else None)


def count(bench: Bench, hours: int) -> None:
    bench.clock.set(at(60 * hours))
    while Counts(bench.store).recount_closed():
        pass


def test_rates(bench: Bench) -> None:
    """Runs and failures from the counts, also of slots that were pruned; times and the strip from
    the newest slots.
    """
    ran(bench, range(1, 31), {7, 14, 30})
    count(bench, 4)
    found = bench.inspect.rates("plain")
    assert found.strip == "✓✓✓✗" + "✓" * 15 + "✗"
    for rate in (found.day, found.week):
        assert (rate.runs, rate.failures, rate.skipped) == (30, 3, 0)
        assert rate.duration_p50 == rate.duration_p95 == timedelta(seconds=10)
        assert rate.lateness_p50 == rate.lateness_p95 == timedelta(seconds=5)
    bench.clock.set(at(60 * 48))
    later = bench.inspect.rates("plain")
    assert (later.day.runs, later.day.duration_p50) == (0, None)
    assert later.week.runs == 30
    assert found.as_json()["strip"] == found.strip


def test_rates_of_many_jobs(bench: Bench) -> None:
    """The same as of one, from as few statements as for one; a job without a row has none."""
    ran(bench, range(1, 31), {7, 14, 30})
    count(bench, 4)
    found = bench.inspect.rates_of(["plain", "strict", "missing"])
    assert found["plain"] == bench.inspect.rates("plain")
    assert found["strict"].strip == found["missing"].strip == ""
    assert bench.inspect.rates_of([]) == {}


def test_a_job_without_history(bench: Bench) -> None:
    found = bench.inspect.rates("plain")
    assert (found.strip, found.day.runs, found.week.lateness_p95) == ("", 0, None)


def test_a_failing_job_says_how_often(bench: Bench) -> None:
    """One that does not fail says nothing of it; one that runs, how long it usually takes."""
    ran(bench, range(1, 4), {2})
    count(bench, 4)
    bench.claim_one("plain")
    explained = bench.inspect.explain_job("plain")
    assert explained is not None
    told = " ".join(explained.sentences)
    assert "In the last 24 hours, 1 of 3 runs failed." in told
    assert "Half of its runs end within 10s, and 19 of 20 within 10s." in told
    assert explained.rates is not None
    other = bench.inspect.explain_job("strict")
    assert other is not None
    assert "runs failed" not in " ".join(other.sentences)


def test_a_deploy_took_the_slot_away(bench: Bench) -> None:
    """The one that had it before is named, with the revision."""
    for schedule, revision in (("02:00", "2"), ("03:55", "3")):
        job = a_job("nightly", Daily(schedule, tz="UTC"))
        bench.beside(job)
        Planner(bench.store).plan([job], Revision(text=revision, started=at(0)))
        bench.tick(1)
    slot = at(0).replace(hour=2) + 24 * HOUR
    told = " ".join(bench.inspect.explain("nightly", slot).sentences)
    assert (
        "The schedule was changed from 02:00 UTC to 03:55 UTC by revision 3 at "
        in told
    )
    explained = bench.inspect.explain_job("nightly")
    assert explained is not None
    assert "by revision 3 at " in " ".join(explained.sentences)
    told = " ".join(bench.inspect.explain("nightly", slot + HOUR).sentences)
    assert "was changed" not in told


def test_no_worker_was_alive(bench: Bench) -> None:
    """Slots that were missed meanwhile say so, with how the last worker has ended; one that ran in
    time says nothing.
    """
    one = a_member(bench, "host:1:a")
    one.join()
    bench.tick(1)
    bench.settle(bench.claim_one("plain"))
    bench.tick(1)
    one.stop_reason = "SIGTERM"
    one.drain()
    one.leave()
    bench.tick(7)
    a_member(bench, "host:2:b").join()
    bench.settle(bench.claim_one("plain"))
    found = [
        " ".join(bench.inspect.explain("plain", at(minute)).sentences)
        for minute in (1, 5, 9)
    ]
    assert "No worker was alive" not in found[0]
    assert "; the last one, host:1:a, drained on SIGTERM." in found[1]
    assert "No worker was alive" not in found[2]
