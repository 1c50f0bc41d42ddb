"""Run attempts, on a bounded pool of threads, on the event loop or in a child: context, start and
end of each.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from threading import get_ident
from typing import TypeAlias, cast

from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.engine.run.event_loop import EventLoop
from slotwise.engine.run.hooks import Hooks
from slotwise.engine.run.outcomes import (
    LeftAlone,
    Unfit,
    forks,
    leave_fork,
    raised,
    returned,
    timed_out,
)
from slotwise.engine.run.threads import Threads, Work
from slotwise.engine.run.tuning import FAREWELL, UNSETTLED
from slotwise.errors import InvalidPayload, NewerPayload
from slotwise.jobs.context import Context, JobContext, TaskContext
from slotwise.jobs.definition import Definition
from slotwise.model.error_text import error_summary
from slotwise.model.events import (
    BatchSettled,
    HandlerEnded,
    HandlerStarted,
    Listeners,
    about,
)
from slotwise.model.records import SUCCEEDED, AttemptOutcome, Claim, Failed, HandedBack
from slotwise.model.vocabulary import Reason
from slotwise.payload.payload import UNTYPED
from slotwise.store.slots.store import LedgerFence, Store

logger = logging.getLogger(__name__)

MakeContext: TypeAlias = Callable[[Holding], Context]
OnEnd: TypeAlias = Callable[[Holding, AttemptOutcome], object]
#: Runs an attempt in a process of its own; calls the second argument when its handler starts, and
#: the third to learn whether the worker drains.
Isolate: TypeAlias = Callable[
    [Holding, Callable[[], None], Callable[[], bool]], AttemptOutcome
]


def context_maker(
    store: Store, client: object, stopping: Callable[[], bool], loop: EventLoop
) -> MakeContext:
    """Return what makes the contexts of a worker's attempts."""
    fence = LedgerFence(store)
    makers = {
        name: partial(
            JobContext if found.is_job else TaskContext,
            fence=fence,
            read=found.payload.decode,
            client=client,
            stopping=stopping,
        )
        for name, found in store.definitions.items()
    }
    return lambda holding: makers[holding.claim.row.task_name](
        holding, state=loop.state
    )


