"""Run handlers: context, start, outcome and result of each attempt, and how far to claim ahead of free threads."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.engine.run.child_process import Isolation
from slotwise.engine.run.executors import EventLoop, Threads
from slotwise.errors import InvalidPayload, InvalidSchedule, JobCancelled
from slotwise.jobs.context import Cancel, Fail, JobContext, Snooze, Steering, TaskContext
from slotwise.jobs.definition import Definition
from slotwise.model.clock import Stopwatch, elapsed
from slotwise.model.durations import format_duration
from slotwise.model.error_text import error_summary
from slotwise.model.events import HandlerEnded, HandlerStarted, Listeners, about
from slotwise.model.records import (
    SUCCEEDED,
    Aborted,
    AttemptOutcome,
    Cancelled,
    Claim,
    Failed,
    FollowUps,
    HandedBack,
    Snoozed,
    Succeeded,
)
from slotwise.model.vocabulary import LossPolicy, Reason
from slotwise.payload.converters import ANYTHING, Misfit, shape_of
from slotwise.payload.payload import JSON
from slotwise.store.slots.claims import BATCH
from slotwise.store.slots.store import LedgerFence, Store

logger = logging.getLogger(__name__)


#: Tasks claimed ahead should start within this time, in seconds: enough for the next claim to return.
AHEAD = 0.1
#: At most this many are claimed ahead: a batch being claimed, one that runs, and one being settled.
MOST_AHEAD = 3 * BATCH
#: Seconds, at least, over which ends are counted. They come in lumps, one per settlement; several must fit.
RATE_WINDOW = 0.1


class Prefetch:
    """Measure how fast attempts end, and derive how many more will start within ``AHEAD``.

    The lower rate of the last two windows counts: ten handlers of one second each that end in the same millisecond do
    not mean that ten more will end in the next.
    """

    def __init__(self, margin: timedelta, elapsed: Stopwatch) -> None:
        """``margin``: a claim that could not start for this long is handed back."""
        self._ahead = min(AHEAD, margin.total_seconds() / 4)
        self._elapsed = elapsed
        self._at = elapsed()
        self._ended = 0
        self._rates = (0.0, 0.0)

    def ahead(self, ended: int) -> int:
        """Return how many claims may wait for a thread; ``ended``: number of attempts that have ended so far."""
        now = self._elapsed()
        if (passed := now - self._at) >= RATE_WINDOW:
            self._rates = (self._rates[1], (ended - self._ended) / passed)
            self._at, self._ended = now, ended
        return min(int(min(self._rates) * self._ahead), MOST_AHEAD)

    @staticmethod
    def worth_claiming(ahead: int) -> int:
        """Return the smallest batch worth a claim; there is room for it soon."""
        return min(ahead // 2, BATCH) if ahead >= BATCH else 0


class Contexts:
    """Make the contexts of a worker's attempts. ``state`` returns the state of the lifespan."""

    def __init__(self, store: Store, client: Any, state: Callable[[], Any], stopping: Callable[[], bool]) -> None:
        self._store = store
        self._client = client
        self._state = state
        self._stopping = stopping
        self._fence = LedgerFence(store)

    def make(self, holding: Holding) -> JobContext:
        row = holding.claim.row
        schedule = None
        if row.schedule:
            with suppress(InvalidSchedule):  # written by a newer release: this slot still runs
                schedule = self._store.schedule_of(row).running
        definition = self._store.definitions[row.task_name]
        return (JobContext if definition.is_job else TaskContext)(
            holding,
            fence=self._fence,
            schedule=schedule,
            read=definition.payload.decode,
            client=self._client,
            state=self._state(),
            stopping=self._stopping,
        )


#: The largest result, in bytes; store a larger one elsewhere and return its key.
RESULT_LIMIT = 65_536


