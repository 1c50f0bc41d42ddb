"""What a handler is given, and how it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.loops import Holding
from tests.kit.patience import PATIENCE
from tests.unit.engine.parts import MINUTE, NOON, NoFence, a_claim

from slotwise import (
    ClaimLost,
    Every,
    FixedDelay,
    InvalidJob,
    InvalidSetting,
    JobCancelled,
    JobContext,
    Schedule,
    job,
    task,
)
from slotwise.jobs.context import Signal
from slotwise.jobs.job import declared
from slotwise.spi import Claim


class Watch:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def a_context(schedule: Schedule | None = None, **columns: Any) -> JobContext:
    """Of an attempt of the job "report", whose row has these columns."""
    columns |= {} if schedule is None else {"schedule": str(schedule)}
    return JobContext(
        Holding(a_claim("report", **columns), 0.0, Watch()), fence=NoFence()
    )


# -- the slot -------------------------------------------------------------------------------------


def test_a_slot_covers_what_came_since_the_one_before() -> None:
    """From the slot before up to the slot itself."""
    ctx = a_context(Every("5m"))
    assert (ctx.slot, ctx.interval_start, ctx.interval_end) == (
        NOON,
        NOON - 5 * MINUTE,
        NOON,
    )
    assert (ctx.name, ctx.id, ctx.attempt, ctx.worker) == (
        "report",
        "recurring",
        1,
        "host:1:a",
    )


def test_a_fixed_delay_has_no_interval() -> None:
    """Its slots are defined by the end of the run before."""
    assert a_context(FixedDelay("5m")).interval_start is None


def test_a_one_time_task_has_no_slot() -> None:
    """And no interval."""
    ctx = _task_context()
    assert (ctx.slot, ctx.interval_start, ctx.interval_end) == (None, None, None)


def _task_context(**columns: Any) -> JobContext:
    claim = a_claim(
        "mail", instance="id-1", **{"schedule": None, "created_version": 77} | columns
    )
    return JobContext(Holding(claim, 0.0, Watch()), fence=NoFence())


def test_a_catch_up_says_so() -> None:
    """And for how many it stands."""
    ctx = a_context(origin="catch_up", collapsed=3)
    assert (ctx.is_catch_up, ctx.missed_count) == (True, 3)
    assert not a_context().is_catch_up


def test_the_idempotency_key_is_that_of_the_slot() -> None:
    """The same in every attempt, different in every other slot; a task's includes its row's first
    version.
    """
    first, again = a_context(), a_context(attempt=2)
    assert (
        first.idempotency_key
        == again.idempotency_key
        == f"report/recurring/{NOON.isoformat()}"
    )
    assert first.token != again.token
    assert a_context(slot=NOON + MINUTE).idempotency_key != first.idempotency_key
    assert _task_context().idempotency_key == "mail/id-1/77"
    assert (
        _task_context(created_version=78).idempotency_key
        != _task_context().idempotency_key
    )


def test_a_triggered_run_shares_the_plans_ledger() -> None:
    """Its slot stands under the plan row's instance."""
    claim = a_claim(
        "report",
        instance="trigger:1",
        kind="detached",
        plan_instance="recurring",
        schedule=None,
    )
    ctx = JobContext(Holding(claim, 0.0, Watch()), fence=NoFence())
    assert ctx.slot == NOON
    assert ctx.idempotency_key == f"report/recurring/{NOON.isoformat()}"


# -- being told -----------------------------------------------------------------------------------


def test_the_lease_runs_out() -> None:
    """By a clock that never steps; in the end the claim must be believed to be lost."""
    watch = Watch()
    ctx = JobContext(Holding(a_claim(lease=MINUTE), 0.0, watch), fence=NoFence())
    watch.seconds = 45.0
    assert (ctx.lease_left, ctx.lost) == (timedelta(seconds=15), False)
    watch.seconds = 60.0
    assert ctx.lost
    assert not ctx.cancelled  # that is for the worker to say


def test_a_handler_is_told_to_stop() -> None:
    """wait ends at once and says so, check raises; the reason stays the first."""
    holding = Holding(a_claim("report"), 0.0, Watch())
    ctx = JobContext(holding, fence=NoFence(), stopping=lambda: True)
    assert (ctx.wait("1ms"), ctx.cancelled, ctx.cancel_reason, ctx.stopping) == (
        False,
        False,
        None,
        True,
    )
    ctx.check()
    woken = threading.Thread(target=ctx.wait, args=(timedelta(seconds=PATIENCE),))
    woken.start()
    holding.signal.set("operator")
    woken.join(PATIENCE)
    assert not woken.is_alive()
    assert (
        ctx.wait(timedelta(seconds=PATIENCE)),
        ctx.cancelled,
        ctx.cancel_reason,
    ) == (
        True,
        True,
        "operator",
    )
    with pytest.raises(
        JobCancelled,
        match=r"report 2026-01-01 12:00:00\+00:00 was asked to stop: operator",
    ):
        ctx.check()


