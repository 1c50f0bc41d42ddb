"""Attempts that run for longer than their job allows, and handlers that steer their own end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.unit.engine.parts import PATIENCE, Rig, a_claim

from slotwise import Cancel, Every, Fail, InvalidJob, InvalidSetting, JobContext, Snooze, job
from slotwise.definition import define
from slotwise.engine.deadlines import Deadlines
from slotwise.engine.holdings import Holdings
from slotwise.events import Listeners
from slotwise.execution import Cancelled, Failed, Outcome, Snoozed

SECOND = timedelta(seconds=1)
HOURLY = Every("1h")


class Time:
    """Elapsed seconds that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def holdings(time: Time) -> Holdings:
    return Holdings(time)


@pytest.fixture
def deadlines(time: Time) -> Deadlines:
    return Deadlines(listeners=Listeners(), worker="host:1:a", elapsed=time)


def test_an_attempt_is_told_to_stop_when_its_time_is_over_and_not_before(
    deadlines: Deadlines, holdings: Holdings, time: Time
) -> None:
    """And the loop sleeps exactly until then."""
    (holding,) = holdings.add([a_claim()], 0.0)
    deadlines.watch(holding, 5 * SECOND)
    time.seconds = 4.0
    assert deadlines.run_once() == SECOND
    assert not holding.signal.is_set
    time.seconds = 5.0
    assert deadlines.run_once() is None
    assert holding.signal.reason == "timeout"


def test_the_earliest_deadline_decides_how_long_the_loop_sleeps(deadlines: Deadlines, holdings: Holdings) -> None:
    """Whatever the order in which they came."""
    for seconds in (9, 3, 6):
        deadlines.watch(holdings.add([a_claim()], 0.0)[0], seconds * SECOND)
    assert deadlines.run_once() == 3 * SECOND


def test_an_attempt_that_has_ended_is_told_nothing(deadlines: Deadlines, holdings: Holdings, time: Time) -> None:
    """Its signal may be read by nobody, or by a test; and its deadline holds nothing in memory."""
    (holding,) = holdings.add([a_claim()], 0.0)
    deadlines.watch(holding, SECOND)
    holding.end()
    time.seconds = 2.0
    assert deadlines.run_once() is None
    assert not holding.signal.is_set


def timed(body: object, **policies: object) -> object:
    return job(name="job", schedule=HOURLY, timeout="50ms", **policies)(body)  # type: ignore[arg-type]


def run_timed(subject: object) -> Outcome:
    """Run it with a real loop for the deadlines."""
    with Rig(subject) as rig:
        deadlines = Deadlines(listeners=Listeners(), worker="host:1:a")
        rig.runner._watch = deadlines.watch
        deadlines.start()
        try:
            return rig.run()
        finally:
            deadlines.stop()
            deadlines.join(timedelta(seconds=PATIENCE))


def test_a_def_handler_that_checks_fails_as_timed_out() -> None:
    """`ctx.wait` wakes up, `ctx.check` raises."""

    def body(ctx: JobContext) -> None:
        assert ctx.wait(PATIENCE)
        ctx.check()

    assert run_timed(timed(body)) == Failed("timed out after 50ms")


def test_an_async_handler_is_cancelled_and_fails_as_timed_out() -> None:
    """At its next await."""

    async def body(ctx: JobContext) -> None:
        await asyncio.sleep(PATIENCE)

    assert run_timed(timed(body)) == Failed("timed out after 50ms")


def test_a_handler_that_comes_to_a_good_end_after_its_time_has_failed_all_the_same() -> None:
    """Nobody may count on work that was told to stop; what was committed by complete_in, the ledger knows."""

    def body(ctx: JobContext) -> None:
        assert ctx.wait(PATIENCE)

    assert run_timed(timed(body)) == Failed("timed out after 50ms")


def test_a_handler_without_a_timeout_is_not_watched() -> None:
    """A claim may serve for ever, as a leader's."""
    with Rig(job(name="job", schedule=HOURLY)(lambda ctx: None)) as rig:
        watched: list[object] = []
        rig.runner._watch = lambda holding, timeout: watched.append(holding)
        rig.run()
    assert watched == []


@pytest.mark.parametrize("timeout", ["soon", timedelta(0), "0s", 5, True])
def test_a_timeout_that_makes_no_sense_is_refused(timeout: object) -> None:
    """With the job, the value and what is expected."""
    with pytest.raises(InvalidJob, match="timeout"):
        define(job(name="job", schedule=HOURLY, timeout=timeout)(lambda ctx: None))


@pytest.mark.parametrize(
    ("steering", "outcome"),
    [
        (Snooze("10m"), Snoozed(timedelta(minutes=10))),
        (Snooze(SECOND), Snoozed(SECOND)),
        (Cancel("nothing to do"), Cancelled("nothing to do")),
        (Fail("no such customer"), Failed("no such customer", final=True)),
    ],
    ids=repr,
)
def test_a_handler_steers_its_own_end(steering: Exception, outcome: Outcome) -> None:
    """By raising, from `def` and from `async def`."""

    def body(ctx: JobContext) -> None:
        raise steering

    async def async_body(ctx: JobContext) -> None:
        raise steering

    for handler in (body, async_body):
        with Rig(job(name="job", schedule=HOURLY)(handler)) as rig:
            assert rig.run() == outcome


def test_a_wrong_snooze_is_an_error_where_it_is_raised() -> None:
    """So that the attempt fails with a reason that names the value."""
    with pytest.raises(InvalidSetting, match="soon"):
        Snooze("soon")