def kept(result: object, definition: Definition, sequel: FollowUps | None) -> FollowUps:
    """Return the follow-ups with the result, if the task keeps results.

    A result that cannot be kept is reported, and the task still succeeds: a retry would not help.
    """
    sequel = sequel or FollowUps()
    if definition.result_retention is not None:
        try:
            sequel.result = encoded(result)
        except InvalidPayload as error:
            sequel.problem = str(error)
    return sequel


def encoded(result: object) -> bytes:
    """Return a result as JSON: plain values, dataclasses, models. Raise InvalidPayload with the reason."""
    kind: Any = type(result)
    try:
        shape = ANYTHING if isinstance(result, dict | list | tuple) else shape_of(kind)
        plain = shape.write(result)
        body = JSON.encode(plain)
    except (Misfit, TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"the result is not kept: it cannot be written as JSON: {error}") from None
    except InvalidPayload:
        raise InvalidPayload(f"the result is not kept: {type(result).__name__} cannot be written as JSON") from None
    if len(body) > RESULT_LIMIT:
        raise InvalidPayload(f"the result is not kept: it has {len(body)} bytes, at most {RESULT_LIMIT} are allowed")
    return body


#: The longest error text in the ledger, in characters.
ERROR_LIMIT = 16_384
#: Frames of this file at the top of a traceback are left out.
_RUNNER = __file__


def returned(result: object, holding: Holding, definition: Definition) -> AttemptOutcome:
    if result is not None:
        if isinstance(result, Steering):
            word = type(result).__name__
            return Failed(
                f"the handler returned {result!r}, which has no effect; raise it: `raise {word}(…)`", final=True
            )
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            return Failed("the handler returned a coroutine that nobody awaited; declare it `async def`", final=True)
    if holding.unawaited is not None:
        word = f"ctx.{holding.unawaited}"
        return Failed(
            f"{word} was given an async connection and nobody awaited it; write `await {word}(…)`", final=True
        )
    if definition.leaves_traces:
        holding.sequel = kept(result, definition, holding.sequel)
    elif holding.stop_reason is None and not holding.promised and holding.sequel is None:
        return SUCCEEDED
    return timed_out(holding, definition) or Succeeded(promised=holding.promised, sequel=holding.sequel)


def timed_out(holding: Holding, definition: Definition) -> AttemptOutcome | None:
    """Return the failure of an attempt that timed out, even if its handler returned after that, else None."""
    if holding.stop_reason != Reason.TIMEOUT:
        return None
    said = f"timed out after {format_duration(definition.timeout)}" if definition.timeout else "timed out"
    return Failed(said, promised=holding.promised)


def raised(error: BaseException, holding: Holding, definition: Definition) -> AttemptOutcome:
    reason = holding.stop_reason
    if reason is not None and isinstance(error, JobCancelled | asyncio.CancelledError):
        return timed_out(holding, definition) or Aborted(reason)
    match error:
        case Snooze(duration=duration):
            return timed_out(holding, definition) or Snoozed(duration)
        case Cancel(reason=said):
            return timed_out(holding, definition) or Cancelled(storable(said))
        case Fail(reason=said):
            return Failed(storable(said), final=True, promised=holding.promised)
    try:
        text = error_text(error)
    except Exception:  # any exception must end the claim, even one whose traceback cannot be formatted
        text = type(error).__name__
    final = definition.retry is not None and not definition.retry.retries(error)
    return Failed(text, exception=error, final=final, promised=holding.promised)


#: One entry per fork between the first process and this one. Asking the system for a process id takes as long as
#: everything else around a short handler.
_forks: list[None] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks.append(None))


def descent() -> int:
    """Return a number that differs between a process and its forks."""
    return len(_forks)