def test_a_signal_calls_everybody_once() -> None:
    """Who asks before, when it is given; who asks after, at once. Nobody is forgotten in
    between.
    """
    signal, called = Signal(), []
    signal.on_set(lambda: called.append("before"))
    assert signal.set("lost")
    assert not signal.set("shutdown")
    signal.on_set(lambda: called.append("after"))
    assert called == ["before", "after"]
    assert signal.reason == "lost"


def test_no_callback_falls_between_asking_and_giving() -> None:
    """Race: a coroutine asks to be cancelled while the signal is given."""
    for _ in range(300):
        signal, called, barrier = Signal(), threading.Event(), threading.Barrier(2)

        def give(
            signal: Signal = signal, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait(PATIENCE)
            signal.set("lost")

        giver = threading.Thread(target=give)
        giver.start()
        barrier.wait(PATIENCE)
        signal.on_set(called.set)
        giver.join(PATIENCE)
        assert called.is_set()


class StaleFence(NoFence):
    def complete_in(self, claim: Claim, connection: Any) -> None:
        raise ClaimLost("stale")


def test_only_a_completion_that_was_accepted_is_promised() -> None:
    """A refused one has written nothing that a rollback could take back."""
    good = Holding(a_claim(), 0.0, Watch())
    JobContext(good, fence=NoFence()).complete_in(object())
    assert good.promised
    stale = Holding(a_claim(), 0.0, Watch())
    with pytest.raises(ClaimLost):
        JobContext(stale, fence=StaleFence()).complete_in(object())
    assert not stale.promised


def test_the_handlers_log_lines_say_where_they_are_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Job, id, slot, attempt and token stand on each record: two instances may share all but the
    id.
    """
    ctx = a_context()
    with caplog.at_level(logging.INFO, "slotwise.job"):
        ctx.log.info("hello")
    (record,) = caplog.records
    assert vars(record)["id"] == ctx.id
    assert (record.job, record.slot, record.attempt, record.token) == (  # type: ignore[attr-defined]
        "report",
        NOON,
        1,
        ctx.token,
    )


# -- reading what a job says ----------------------------------------------------------------------


class Says:
    value = 1

    @property
    def computed(self) -> int:
        return 2

    @property
    def broken(self) -> int:
        return self.missing  # type: ignore[attr-defined, no-any-return]

    def asked(self) -> int:
        return 3

    def asked_for(self, what: str) -> str:
        return what

    @classmethod
    def of_class(cls) -> int:
        return 4


def test_what_a_job_says() -> None:
    """A value, a property, a method without arguments; else the default."""
    words = ("value", "computed", "asked", "of_class", "nothing")
    assert [declared(Says(), word, 0) for word in words] == [1, 2, 3, 4, 0]
    assert declared(Says, "value") == 1
    says = Says()
    assert declared(says, "asked_for") == says.asked_for


def test_a_property_that_lacks_something_is_not_nothing() -> None:
    """It would hide the user's mistake behind a default."""
    with pytest.raises(
        InvalidJob,
        match=r"Says\.broken cannot be read: 'Says' object has no attribute 'missing'",
    ):
        declared(Says(), "broken", 0)


def test_decorated_functions_stay_functions() -> None:
    """They can be called, and keep their docstring."""

    @job(name="a", schedule=Every("1m"))
    def first(ctx: JobContext) -> str:
        """First."""
        return "first"

    @task(name="b")
    def second(ctx: JobContext) -> str:
        """Second."""
        return "second"

    ctx = a_context()
    assert (first(ctx), first.__doc__, second(ctx), second.__doc__) == (
        "first",
        "First.",
        "second",
        "Second.",
    )


class AwaitedFence(NoFence):
    def complete_in(self, claim: Claim, connection: Any) -> Any:
        async def pending() -> None:
            if connection == "stale":
                raise ClaimLost("stale")

        return pending()

    guard = complete_in


def test_an_async_completion_is_promised_when_it_was_awaited() -> None:
    """Until then it is known that somebody has forgotten something."""
    holding = Holding(a_claim(), 0.0, Watch())
    pending = JobContext(holding, fence=AwaitedFence()).complete_in("fresh")
    assert (holding.promised, holding.unawaited) == (False, "complete_in")
    asyncio.run(pending)
    assert (holding.promised, holding.unawaited) == (True, None)


def test_an_async_completion_that_was_refused_is_not_promised() -> None:
    """As with one that waits."""
    holding = Holding(a_claim(), 0.0, Watch())
    with pytest.raises(ClaimLost):
        asyncio.run(JobContext(holding, fence=AwaitedFence()).complete_in("stale"))
    assert (holding.promised, holding.unawaited) == (False, None)


@pytest.mark.parametrize(
    ("given", "written"), [(5, "5s"), (0.5, "500ms"), (90, "90s")]
)
def test_a_wait_has_a_unit(given: Any, written: str) -> None:
    """A bare number is rejected, with the same duration as it is written."""
    with pytest.raises(InvalidSetting, match=f'write ctx.wait."{written}".'):
        a_context().wait(given)
