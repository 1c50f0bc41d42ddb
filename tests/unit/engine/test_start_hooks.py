"""Hooks before a start: they refuse it, or hold something from before the handler until the
attempt has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

import pytest
from tests.kit.patience import PATIENCE
from tests.kit.records import (
    Aborted,
    Cancelled,
    Failed,
    HandedBack,
    Skipped,
    Succeeded,
)
from tests.unit.engine.parts import NOON, Rig

from slotwise import Every, JobContext, Skip, job
from slotwise.spi import Claim
from slotwise.testing import ManualClock

HOURLY = Every("1h")
Make = Callable[[Callable[[JobContext], object]], object]


def sync(body: Callable[[JobContext], object]) -> object:
    return job(name="job", schedule=HOURLY)(body)


def asynchronous(body: Callable[[JobContext], object]) -> object:
    async def handler(ctx: JobContext) -> object:
        return body(ctx)

    return job(name="job", schedule=HOURLY)(handler)


def strict(body: Callable[[JobContext], object]) -> object:
    return job(name="job", schedule=HOURLY, on_lost="give_up")(body)


ALL = pytest.mark.parametrize(
    "make", [sync, asynchronous, strict], ids=["def", "async def", "give_up"]
)


class Diary:
    """What happened, in order; and a hook that holds something meanwhile."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.threads: list[str] = []

    def hook(
        self, name: str = "lock"
    ) -> Callable[[JobContext], AbstractContextManager[None]]:
        @contextmanager
        def held() -> Iterator[None]:
            self.lines.append(f"{name} taken")
            try:
                yield
            finally:
                self.lines.append(f"{name} given back")

        def before_start(ctx: JobContext) -> AbstractContextManager[None]:
            self.threads.append(threading.current_thread().name)
            return held()

        return before_start

    def handler(self, ctx: JobContext) -> None:
        self.lines.append("handler")


def refuse(ctx: JobContext) -> None:
    raise Skip("lock_held")


@ALL
def test_what_a_hook_returns_is_held_while_the_handler_runs(make: Make) -> None:
    """From before its start to after its end, and never by the thread of the event loop."""
    diary = Diary()
    with Rig(
        make(diary.handler), before_start=(diary.hook("a"), diary.hook("b"))
    ) as rig:
        assert rig.run() == Succeeded()
    assert diary.lines == [
        "a taken",
        "b taken",
        "handler",
        "b given back",
        "a given back",
    ]
    assert all(name.startswith("slotwise-handler") for name in diary.threads)


@ALL
def test_a_hook_that_skips_refuses_the_start(make: Make) -> None:
    """The handler never runs, no mark is set, and what was taken before is given back."""
    diary, marked = Diary(), list[Claim]()

    def mark(claim: Claim) -> bool:
        marked.append(claim)
        return True

    with Rig(
        make(diary.handler), mark=mark, before_start=(diary.hook(), refuse)
    ) as rig:
        assert rig.run() == Skipped("lock_held")
        assert rig.names() == []
    assert diary.lines == ["lock taken", "lock given back"]
    assert marked == []


def test_a_mark_that_is_refused_gives_it_back() -> None:
    """The start was refused after the hooks."""
    diary = Diary()
    with Rig(
        strict(diary.handler), mark=lambda _: False, before_start=(diary.hook(),)
    ) as rig:
        assert rig.run() == HandedBack("mark_refused")
    assert diary.lines == ["lock taken", "lock given back"]


@ALL
def test_a_claim_that_became_doubtful_meanwhile_does_not_start(make: Make) -> None:
    """The hook took as long as the lease: another worker may run the slot by now."""
    diary, clock = Diary(), ManualClock(NOON)
    held = diary.hook()

    def slow(ctx: JobContext) -> AbstractContextManager[None]:
        clock.tick(timedelta(minutes=2))
        return held(ctx)

    with Rig(
        make(diary.handler), stopwatch=clock.elapsed, before_start=(slow,)
    ) as rig:
        assert rig.run() == HandedBack("suspect")
    assert diary.lines == ["lock taken", "lock given back"]


@ALL
def test_an_error_of_a_hook_is_the_attempts(make: Make) -> None:
    """It is no reason to skip the slot: the retry decides."""

    def broken(ctx: JobContext) -> None:
        raise ConnectionError("no lock server")

    diary = Diary()
    with Rig(make(diary.handler), before_start=(diary.hook(), broken)) as rig:
        outcome = rig.run()
    assert isinstance(outcome, Failed)
    assert outcome.error.endswith("ConnectionError: no lock server")
    assert diary.lines == ["lock taken", "lock given back"]


@ALL
def test_an_error_on_the_way_out_changes_no_outcome(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler has succeeded; the error is logged, and the others are left."""

    @contextmanager
    def held() -> Iterator[None]:
        yield
        raise ConnectionError("no lock server")

    diary = Diary()
    with Rig(
        make(diary.handler), before_start=(diary.hook(), lambda ctx: held())
    ) as rig:
        assert rig.run() == Succeeded()
    assert "failed on exit" in caplog.text
    assert diary.lines == ["lock taken", "handler", "lock given back"]


@ALL
def test_what_is_held_can_stop_the_handler(make: Make) -> None:
    """The lock was lost while the handler ran: it is told so, with that reason, and the slot
    starts again elsewhere.
    """
    contexts: list[JobContext] = []
    begun = threading.Event()

    def wait(ctx: JobContext) -> None:
        begun.set()
        ctx.wait(timedelta(seconds=PATIENCE))
        assert ctx.cancel_reason == "lock_lost"
        ctx.check()

    with Rig(make(wait), before_start=(contexts.append,)) as rig:
        rig.start()
        assert begun.wait(PATIENCE)
        assert contexts[0].cancel("lock_lost")
        assert not contexts[0].cancel("another")
        assert rig.end() == Aborted("lock_lost")


def test_a_handler_that_skips_is_cancelled() -> None:
    """It has started, so the attempt counts."""

    def late(ctx: JobContext) -> None:
        raise Skip("too late")

    with Rig(sync(late)) as rig:
        assert rig.run() == Cancelled("too late")


def test_a_claim_that_waits_too_long_calls_no_hook() -> None:
    """Nothing is taken for a start that is refused anyway."""
    diary, clock = Diary(), ManualClock(NOON)
    with Rig(
        sync(diary.handler), stopwatch=clock.elapsed, before_start=(diary.hook(),)
    ) as rig:
        holding = rig.hold()
        clock.tick(timedelta(seconds=11))
        rig.runner.start([holding])
        assert rig.end() == HandedBack("queued")
    assert diary.lines == []
