"""Where handlers run, and what becomes of whatever they do."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.breaks import always
from tests.kit.events import HandlerEnded
from tests.kit.loops import error_text, outcomes
from tests.kit.patience import PATIENCE
from tests.kit.payloads import plain
from tests.kit.records import ERROR_LIMIT, Aborted, Failed, HandedBack, Succeeded
from tests.unit.engine.parts import NOON, Gate, Rig

from slotwise import (
    Cancel,
    Every,
    Fail,
    JobCancelled,
    JobContext,
    Resume,
    Snooze,
    TaskContext,
    job,
    task,
)
from slotwise.engine.run.tuning import UNSETTLED
from slotwise.spi import Claim, elapsed
from slotwise.testing import ManualClock

Handler = Callable[[JobContext], object]

HOURLY = Every("1h")


def sync(body: Callable[[JobContext], object]) -> object:
    return job(name="job", schedule=HOURLY)(body)


def asynchronous(body: Callable[[JobContext], object]) -> object:
    async def handler(ctx: JobContext) -> object:
        return body(ctx)

    return job(name="job", schedule=HOURLY)(handler)


BOTH = pytest.mark.parametrize("make", [sync, asynchronous], ids=["def", "async def"])


def raising(error: BaseException) -> Handler:
    def body(ctx: JobContext) -> object:
        raise error

    return body


def returning(result: object) -> Handler:
    return lambda ctx: result


# -- how it ends ----------------------------------------------------------------------------------


@BOTH
def test_a_handler_that_returns_has_succeeded(
    make: Callable[[Handler], object],
) -> None:
    """Whatever it returns."""
    with Rig(make(lambda ctx: "anything")) as rig:
        assert rig.run() == Succeeded()
        assert rig.names() == ["handler_start", "handler_end"]


@BOTH
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("leave", "status"),
    [
        (None, 0),
        (ValueError("of the child"), 1),
        (SystemExit(3), 3),
        (SystemExit(), 0),
    ],
    ids=["returns", "raises", "exits", "exits well"],
)
def test_a_fork_that_comes_out_of_the_handler_ends(
    make: Callable[[Handler], object], leave: BaseException | None, status: int
) -> None:
    """The attempt is the parent's, and ends once; the child ends with the status that Python would
    give it.
    """
    statuses: list[int] = []

    def forks(ctx: JobContext) -> None:
        if child := os.fork():
            statuses.append(ended(child))
        elif leave is not None:
            raise leave

    with Rig(make(forks)) as rig:
        assert rig.run() == Succeeded()
        assert rig.names() == ["handler_start", "handler_end"]
    assert statuses == [status]


def ended(child: int) -> int:
    """Its exit status; -9 if it did not end by itself, and had to be killed."""
    until = elapsed() + 10
    while elapsed() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        threading.Event().wait(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@BOTH
@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom"),
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_is_an_outcome(
    make: Callable[[Handler], object], error: BaseException
) -> None:
    """Also what is meant to end the process, or the loop: the next handler runs as if nothing had
    happened.
    """
    with Rig(
        make(raising(error)),
        task(name="next")(lambda ctx: None),
        task(name="later")(_nothing),
    ) as rig:
        outcome = rig.run()
        assert isinstance(outcome, Failed)
        assert type(error).__name__ in outcome.error.splitlines()[-1] or isinstance(
            error, StopIteration
        )
        assert not outcome.final
        assert rig.run("next") == Succeeded()
        assert rig.run("later") == Succeeded()


async def _nothing(ctx: JobContext) -> None:
    pass


@BOTH
def test_the_end_is_told_with_its_error(make: Callable[[Handler], object]) -> None:
    """The last line of the trace, and how long it took."""
    with Rig(make(raising(ValueError("boom")))) as rig:
        rig.run()
        end = rig.events[-1]
        assert isinstance(end, HandlerEnded)
        assert (end.outcome, end.error) == ("failed", "ValueError: boom")
        assert end.took is not None
        assert end.took >= timedelta(0)


def test_a_coroutine_that_nobody_awaits() -> None:
    """A `def` that forgot to be `async def` ran nothing: no success, and no other attempt can mend
    it.
    """
    with Rig(sync(_nothing_of)) as rig:
        outcome = rig.run()
        assert isinstance(outcome, Failed)
        assert "declare it `async def`" in outcome.error
        assert outcome.final


class _Yields:
    """An object that is called, and so not seen at the registration."""

    def __call__(self, ctx: object) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("handler", [_Yields(), lambda ctx: (one for one in "ab")])
def test_a_generator_that_nobody_iterates(handler: Handler) -> None:
    """It ran nothing, or not all: no success."""
    with Rig(sync(handler)) as rig:
        outcome = rig.run()
        assert isinstance(outcome, Failed)
        assert "returned a generator" in outcome.error
        assert outcome.final


@pytest.mark.parametrize(
    "word",
    [Snooze("10m"), Resume(), Cancel("no data"), Fail("no data")],
    ids=lambda word: type(word).__name__,
)
@BOTH
def test_a_word_that_is_returned_and_not_raised(
    make: Callable[[Handler], object], word: Exception
) -> None:
    """It would steer nothing, and pass for a success: the attempt fails, and says what to
    write.
    """
    with Rig(make(returning(word))) as rig:
        outcome = rig.run()
    assert isinstance(outcome, Failed)
    assert f"raise it: `raise {type(word).__name__}(…)`" in outcome.error
    assert outcome.final


def _nothing_of(ctx: JobContext) -> Awaitable[None]:
    return _nothing(ctx)


@pytest.mark.parametrize(
    "data",
    [b"{not json", b"\xac\xed\x00\x05sr", b"\xff\xfe", b"[" * 100_000, b""],
    ids=["no JSON", "Java's", "no UTF-8", "too deep", "empty"],
)
@BOTH
def test_data_that_cannot_be_decoded(
    make: Callable[[Handler], object], data: bytes
) -> None:
    """The handler is not entered, and no other attempt is made: it would meet the same."""
    entered: list[object] = []
    with Rig(make(entered.append)) as rig:
        outcome = rig.run(task_data=data)
        assert isinstance(outcome, Failed)
        assert outcome.error.startswith("task_data cannot be read as JSON")
        assert outcome.final
        assert entered == []
        assert rig.names() == []


def test_the_data_arrives_decoded() -> None:
    """Once, as JSON has it."""
    seen: list[Any] = []
    with Rig(sync(lambda ctx: seen.extend([ctx.data, ctx.data]))) as rig:
        rig.run(task_data=b'{"id":[1,null,"\xc3\xbc"]}')
        assert seen[0] == {"id": [1, None, "ü"]}
        assert seen[0] is seen[1]


# -- where it runs --------------------------------------------------------------------------------


def test_def_on_threads_of_its_own_async_def_on_the_one_loop() -> None:
    """A handler that blocks its thread blocks no other; coroutines share one loop."""
    gate, where = Gate(), []

    async def on_loop(ctx: JobContext) -> None:
        where.append((threading.current_thread().name, asyncio.get_running_loop()))

    with Rig(
        sync(lambda ctx: gate.pass_through()), task(name="coroutine")(on_loop)
    ) as rig:
        rig.start()
        gate.wait_entered()
        assert rig.run("coroutine") == Succeeded()
        assert rig.run("coroutine") == Succeeded()
        gate.open()
        assert rig.end() == Succeeded()
    assert [name for name, _ in where] == ["slotwise-loop"] * 2
    assert len({loop for _, loop in where}) == 1


# -- right before the start -----------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("renewed", "lease", "reason"),
    [(-9.0, 10, "suspect"), (-20.0, 10, "suspect")],
    ids=["little lease left", "no lease left"],
)
def test_what_may_not_start_any_more(
    make: Callable[[Handler], object], renewed: float, lease: int, reason: str
) -> None:
    """On a doubtful claim nothing starts."""
    entered: list[object] = []
    with Rig(make(entered.append), margin=timedelta(seconds=5)) as rig:
        assert rig.run(
            renewed=elapsed() + renewed, lease=timedelta(seconds=lease)
        ) == HandedBack(reason)
        assert entered == []


@BOTH
def test_what_its_claim_took_is_no_time_that_it_waited(
    make: Callable[[Handler], object],
) -> None:
    """A claim that took longer than a heartbeat, and has lease enough, starts: else the next would
    take as long.
    """
    with Rig(make(lambda ctx: None), margin=timedelta(seconds=5)) as rig:
        assert (
            rig.run(renewed=elapsed() - 6, lease=timedelta(seconds=60)) == Succeeded()
        )


@BOTH
def test_what_waited_for_long_goes_to_somebody_else(
    make: Callable[[Handler], object],
) -> None:
    """For longer than a heartbeat, since it came in."""
    entered: list[object] = []
    with Rig(make(entered.append), margin=timedelta(microseconds=1)) as rig:
        assert rig.run() == HandedBack("queued")
        assert entered == []


@BOTH
def test_a_drain_starts_nothing(make: Callable[[Handler], object]) -> None:
    """What has been claimed goes back, and there is no more room."""
    entered: list[object] = []
    with Rig(make(entered.append)) as rig:
        assert rig.runner.free() == 4
        rig.runner.is_draining = True
        assert rig.run() == HandedBack("shutdown")
        assert rig.runner.free() == 0
        assert entered == []


def test_a_slot_takes_a_thread_until_its_handler_ends() -> None:
    """The next one need not wait for its settlement; but of those that wait for that, there is a
    bound.
    """
    with Rig(sync(lambda ctx: None), capacity=2) as rig:
        holdings = [rig.hold(instance=str(number)) for number in range(UNSETTLED)]
        assert rig.runner.free() == 0
        for holding in holdings[:-1]:
            holding.end()
        assert rig.runner.free() == 1
        holdings[-1].end()
        assert rig.runner.free() == 0
        rig.active_claims.remove([holdings[0].claim])
        assert rig.runner.free() == 1


def _refused(claim: object) -> bool:
    return False


def _unacknowledged(claim: object) -> bool:
    raise OSError("the connection broke before the answer")


@pytest.mark.parametrize(
    ("mark", "reason"),
    [(_refused, "mark_refused"), (_unacknowledged, "mark_not_acknowledged")],
    ids=["zero rows", "no reply"],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_job_that_gives_up_starts_only_under_its_mark(
    is_async: bool, mark: Callable[[object], bool], reason: str
) -> None:
    """Committed and acknowledged; otherwise the handler is not entered."""
    entered: list[object] = []

    async def later(ctx: JobContext) -> None:
        entered.append(ctx)

    handler = later if is_async else entered.append
    subject = job(name="job", schedule=HOURLY, on_lost="give_up")(handler)  # type: ignore[arg-type]
    with Rig(subject, mark=mark) as rig:
        assert rig.run() == HandedBack(reason)
    assert entered == []


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize(
    "stored",
    [b"slotwise/json/2\n1", b"slotwise/nonesuch/1\n1"],
    ids=["version", "codec"],
)
@pytest.mark.parametrize("is_job", [False, True], ids=["task", "job"])
def test_what_a_newer_release_has_written_is_left_to_it(
    is_async: bool, stored: bytes, is_job: bool
) -> None:
    """The handler is not called, and no attempt is used up."""
    entered: list[object] = []

    async def later(ctx: object) -> None:
        entered.append(ctx)

    handler: Any = later if is_async else entered.append
    subject = (
        job(name="mail", schedule=HOURLY)(handler)
        if is_job
        else task(name="mail")(handler)
    )
    with Rig(subject) as rig:
        outcome = rig.run(
            "mail", task_data=stored, **({} if is_job else {"schedule": None})
        )
    assert isinstance(outcome, HandedBack)
    assert (outcome.reason, outcome.error is None, entered) == ("newer", False, [])


def test_what_a_handler_cannot_read_itself_is_its_failure() -> None:
    """It has started: the attempt counts."""

    def read(ctx: TaskContext[None]) -> None:
        plain(b"slotwise/nonesuch/1\n1")

    with Rig(task(name="mail")(read)) as rig:
        assert isinstance(rig.run("mail", schedule=None), Failed)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize(
    "passed", [0, 51, 60], ids=["taken over", "little lease left", "no lease left"]
)
def test_a_mark_that_took_long_starts_nothing(passed: int, is_async: bool) -> None:
    """Law 6: the mark was set, and meanwhile the claim became one that this worker no longer
    believes in.
    """
    entered, clock = list[object](), ManualClock(NOON)

    async def later(ctx: JobContext) -> None:
        entered.append(ctx)

    def mark(claim: Claim) -> bool:
        clock.tick(timedelta(seconds=passed))
        if not passed:
            (holding,) = rig.active_claims
            holding.lose()  # a heartbeat was refused
        return True

    handler = later if is_async else entered.append
    subject = job(name="job", schedule=HOURLY, on_lost="give_up")(handler)  # type: ignore[arg-type]
    with Rig(subject, mark=mark, stopwatch=clock.elapsed) as rig:
        assert rig.run(lease=timedelta(seconds=60)) == HandedBack("suspect")
    assert entered == []


def test_setting_the_mark_does_not_block_the_loop() -> None:
    """It asks the database; meanwhile the other coroutines go on."""
    gate = Gate()
    strict = job(name="strict", schedule=HOURLY, on_lost="give_up")(_nothing)

    def mark(claim: object) -> bool:
        gate.pass_through()
        return True

    with Rig(strict, asynchronous(lambda ctx: None), mark=mark) as rig:
        rig.start("strict")
        gate.wait_entered()
        assert rig.run("job") == Succeeded()
        gate.open()
        assert rig.end() == Succeeded()


def test_a_claim_that_was_given_back_meanwhile_does_not_start() -> None:
    """Race: the lease watch takes it out of the queue while its mark is being set."""
    gate, entered = Gate(), []

    def mark(claim: object) -> bool:
        gate.pass_through()
        return True

    with Rig(
        job(name="job", schedule=HOURLY, on_lost="give_up")(entered.append), mark=mark
    ) as rig:
        holding = rig.start()
        gate.wait_entered()
        assert holding.end(unstarted=True)
        gate.open()
        assert rig.end() == HandedBack("queued")
        assert not holding.started
    assert entered == []


def test_a_loop_that_is_gone_loses_no_claim(caplog: pytest.LogCaptureFixture) -> None:
    """It stays in the holdings, not started: the lease watch gives it back. The poller goes on."""
    rig = Rig(asynchronous(lambda ctx: None))
    holding = rig.start()
    assert not holding.started
    assert holding.end(unstarted=True)
    assert (
        "job cannot start: the event loop has not been started, or has ended"
        in caplog.text
    )


# -- being told to stop ---------------------------------------------------------------------------


def test_a_handler_that_listens() -> None:
    """ctx.wait ends at once, ctx.check raises, and the attempt was aborted for the reason that was
    given.
    """
    gate = Gate()

    def body(ctx: JobContext) -> None:
        gate.pass_through()
        assert ctx.wait(timedelta(seconds=PATIENCE))
        assert (ctx.cancelled, ctx.cancel_reason) == (True, "operator")
        ctx.check()

    with Rig(sync(body)) as rig:
        holding = rig.start()
        gate.wait_entered()
        assert holding.signal.set("operator")
        assert not holding.signal.set("shutdown")  # the first reason stays
        gate.open()
        assert rig.end() == Aborted("operator")


def test_a_handler_that_ends_well_all_the_same() -> None:
    """It was asked to stop, and had finished: success."""
    gate = Gate()
    with Rig(sync(lambda ctx: gate.pass_through())) as rig:
        holding = rig.start()
        gate.wait_entered()
        holding.signal.set("shutdown")
        gate.open()
        assert rig.end() == Succeeded()


@pytest.mark.parametrize(
    "word", [Snooze("10m"), Cancel("not today")], ids=["Snooze", "Cancel"]
)
def test_no_word_of_a_handler_undoes_its_timeout(word: Exception) -> None:
    """It had its time, and has failed: it can neither be tried later for that, nor be called
    off.
    """
    gate = Gate()

    def body(ctx: JobContext) -> None:
        gate.pass_through()
        raise word

    with Rig(sync(body)) as rig:
        holding = rig.start()
        gate.wait_entered()
        holding.signal.set("timeout")
        gate.open()
        assert rig.end() == Failed("timed out", reason="timeout")


def test_a_runner_that_forgets_timeouts_is_found_out() -> None:
    """The test above is trusted after it has failed."""
    with always(outcomes.timed_out, None).at_large(), pytest.raises(AssertionError):
        test_no_word_of_a_handler_undoes_its_timeout(Snooze("10m"))


@BOTH
def test_what_was_told_to_stop_before_it_began_does_not_begin(
    make: Callable[[Handler], object],
) -> None:
    """An operator is faster than the queue."""
    entered: list[object] = []
    with Rig(make(entered.append)) as rig:
        holding = rig.hold()
        holding.signal.set("operator")
        rig.runner.start([holding])
        assert rig.end() == HandedBack("operator")
    assert entered == []


def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    """A handler may raise what it likes; without a signal it is not ours."""
    with Rig(sync(raising(JobCancelled("mine")))) as rig:
        outcome = rig.run()
        assert isinstance(outcome, Failed)


def test_a_coroutine_is_cancelled() -> None:
    """Wherever it waits."""
    entered = threading.Event()

    async def body(ctx: JobContext) -> None:
        entered.set()
        await asyncio.get_running_loop().create_future()

    with Rig(job(name="job", schedule=HOURLY)(body)) as rig:
        holding = rig.start()
        assert entered.wait(PATIENCE)
        holding.signal.set("lost")
        assert rig.end() == Aborted("lost")


def test_a_signal_before_the_coroutine_has_begun() -> None:
    """It does not begin."""
    gate, entered = Gate(), []

    async def blocking(ctx: JobContext) -> None:
        gate.pass_through()  # blocks the loop, on purpose

    async def body(ctx: JobContext) -> None:
        entered.append(ctx)

    with Rig(
        task(name="blocking")(blocking), job(name="job", schedule=HOURLY)(body)
    ) as rig:
        rig.start("blocking")
        gate.wait_entered()
        rig.start("job").signal.set("operator")
        gate.open()
        assert {type(rig.end()), type(rig.end())} == {Succeeded, HandedBack}
    assert entered == []


def test_a_coroutine_that_ignores_its_cancellation_has_not_ended() -> None:
    """Its claim stays held, and its outcome is what it comes to in the end."""
    entered, go = threading.Event(), asyncio.Event()

    async def stubborn(ctx: JobContext) -> str:
        while not go.is_set():
            entered.set()
            try:
                await go.wait()
            except asyncio.CancelledError:
                deaf.set()
        return "well"

    deaf = threading.Event()
    with Rig(
        job(name="job", schedule=HOURLY)(stubborn), task(name="next")(_nothing)
    ) as rig:
        holding = rig.start()
        assert entered.wait(PATIENCE)
        holding.signal.set("shutdown")
        assert deaf.wait(PATIENCE)
        assert (
            rig.run("next") == Succeeded()
        )  # the loop is free, and the other has not ended
        assert rig.loop._loop is not None
        rig.loop._loop.call_soon_threadsafe(go.set)
        assert rig.end() == Succeeded()


def test_a_host_that_cancels_all_its_tasks_does_not_end_an_attempt() -> None:
    """While the handler has not ended, neither has the attempt: another must not start beside
    it.
    """
    entered, deaf, go = threading.Event(), threading.Event(), asyncio.Event()

    async def stubborn(ctx: JobContext) -> None:
        entered.set()
        try:
            await go.wait()
        except asyncio.CancelledError:
            deaf.set()
            await go.wait()

    with Rig(
        job(name="job", schedule=HOURLY)(stubborn), task(name="next")(_nothing)
    ) as rig:
        rig.start()
        assert entered.wait(PATIENCE)
        loop = rig.loop._loop
        assert loop is not None

        async def cancel_all() -> None:
            for each in asyncio.all_tasks() - {asyncio.current_task()}:
                if "Runner" in repr(each):
                    each.cancel()

        asyncio.run_coroutine_threadsafe(cancel_all(), loop).result(PATIENCE)
        assert deaf.wait(PATIENCE)
        assert rig.run("next") == Succeeded()
        loop.call_soon_threadsafe(go.set)
        assert rig.end() == Succeeded()


# -- interceptors ---------------------------------------------------------------------------------


@BOTH
def test_interceptors_are_around_the_handler(
    make: Callable[[Handler], object],
) -> None:
    """The first is the outermost, and each sees the context."""
    seen: list[str] = []

    def around(name: str) -> Callable[[JobContext], Any]:
        @contextmanager
        def interceptor(ctx: JobContext) -> Iterator[None]:
            seen.append(f"{name} in {ctx.name}")
            yield
            seen.append(f"{name} out")

        return interceptor

    with Rig(
        make(lambda ctx: seen.append("handler")),
        interceptors=(around("a"), around("b")),
    ) as rig:
        assert rig.run() == Succeeded()
    assert seen == ["a in job", "b in job", "handler", "b out", "a out"]


@contextmanager
def _swallowing(ctx: JobContext) -> Iterator[None]:
    with suppress(ValueError):
        yield


@contextmanager
def _failing(ctx: JobContext) -> Iterator[None]:
    raise OSError("not today")
    yield


@BOTH
def test_an_interceptor_may_swallow_an_error(
    make: Callable[[Handler], object],
) -> None:
    """Then the attempt has succeeded."""
    with Rig(make(raising(ValueError())), interceptors=(_swallowing,)) as rig:
        assert rig.run() == Succeeded()


@BOTH
def test_an_interceptor_that_fails_is_a_failure(
    make: Callable[[Handler], object],
) -> None:
    """And the handler is not entered."""
    entered: list[object] = []
    with Rig(make(entered.append), interceptors=(_swallowing, _failing)) as rig:
        outcome = rig.run()
        assert isinstance(outcome, Failed)
        assert outcome.error.endswith("OSError: not today")
    assert entered == []


# -- the error's text -----------------------------------------------------------------------------


def test_an_errors_text_fits_the_ledger() -> None:
    """The newest lines remain, after the one that names the error; nothing is in it that a
    database refuses.
    """
    try:
        raise ValueError("x" * 100_000 + "\x00\ud800 end")
    except ValueError as error:
        text = error_text(error)
    assert len(text.encode()) <= ERROR_LIMIT
    assert text.startswith("ValueError: xxx")
    assert text.endswith(" end")
    assert "left out" in text
    assert "\x00" not in text
    text.encode()


def test_an_error_that_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is told by its name: the claim must not stay held because of it."""
    with (
        Rig(sync(raising(ValueError("boom")))) as rig,
        monkeypatch.context() as broken,
    ):
        broken.setattr(traceback, "format_exception", lambda error: 1 / 0)
        outcome = rig.run()
    assert isinstance(outcome, Failed)
    assert outcome.error == "ValueError"