class Runner:
    """Run held claims, never more than ``capacity`` at once."""

    def __init__(
        self,
        *,
        capacity: int,
        definitions: Mapping[str, Definition],
        active_claims: ActiveClaims,
        listeners: Listeners,
        mark_running: Callable[[Claim], bool],
        make_context: MakeContext,
        margin: timedelta,
        loop: EventLoop,
        hooks: Hooks,
        isolate: Isolate | None = None,
    ) -> None:
        self.capacity = capacity
        self._threads = Threads(capacity)
        self._definitions = definitions
        self._active_claims = active_claims
        self._listeners = listeners
        self._mark_running = mark_running
        self._make_context = make_context
        #: Called with the outcome of each attempt, and at the start of each one with a timeout or
        #: a time after which it is reported.
        self.on_end: OnEnd
        self.limit: Callable[[Holding, timedelta | None, timedelta | None], object] = (
            lambda holding, timeout, warn_after: None
        )
        #: A claim that could not start for this long is handed back.
        self.margin = margin
        self._margin = margin.total_seconds()
        self._loop = loop
        self._isolate = isolate
        self._interceptors = hooks.interceptors
        self._before_start = hooks.before_start
        #: Whether one-time tasks may be claimed before a thread is free for them. Not with async
        #: handlers: the loop starts every claim at once.
        self.runs_ahead = not any(
            found.is_async or found.isolation for found in definitions.values()
        )
        #: Nothing starts any more; claims that have not started are handed back.
        self.is_draining = False
        self._is_loud = self._is_timed = True
        #: Names of tasks with a start mark, and of those whose success leaves more than SUCCEEDED.
        #: Looked up for each attempt, without a call. A child process sets its mark itself.
        self._marked = {
            name
            for name, found in definitions.items()
            if found.gives_up and not (isolate and found.isolation)
        }
        self._tracing = {
            name for name, found in definitions.items() if found.leaves_traces
        }

    def free(self) -> int:
        """Return how many more slots can start now. A slot or a task counts until its handler
        ends.

        At most UNSETTLED slots that have ended wait for their settlement.
        """
        if self.is_draining:
            return 0
        slots = self._active_claims.slots()
        ended = sum(holding.ended for holding in slots)
        if self.runs_ahead:
            running = sum(holding.started and not holding.ended for holding in slots)
            busy = len(slots) - ended + max(self._threads.busy - running, 0)
        else:
            busy = len(self._active_claims) - ended
        return max(min(self.capacity - busy, UNSETTLED - ended), 0)

    def start(self, held: Iterable[Holding], *, first: bool = False) -> None:
        """Run the handlers of these claims, or let them wait for a thread. ``first``: before
        waiting ones.
        """
        hear = self._listeners.hear
        self._is_loud = hear(HandlerStarted) or hear(HandlerEnded)
        self._is_timed = self._is_loud or hear(BatchSettled)
        work: list[Work] = []
        for holding in held:
            definition = self._definitions[holding.claim.row.task_name]
            if self.is_draining:
                self.on_end(holding, HandedBack(Reason.SHUTDOWN))
            elif definition.is_async and not (definition.isolation and self._isolate):
                self._submit(holding, definition)
            else:
                work.append(partial(self._run, holding, definition))
        self._threads.submit(*work, first=first)

    def _submit(self, holding: Holding, definition: Definition) -> None:
        try:
            self._loop.submit(self._run_async(holding, definition))
        except RuntimeError as error:
            logger.warning("%s cannot start: %s", definition.name, error)

    def run_here(self, holding: Holding) -> None:
        """Run one attempt to its end: in this thread, or on the loop if it is ``async def``."""
        definition = self._definitions[holding.claim.row.task_name]
        if definition.is_async:
            self._loop.submit(self._run_async(holding, definition)).result()
        else:
            contextvars.copy_context().run(self._run, holding, definition)

    def close(self) -> None:
        """Let the threads end; a handler that still runs is left behind."""
        self._threads.close()
        self._threads.join(FAREWELL)

    # -- one attempt ------------------------------------------------------------------------------

    def _run(self, holding: Holding, definition: Definition) -> None:
        try:
            outcome = self.begin(holding) or self._attempt(holding, definition)
        except BaseException as error:  # after any error, the claim must end
            outcome = raised(error, holding, definition)
        if holding.held is None:
            self.on_end(holding, outcome)
        else:
            self._report(holding, outcome, holding.held)

    async def _run_async(self, holding: Holding, definition: Definition) -> None:
        # What start hooks set in it, they can reset in the end.
        context = contextvars.copy_context()
        try:
            refused = await self._begin_async(context, holding, definition)
            outcome = refused or await self._attempt_async(holding, definition)
        except BaseException as error:
            outcome = raised(error, holding, definition)
        if holding.held is None:
            self.on_end(holding, outcome)
        else:
            self._threads.submit(
                partial(context.run, self._report, holding, outcome, holding.held)
            )

    async def _begin_async(
        self, context: contextvars.Context, holding: Holding, definition: Definition
    ) -> AttemptOutcome | None:
        if not (self._before_start or definition.name in self._marked):
            return self.begin(holding)
        # Start hooks and the start mark wait for something, so they have a thread.
        beginning = partial(context.run, self.begin, holding)
        return await asyncio.wrap_future(self._threads.call(beginning))

    def _report(
        self, holding: Holding, outcome: AttemptOutcome, held: ExitStack
    ) -> None:
        """Give back what start hooks hold, and report the outcome."""
        try:
            held.close()
        except Exception:
            logger.exception(
                "the context manager of a before_start hook failed on exit; the outcome stands"
            )
        self.on_end(holding, outcome)

    def begin(self, holding: Holding) -> AttemptOutcome | None:
        """Call the start hooks, set the start mark of a give-up job, and begin the attempt; return
        why this claim must not start, else None.
        """
        reason = self._refusal(holding)
        if reason is None and (
            self._before_start or holding.claim.row.task_name in self._marked
        ):
            reason = self._enter_start(holding)
        if reason is not None:
            return HandedBack(reason)
        # Race: it may have been handed back just now, because it waited too long.
        return None if holding.begin() else HandedBack(Reason.QUEUED)

    def _refusal(self, holding: Holding) -> str | None:
        if self.is_draining:
            return Reason.SHUTDOWN
        if (doubt := holding.doubt(self._margin)) is not None:
            return doubt  # another worker may have a free thread
        if holding.claim.row.cancel_requested is not None:
            return Reason.OPERATOR  # cancelled while it waited for its retry
        return holding.stop_reason

    def _enter_start(self, holding: Holding) -> str | None:
        """Call the start hooks and set the start mark; return why the attempt must not start, else
        None. If a hook raises, what was entered before stays held.
        """
        if self._before_start:
            ctx = self._make_context(holding)
            holding.held = ExitStack()
            for hook in self._before_start:
                if (held := hook(ctx)) is not None:
                    holding.held.enter_context(held)
        if holding.claim.row.task_name in self._marked:
            reason = self._mark(holding)
            if reason is not None:
                return reason
        is_suspect = holding.doubt(self._margin) == Reason.SUSPECT
        return Reason.SUSPECT if is_suspect else None

    def _mark(self, holding: Holding) -> str | None:
        """Set the start mark; return why the attempt must not start, else None."""
        try:
            return None if self._mark_running(holding.claim) else Reason.MARK_REFUSED
        except Exception:
            # Race: the mark may or may not be committed. Without its acknowledgement nothing
            # starts.
            return Reason.MARK_NOT_ACKNOWLEDGED

    def _attempt(self, holding: Holding, definition: Definition) -> AttemptOutcome:
        if definition.isolation and self._isolate is not None:
            return self._attempt_isolated(self._isolate, holding, definition)
        origin = len(forks)
        ctx = self._prepare(holding, definition)
        begun = self._began(holding, definition)
        holding.runs_in = get_ident()
        try:
            if self._interceptors:
                result = self._intercepted(ctx, definition)
            else:
                result = definition.handler(ctx)
            is_usual = (
                result is None
                and holding.is_plain
                and definition.name not in self._tracing
            )
            outcome = SUCCEEDED if is_usual else returned(result, holding, definition)
        except BaseException as error:
            outcome = raised(error, holding, definition)
        if len(forks) != origin:
            leave_fork(outcome)
        return self._ended(holding, outcome, begun)

    def _intercepted(self, ctx: Context, definition: Definition) -> object:
        with ExitStack() as stack:
            self._enter(stack, ctx)
            return definition.handler(ctx)
        return None  # an interceptor has swallowed the handler's error

    def _attempt_isolated(
        self, isolate: Isolate, holding: Holding, definition: Definition
    ) -> AttemptOutcome:
        starts: list[float | None] = []
        outcome = isolate(
            holding,
            lambda: starts.append(self._began(holding, definition)),
            lambda: self.is_draining,
        )
        begun = starts[0] if starts else None
        return self._ended(holding, timed_out(holding, definition) or outcome, begun)

    async def _attempt_async(
        self, holding: Holding, definition: Definition
    ) -> AttemptOutcome:
        ctx = self._prepare(holding, definition)
        begun = self._began(holding, definition)
        task = asyncio.create_task(self._call_async(ctx, definition, holding))
        holding.runs_in = task
        loop = asyncio.get_running_loop()

        def cancel() -> (
            None
        ):  # race: the loop may be closed by now; then the task is gone, too
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

        holding.signal.on_set(cancel)
        await _finish(task)
        outcome = (
            raised(asyncio.CancelledError(), holding, definition)
            if task.cancelled()
            else task.result()
        )
        return self._ended(holding, outcome, begun)

    async def _call_async(
        self, ctx: Context, definition: Definition, holding: Holding
    ) -> AttemptOutcome:
        """Return the outcome as a value: a SystemExit that leaves a task would end the loop with
        all its tasks.
        """
        origin = len(forks)
        try:
            result: object = None
            with ExitStack() as stack:
                self._enter(stack, ctx)
                result = await cast("Awaitable[object]", definition.handler(ctx))
            outcome = returned(result, holding, definition)
        except BaseException as error:
            outcome = raised(error, holding, definition)
        if len(forks) != origin:
            leave_fork(outcome)
        return outcome

    def _enter(self, stack: ExitStack, ctx: Context) -> None:
        for interceptor in self._interceptors:
            stack.enter_context(interceptor(ctx))

    def _prepare(self, holding: Holding, definition: Definition) -> Context:
        """Return the context. Raise Unfit for stored data that no release can read."""
        ctx = self._make_context(holding)
        if (
            holding.claim.row.task_data is not None
            or definition.payload is not UNTYPED
        ):
            try:
                _ = ctx.data
            except NewerPayload as error:
                raise LeftAlone(str(error)) from error
            except InvalidPayload as error:
                raise Unfit(str(error)) from error
        return ctx

    def _began(self, holding: Holding, definition: Definition) -> float | None:
        if definition.is_timed:
            self.limit(holding, definition.timeout, definition.warn_after)
        if self._is_loud:
            self._listeners.publish(HandlerStarted(**about(holding.claim)))
        return self._active_claims.elapsed() if self._is_timed else None

    def _ended(
        self, holding: Holding, outcome: AttemptOutcome, begun: float | None
    ) -> AttemptOutcome:
        if begun is None:
            return outcome
        holding.ran = begun, (ended := self._active_claims.elapsed())
        if self._is_loud:
            error = (
                error_summary(outcome.error)
                if isinstance(outcome, Failed) and outcome.error
                else None
            )
            took = timedelta(seconds=ended - begun)
            self._listeners.publish(
                HandlerEnded(
                    **about(holding.claim),
                    outcome=outcome.name,
                    error=error,
                    took=took,
                )
            )
        return outcome


async def _finish(task: asyncio.Task[AttemptOutcome]) -> None:
    """Wait until the task has ended. If the host cancels all its tasks, the attempt still lasts
    until its handler ends.
    """
    while not task.done():
        try:
            # Awaiting the task itself would mix up its cancellation with ours.
            await asyncio.wait([task])
        except asyncio.CancelledError:
            if not task.cancelling():
                task.cancel()
