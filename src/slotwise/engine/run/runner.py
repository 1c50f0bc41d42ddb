"""Where handlers run: ``def`` on a thread, ``async def`` on the one event loop. The end of each is a value."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.engine.run.child_process import Isolation
from slotwise.engine.run.event_loop import EventLoop
from slotwise.engine.run.outcomes import descent, leave_fork, raised, returned, timed_out
from slotwise.engine.run.prefetch import Prefetch
from slotwise.engine.run.threads import Threads
from slotwise.errors import InvalidPayload
from slotwise.jobs.context import JobContext
from slotwise.jobs.definition import Definition
from slotwise.model.clock import elapsed
from slotwise.model.error_summary import error_summary
from slotwise.model.events import HandlerEnded, HandlerStarted, Listeners, about
from slotwise.model.records import AttemptOutcome, Claim, Failed, HandedBack
from slotwise.model.vocabulary import LossPolicy, Reason

Interceptor: TypeAlias = Callable[[JobContext], AbstractContextManager[Any]]
MakeContext: TypeAlias = Callable[[Holding], JobContext]
OnEnd: TypeAlias = Callable[[Holding, AttemptOutcome], None]

logger = logging.getLogger(__name__)

#: How long idle threads may take to end.
FAREWELL = timedelta(milliseconds=200)


class Runner:
    """Runs held claims; never more than ``capacity`` at once, counted until each is settled."""

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
        #: A task that gives up has no mark: if this process dies, each that it holds ends dead, started or not.
        self.claims_for_free_threads = any(found.gives_up and not found.is_job for found in known)
        # On the loop, all that is claimed is started; so where it runs handlers, no more is claimed than may run.
        self._runs_ahead = not (
            self.claims_for_free_threads or any(found.is_async or found.isolation for found in known)
        )
        self._draining = False
        #: There is room for tasks, and soon for a whole batch of them: who claims waits for that.
        self.fills_up = False
        self._is_loud = True

    def free(self) -> int:
        """How many more slots can start at once. One counts until it is settled, a task while it runs."""
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
        """How many more one-time tasks can start: within a moment, or at once where one of them gives up.

        Each counts until it is settled.
        """
        if self._draining:
            return 0
        ahead = self._prefetch.ahead(self._active_claims.removed) if self._runs_ahead else 0
        room = max(self.capacity + ahead - len(self._active_claims), 0)
        self.fills_up = room < self._prefetch.worth_claiming(ahead)
        return 0 if self.fills_up else room

    def start(self, held: Iterable[Holding], *, first: bool = False) -> None:
        """Run the handlers of these claims; ``on_end`` is called with how each ended. ``first``: before what waits.

        Where no thread, or no loop, can be had, the claim waits, and goes back when it has waited too long.
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
        """From now on tell this one how attempts ended."""
        self._on_end = on_end

    def drain(self) -> None:
        """From now on nothing new starts; what has been claimed and not started goes back."""
        self._draining = True

    def close(self) -> None:
        """Let the threads end; a handler that still runs is left behind."""
        self._threads.close()
        self._threads.join(FAREWELL)

    # -- one attempt ------------------------------------------------------------------------------------------

    def _run(self, holding: Holding, definition: Definition) -> None:
        try:
            outcome = self._refusal(holding, definition) or self._attempt(holding, definition)
        except BaseException as error:  # whatever it was, the claim must not stay held without an end
            outcome = raised(error, holding, definition)
        self._on_end(holding, outcome)

    def _run_isolated(self, isolation: Isolation, holding: Holding, definition: Definition) -> None:
        """In a child, which sets the mark itself where the job gives up: it is the one that starts the handler."""
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
        """Only the mark of a job that gives up talks to the database: that must not block the loop."""
        if not definition.gives_up:
            return self._refusal(holding, definition)
        return await asyncio.wrap_future(self._threads.call(lambda: self._refusal(holding, definition)))

    def _refusal(self, holding: Holding, definition: Definition) -> AttemptOutcome | None:
        """Right before the start: may this claim still start? A job that gives up says so first, in the ledger."""
        if self._draining:
            return HandedBack(Reason.SHUTDOWN)
        if (doubt := holding.doubt(self._margin)) is not None:
            return HandedBack(doubt)  # also if it waited for long: somebody else may have a thread for it right now
        if _is_called_off(holding.claim):
            return HandedBack(Reason.OPERATOR)  # called off while it waited for its retry
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
        # Race: it may have waited so long that it was given back just now.
        return None if holding.begin() else HandedBack(Reason.QUEUED)

    def _attempt(self, holding: Holding, definition: Definition) -> AttemptOutcome:
        ctx, unreadable = self._prepare(holding)
        if unreadable is not None:
            return unreadable
        begun, origin = self._began(holding, definition), descent()
        try:
            if self._interceptors:
                result: object = None  # what stays of a handler whose error an interceptor swallows
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
                await asyncio.wait([task])  # not awaited itself: its cancellation is not ours
            except asyncio.CancelledError:
                if not task.cancelling():  # the host ends; while the handler does not, neither has the attempt
                    task.cancel()
        outcome = raised(asyncio.CancelledError(), holding, definition) if task.cancelled() else task.result()
        self._ended(holding, outcome, begun)
        return outcome

    async def _call_async(self, ctx: JobContext, definition: Definition, holding: Holding) -> AttemptOutcome:
        """The end is a value in here already: a SystemExit that leaves a task ends the loop, and all tasks with it."""
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
        """The context; and, where the stored data cannot be read, a failure that no further attempt can mend."""
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
    """Whether an operator, or a newer slot, had asked for the slot's end before this claim was made."""
    return claim.row.cancel_requested is not None


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Future[Any]) -> None:
    """Race: the loop may be closed by now; then the task is gone too."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(task.cancel)