def leave_fork(origin: int, outcome: AttemptOutcome) -> None:
    """End a fork that a handler made and that returns from the handler as well.

    The attempt belongs to the parent, so the child exits here, with the status that Python would give it. All other
    threads are in the parent. ``origin``: the ``descent`` before the handler started.
    """
    if descent() == origin:
        return
    error = outcome.exception if isinstance(outcome, Failed) else None
    status = int(isinstance(outcome, Failed))
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif isinstance(outcome, Failed):
        print(outcome.error, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def error_text(error: BaseException) -> str:
    """Return the traceback from the handler on, as it is stored; the last line names the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == _RUNNER:
        trace = trace.tb_next
    return storable("".join(traceback.format_exception(type(error), error, trace)))


def storable(said: object) -> str:
    """Return text that a database can store: NUL and lone surrogates escaped, cut in the middle if too long."""
    text = str(said).replace("\x00", "\\x00").strip().encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= ERROR_LIMIT:
        return text
    half = ERROR_LIMIT // 2
    return f"{text[:half]}\n… {len(text) - ERROR_LIMIT} characters left out …\n{text[-half:]}"


Interceptor: TypeAlias = Callable[[JobContext], AbstractContextManager[Any]]
MakeContext: TypeAlias = Callable[[Holding], JobContext]
OnEnd: TypeAlias = Callable[[Holding, AttemptOutcome], None]


#: How long idle threads may take to end.
FAREWELL = timedelta(milliseconds=200)


class Runner:
    """Run held claims, never more than ``capacity`` at once, counted until each is settled."""

    def __init__(
        self,
        *,
        capacity: int,
        definitions: Mapping[str, Definition],
        active_claims: ActiveClaims,
        listeners: Listeners,
        mark_running: Callable[[Claim], bool],
        make_context: MakeContext,
        on_end: OnEnd,
        margin: timedelta,
        watch: Callable[[Holding, timedelta], None] = lambda holding, timeout: None,
        loop: EventLoop | None = None,
        interceptors: tuple[Interceptor, ...] = (),
        isolation: Isolation | None = None,
    ) -> None:
        self.capacity = capacity
        self._definitions = definitions
        self._active_claims = active_claims
        self._listeners = listeners
        self._mark_running = mark_running
        self._make_context = make_context
        self._on_end = on_end
        self._margin = margin.total_seconds()
        self._watch = watch
        self._loop = loop
        self._interceptors = interceptors
        self._isolation = isolation
        self._threads = Threads(capacity)
        self._prefetch = Prefetch(margin, active_claims.elapsed)
        known = definitions.values()
        #: A give-up task has no start mark: if this process dies, each one that it holds ends dead, started or not.
        self.claims_for_free_threads = any(found.gives_up and not found.is_job for found in known)
        # The loop starts every claim at once. So with async handlers, no more is claimed than may run.
        self._runs_ahead = not (
            self.claims_for_free_threads or any(found.is_async or found.isolation for found in known)
        )
        self._draining = False
        #: There is room for some tasks, and soon for a whole batch: the poller waits for that.
        self.fills_up = False
        self._is_loud = True

    def free(self) -> int:
        """Return how many more slots can start now. A slot counts until it is settled, a task while it runs."""
        if self._draining:
            return 0
        slots = self._active_claims.slots()
        if self._runs_ahead:
            running = sum(holding.started and not holding.ended for holding in slots)
            occupied = len(slots) + max(self._threads.busy - running, 0)
        else:
            occupied = len(self._active_claims)
        return max(self.capacity - occupied, 0)

    def free_for_tasks(self) -> int:
        """Return how many more one-time tasks can start soon, or now if one of them is a give-up task.

        Each counts until it is settled.
        """
        if self._draining:
            return 0
        ahead = self._prefetch.ahead(self._active_claims.removed) if self._runs_ahead else 0
        room = max(self.capacity + ahead - len(self._active_claims), 0)
        self.fills_up = room < self._prefetch.worth_claiming(ahead)
        return 0 if self.fills_up else room

    def start(self, held: Iterable[Holding], *, first: bool = False) -> None:
        """Run the handlers of these claims; ``on_end`` gets the outcome of each. ``first``: before waiting ones.

        Without a free thread or a loop a claim waits, and is handed back when it has waited too long.
        """
        self._is_loud = self._listeners.hear(HandlerStarted) or self._listeners.hear(HandlerEnded)
        work: list[Callable[[], None]] = []
        for holding in held:
            definition = self._definitions[holding.claim.row.task_name]
            if self._draining:
                self._on_end(holding, HandedBack(Reason.SHUTDOWN))
            elif definition.isolation and self._isolation is not None:
                work.append(partial(self._run_isolated, self._isolation, holding, definition))
            elif definition.is_async and self._loop is not None:
                self._start_async(self._loop, holding, definition)
            else:
                work.append(partial(self._run, holding, definition))
        self._threads.submit_all(work, first=first)

    def _start_async(self, loop: EventLoop, holding: Holding, definition: Definition) -> None:
        try:
            loop.submit(self._run_async(holding, definition))
        except RuntimeError as error:
            logger.warning("%s cannot start: %s", definition.name, error)

    def report_to(self, on_end: OnEnd) -> None:
        """Report outcomes to ``on_end`` from now on."""
        self._on_end = on_end

    def drain(self) -> None:
        """Start nothing from now on; claims that have not started are handed back."""
        self._draining = True

    def close(self) -> None:
        """Let the threads end; a handler that still runs is left behind."""
        self._threads.close()
        self._threads.join(FAREWELL)

    # -- one attempt ------------------------------------------------------------------------------------------

    def _run(self, holding: Holding, definition: Definition) -> None:
        try:
            outcome = self._refusal(holding, definition) or self._attempt(holding, definition)
        except BaseException as error:  # after any error, the claim must end
            outcome = raised(error, holding, definition)
        self._on_end(holding, outcome)

    def _run_isolated(self, isolation: Isolation, holding: Holding, definition: Definition) -> None:
        """Run an attempt in a child, which sets the start mark of a give-up job itself."""
        begun: list[float | None] = []
        try:
            outcome = self._refusal(holding, replace(definition, on_lost=LossPolicy.RERUN))
            if outcome is None:
                outcome = isolation.run(
                    holding, lambda: begun.append(self._began(holding, definition)), lambda: self._draining
                )
                outcome = timed_out(holding, definition) or outcome
        except BaseException as error:
            outcome = raised(error, holding, definition)
        if begun:
            self._ended(holding, outcome, begun[0])
        self._on_end(holding, outcome)

    async def _run_async(self, holding: Holding, definition: Definition) -> None:
        try:
            outcome = await self._refusal_async(holding, definition) or await self._attempt_async(holding, definition)
        except BaseException as error:
            outcome = raised(error, holding, definition)
        self._on_end(holding, outcome)

    async def _refusal_async(self, holding: Holding, definition: Definition) -> AttemptOutcome | None:
        """Return the refusal. Only the start mark of a give-up job uses the database; that must not block the loop."""
        if not definition.gives_up:
            return self._refusal(holding, definition)
        return await asyncio.wrap_future(self._threads.call(lambda: self._refusal(holding, definition)))

    def _refusal(self, holding: Holding, definition: Definition) -> AttemptOutcome | None:
        """Return why this claim must not start, or None; set the start mark of a give-up job in the ledger."""
        if self._draining:
            return HandedBack(Reason.SHUTDOWN)
        if (doubt := holding.doubt(self._margin)) is not None:
            return HandedBack(doubt)  # another worker may have a free thread
        if _is_called_off(holding.claim):
            return HandedBack(Reason.OPERATOR)  # cancelled while it waited for its retry
        if (reason := holding.stop_reason) is not None:
            return HandedBack(reason)
        if definition.gives_up:
            try:
                if not self._mark_running(holding.claim):
                    return HandedBack(Reason.MARK_REFUSED)
            except Exception:
                # Race: the mark may or may not be committed. Without its acknowledgement nothing starts.
                return HandedBack(Reason.MARK_NOT_ACKNOWLEDGED)
            if holding.doubt(self._margin) == Reason.SUSPECT:
                return HandedBack(Reason.SUSPECT)
        # Race: it may have been handed back just now, because it waited too long.
        return None if holding.begin() else HandedBack(Reason.QUEUED)

    def _attempt(self, holding: Holding, definition: Definition) -> AttemptOutcome:
        ctx, unreadable = self._prepare(holding)
        if unreadable is not None:
            return unreadable
        begun, origin = self._began(holding, definition), descent()
        try:
            if self._interceptors:
                result: object = None  # the result if an interceptor swallows the handler's error
                with self._intercepted(ctx):
                    result = definition.handler(ctx)
            else:
                result = definition.handler(ctx)
            outcome = returned(result, holding, definition)
        except BaseException as error:
            outcome = raised(error, holding, definition)
        leave_fork(origin, outcome)
        self._ended(holding, outcome, begun)
        return outcome

    async def _attempt_async(self, holding: Holding, definition: Definition) -> AttemptOutcome:
        ctx, unreadable = self._prepare(holding)
        if unreadable is not None:
            return unreadable
        begun = self._began(holding, definition)
        task = asyncio.create_task(self._call_async(ctx, definition, holding))
        loop = asyncio.get_running_loop()
        holding.signal.on_set(lambda: _cancel(loop, task))
        while not task.done():
            try:
                await asyncio.wait([task])  # awaiting the task itself would mix up its cancellation with ours
            except asyncio.CancelledError:
                if not task.cancelling():  # the host ends; the attempt lasts until the handler ends
                    task.cancel()
        outcome = raised(asyncio.CancelledError(), holding, definition) if task.cancelled() else task.result()
        self._ended(holding, outcome, begun)
        return outcome

    async def _call_async(self, ctx: JobContext, definition: Definition, holding: Holding) -> AttemptOutcome:
        """Return the outcome as a value: a SystemExit that leaves a task would end the loop with all its tasks."""
        origin = descent()
        try:
            with self._intercepted(ctx):
                result: object = None
                handler: Any = definition.handler(ctx)
                result = await handler
            outcome = returned(result, holding, definition)
        except BaseException as error:
            outcome = raised(error, holding, definition)
        leave_fork(origin, outcome)
        return outcome

    @contextmanager
    def _intercepted(self, ctx: JobContext) -> Iterator[None]:
        with ExitStack() as stack:
            for interceptor in self._interceptors:
                stack.enter_context(interceptor(ctx))
            yield

    def _prepare(self, holding: Holding) -> tuple[JobContext, AttemptOutcome | None]:
        """Return the context, and a final failure where the stored data cannot be read."""
        ctx = self._make_context(holding)
        try:
            _ = ctx.data
        except InvalidPayload as error:
            return ctx, Failed(str(error), final=True)
        return ctx, None

    def _began(self, holding: Holding, definition: Definition) -> float | None:
        if definition.timeout is not None:
            self._watch(holding, definition.timeout)
        if not self._is_loud:
            return None
        self._listeners.publish(HandlerStarted(**about(holding.claim)))
        return elapsed()

    def _ended(self, holding: Holding, outcome: AttemptOutcome, begun: float | None) -> None:
        if begun is None:
            return
        error = error_summary(outcome.error) if isinstance(outcome, Failed) and outcome.error else None
        took = timedelta(seconds=elapsed() - begun)
        self._listeners.publish(HandlerEnded(**about(holding.claim), outcome=outcome.name, error=error, took=took))


def _is_called_off(claim: Claim) -> bool:
    """Whether an operator, or a newer slot, had cancelled the slot before this claim."""
    return claim.row.cancel_requested is not None


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Future[Any]) -> None:
    """Cancel the task on its loop. Race: the loop may be closed by now; then the task is gone too."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(task.cancel)
