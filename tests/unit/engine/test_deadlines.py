"""Telling attempts that their time is up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from tests.unit.engine.parts import a_claim

from slotwise.engine.loops import housekeeping
from slotwise.engine.loops.housekeeping import Deadlines
from slotwise.engine.run.active_claims import Holding
from slotwise.model.events import Listeners

SECOND = timedelta(seconds=1)


class Stopwatch:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def made() -> tuple[Deadlines, Stopwatch, Callable[[], Holding]]:
    watch = Stopwatch()
    return Deadlines(listeners=Listeners(), worker="w", elapsed=watch), watch, lambda: Holding(a_claim(), 0.0, watch)


def test_each_is_told_when_its_own_time_is_up() -> None:
    """In the order of the deadlines, not of the starts; the sleep lasts until the next one."""
    service, watch, hold = made()
    assert service.run_once() is None
    long, short = hold(), hold()
    service.watch(long, 5 * SECOND)
    service.watch(short, 2 * SECOND)
    assert service.run_once() == 2 * SECOND
    watch.seconds = 2.0
    assert service.run_once() == 3 * SECOND
    assert (short.signal.reason, long.signal.reason) == ("timeout", None)
    watch.seconds = 9.0
    assert service.run_once() is None
    assert long.signal.reason == "timeout"


def test_what_has_ended_is_not_told() -> None:
    """Nobody runs any more."""
    service, watch, hold = made()
    holding = hold()
    service.watch(holding, SECOND)
    holding.end()
    watch.seconds = 2.0
    assert service.run_once() is None
    assert holding.signal.reason is None


def test_only_an_earlier_deadline_wakes_the_loop() -> None:
    """The others are seen when it wakes by itself."""
    service, _, hold = made()
    service.watch(hold(), 5 * SECOND)
    assert service._wake.is_set()
    service._wake.clear()
    service.watch(hold(), 6 * SECOND)
    assert not service._wake.is_set()
    service.watch(hold(), SECOND)
    assert service._wake.is_set()


def test_what_has_ended_does_not_gather() -> None:
    """Ten thousand short tasks with a timeout of an hour, four of which go on: they are all that is kept."""
    service, watch, hold = made()
    running = [hold() for _ in range(4)]
    for holding in running:
        service.watch(holding, timedelta(hours=2))
    for _ in range(10_000):
        holding = hold()
        service.watch(holding, timedelta(hours=1))
        holding.end()
    assert len(service._heap) <= housekeeping.SWEEP
    watch.seconds = 7200.0
    service.run_once()
    assert {holding.signal.reason for holding in running} == {"timeout"}
