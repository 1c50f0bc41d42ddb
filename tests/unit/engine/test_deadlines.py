"""Telling attempts that their time is up."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from tests.kit.events import HandlerHangs, HandlerSlow
from tests.unit.engine.conftest import Bench

from slotwise import Every, InvalidJob, JobContext, TaskContext, job, task
from slotwise.engine.loops.tuning import HANGS_AFTER
from slotwise.spi import define
from slotwise.testing import ManualWorker

SECOND = timedelta(seconds=1)


def test_each_is_told_when_its_own_time_is_up(bench: Bench) -> None:
    """In the order of the deadlines, not of the starts; the sleep lasts until the next one."""
    watch, (long, short) = bench.worker.lease_watch, bench.hold(2)
    assert (long.begin(), short.begin()) == (True, True)
    idle = watch.run_once()
    watch.limit(long, 2 * SECOND)
    watch.limit(short, SECOND)
    assert watch.run_once() == SECOND < idle
    bench.clock.tick(SECOND)
    assert watch.run_once() == SECOND
    assert (short.signal.reason, long.signal.reason) == ("timeout", None)
    bench.clock.tick(SECOND)
    assert watch.run_once() == idle
    assert long.signal.reason == "timeout"


@pytest.mark.parametrize("is_released", [False, True])
def test_what_has_ended_is_not_told(bench: Bench, is_released: bool) -> None:
    """Nobody runs any more."""
    watch, (holding,) = bench.worker.lease_watch, bench.hold()
    idle = watch.run_once()
    watch.limit(holding, SECOND)
    assert holding.end()
    if is_released:
        bench.worker.active_claims.remove([holding.claim])
    bench.clock.tick(2 * SECOND)
    assert watch.run_once() == idle
    assert holding.signal.reason is None


def test_only_an_earlier_deadline_wakes_the_loop(bench: Bench) -> None:
    """The others are seen when it wakes by itself. Before its first round, and during a round,
    each counts.
    """
    watch, (one, other, third) = bench.worker.lease_watch, bench.hold(3)
    watch.limit(one, 2 * SECOND)
    assert watch._wake.is_set()
    watch.run_once()
    watch._wake.clear()
    watch.limit(other, 3 * SECOND)
    assert not watch._wake.is_set()
    watch.limit(third, SECOND)
    assert watch._wake.is_set()


def test_a_deadline_that_is_set_during_a_round_is_seen(bench: Bench) -> None:
    """Race: the round has passed the attempt already. It causes another round, however late the
    deadline.
    """
    watch, (passed, other) = bench.worker.lease_watch, bench.hold(2)
    watch.run_once()
    bench.clock.tick(watch.run_once())
    left = type(other).left

    class Meanwhile(type(other)):  # type: ignore[misc]
        __slots__ = ()

        def left(self) -> float:
            watch.limit(passed, 2 * SECOND)
            return left(self)

    other.__class__ = Meanwhile
    watch.run_once()
    assert watch._wake.is_set()


# -- handlers that do not stop --------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", ["timeout", "operator", "overlap", "lost", "shutdown"]
)
def test_a_handler_that_does_not_stop_is_reported_once(
    bench: Bench, reason: str
) -> None:
    """Whatever the reason; it is a WARNING that names the attempt and the cure."""
    watch, (holding,) = bench.worker.lease_watch, bench.hold()
    assert holding.begin()
    holding.signal.set(reason)
    assert watch.run_once().total_seconds() <= HANGS_AFTER
    bench.clock.tick(timedelta(seconds=HANGS_AFTER) - SECOND)
    assert watch.run_once() <= SECOND
    assert bench.said(HandlerHangs) == []
    for _ in range(3):
        bench.clock.tick(SECOND)
        watch.run_once()
    (told,) = bench.said(HandlerHangs)
    assert (told.job, told.reason, told.level) == ("mail", reason, logging.WARNING)
    assert told.asked == timedelta(seconds=HANGS_AFTER)
    assert 'isolation="process"' in told.cure


@pytest.mark.parametrize("end", ["in time", "unstarted"])
def test_a_handler_that_stops_is_not_reported(bench: Bench, end: str) -> None:
    """Neither is a claim whose handler has not started."""
    watch, (holding,) = bench.worker.lease_watch, bench.hold()
    if end == "in time":
        assert holding.begin()
    holding.signal.set("timeout")
    watch.run_once()
    if end == "in time":
        assert holding.end()
    bench.clock.tick(timedelta(seconds=HANGS_AFTER))
    watch.run_once()
    assert bench.said(HandlerHangs) == []
    assert bench.worker.active_claims.hanging() == []


def test_the_cluster_hears_of_it(bench: Bench) -> None:
    """The next heartbeat says so, and health and the list of workers show it until it returns."""
    bench.worker.sign_in.membership.join()
    watch, (holding,) = bench.worker.lease_watch, bench.hold()
    inspect = bench.registry.inspect
    assert holding.begin()
    watch.limit(holding, SECOND)
    bench.clock.tick(SECOND)
    watch.run_once()
    bench.worker.heartbeat.run_once()
    assert [one.state for one in inspect.workers()] == ["running"]
    bench.clock.tick(timedelta(seconds=HANGS_AFTER))
    watch.run_once()
    bench.worker.heartbeat.run_once()
    assert [one.state for one in inspect.workers()] == ["hanging"]
    assert inspect.health().hanging == {bench.worker.name: ["mail"]}
    assert holding.end()
    bench.worker.heartbeat.run_once()
    assert [one.state for one in inspect.workers()] == ["running"]
    assert inspect.health().hanging == {}


def test_a_worker_with_such_a_handler_takes_what_is_due(bench: Bench) -> None:
    """Its other threads do: nothing is listed as unroutable."""
    bench.worker.sign_in.membership.join()
    watch, (holding,) = bench.worker.lease_watch, bench.hold()
    assert holding.begin()
    holding.signal.set("timeout")
    watch.run_once()
    bench.clock.tick(timedelta(seconds=HANGS_AFTER))
    watch.run_once()
    bench.worker.heartbeat.run_once()
    bench.registry.client.schedule("mail", id="next")
    bench.clock.tick(timedelta(minutes=2))
    bench.worker.heartbeat.run_once()
    found = bench.registry.inspect.health()
    assert found.unroutable == {}
    assert found.overdue > 0


# -- handlers that run for long -------------------------------------------------------------------


def test_a_slow_handler_is_reported_once(bench: Bench) -> None:
    """In the log, in the list of workers and in health; it runs on, and the worker claims."""
    bench.worker.sign_in.membership.join()
    watch, (holding,) = bench.worker.lease_watch, bench.hold()
    inspect = bench.registry.inspect
    assert holding.begin()
    watch.limit(holding, None, 2 * SECOND)
    assert watch.run_once() <= 2 * SECOND
    assert bench.said(HandlerSlow) == []
    for _ in range(3):
        bench.clock.tick(2 * SECOND)
        watch.run_once()
    (told,) = bench.said(HandlerSlow)
    assert (told.job, told.warn_after, told.level) == (
        "mail",
        2 * SECOND,
        logging.WARNING,
    )
    assert holding.signal.reason is None
    bench.worker.heartbeat.run_once()
    assert [one.state for one in inspect.workers()] == ["slow"]
    assert inspect.health().slow == {bench.worker.name: ["mail"]}
    assert holding.end()
    watch.run_once()
    bench.worker.heartbeat.run_once()
    assert [one.state for one in inspect.workers()] == ["running"]
    assert inspect.health().slow == {}


def test_explain_says_that_it_takes_long() -> None:
    """How long it has run, that this is longer than declared, and where to look."""

    @job(name="feed", schedule=Every("1h"), warn_after="2s")
    def feed(ctx: JobContext) -> None:
        """Takes long."""

    with ManualWorker([feed]) as worker:
        slot = worker.tick("1h")
        (claim,) = worker.poll()
        assert worker.begin(claim)
        worker.tick("1s")
        told = " ".join(worker.inspect.explain("feed", slot).sentences)
        assert "It has run for 1s." in told
        assert "warn_after" not in told
        worker.tick("2s")
        told = " ".join(worker.inspect.explain("feed", slot).sentences)
        assert "That is longer than its warn_after of 2s." in told
        assert "slotwise workers stack feed" in told


def test_a_warning_after_the_timeout_is_refused() -> None:
    """It would never be given."""
    refused = (
        "warn_after=10s never passes: the attempt is stopped at its timeout of 5s"
    )
    with pytest.raises(InvalidJob, match=refused):
        define(
            job(name="feed", schedule=Every("1h"), warn_after="10s", timeout="5s")(
                print
            )
        )


def test_explain_says_that_the_timeout_has_passed() -> None:
    """Of slots and of one-time tasks; only while it is so."""

    @job(name="feed", schedule=Every("1h"), timeout="2s")
    def feed(ctx: JobContext) -> None:
        """Hangs."""

    @task(name="send", timeout="2s")
    def send(ctx: TaskContext[None]) -> None:
        """Hangs, too."""

    with ManualWorker([feed, send]) as worker:
        worker.client.schedule(send, id="1")
        slot = worker.tick("1h")
        for claim in worker.poll():
            assert worker.begin(claim)

        def told() -> list[bool]:
            explained = (
                worker.inspect.explain("feed", slot),
                worker.inspect.explain_task("send", "1"),
            )
            return [
                "timeout of 2s has passed" in " ".join(one.sentences)
                for one in explained
            ]

        worker.tick("1s")
        assert told() == [False, False]
        worker.tick("2s")
        assert told() == [True, True]
        for claim in worker.held:
            worker.finish(claim)
        worker.settle()
        assert told() == [False, False]
