"""Telling attempts that their time is up."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.unit.engine.conftest import Bench

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
