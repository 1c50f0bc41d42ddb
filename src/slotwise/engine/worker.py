"""The composition root of a process: build the loops, start them in order, and end them in
order.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from slotwise.engine.loops.counting import Counting
from slotwise.engine.loops.finish_watch import FinishWatch
from slotwise.engine.loops.held_claims import Heartbeat, LeaseWatch, Settler
from slotwise.engine.loops.housekeeping import Pruning, Reaper, WakeUp
from slotwise.engine.loops.pause_ends import PauseEnds
from slotwise.engine.loops.poller import Poller
from slotwise.engine.loops.service import Service, WorkerCommon
from slotwise.engine.loops.tuning import IN_A_MOMENT
from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.engine.run.event_loop import EventLoop
from slotwise.engine.run.hooks import Hooks
from slotwise.engine.run.runner import Isolate, Runner, context_maker
from slotwise.engine.sign_in import SignIn, keep_trying
from slotwise.engine.tuning import (
    LEAVE_PATIENCE,
    LONGEST_ASIDE,
    LOOP_PATIENCE,
    MOST_THREADS,
    REPLY_PATIENCE,
    SAMPLE,
    SHORTEST_ASIDE,
    SHORTEST_POLL,
    STEP,
    WRITE_PATIENCE,
)
from slotwise.jobs.definition import Definition, shortest_interval
from slotwise.model import events
from slotwise.model.clock import Clock, DatabaseClock, elapsed
from slotwise.model.error_text import redact_also
from slotwise.model.identity import Identity
from slotwise.model.records import Aborted, HandedBack
from slotwise.model.vocabulary import Reason
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.connect.notifications import LOOK, OPERATIONS
from slotwise.store.slots.settlement_hooks import SettlementHooks
from slotwise.store.slots.store import Store

logger = logging.getLogger(__name__)


def aside(settings: Settings) -> timedelta:
    """Return how long handlers get to stop after the grace."""
    return min(max(settings.shutdown_grace, SHORTEST_ASIDE), LONGEST_ASIDE)


def lifespan_patience(settings: Settings) -> timedelta:
    """Return how long the exit or the cancellation of a lifespan may take in a process that
    ends.
    """
    return max(settings.shutdown_grace, LONGEST_ASIDE)


def poll_interval(
    settings: Settings, definitions: Mapping[str, Definition]
) -> timedelta:
    """Return the setting, or the shortest interval of these jobs, but at least a second, if that
    is shorter.

    An interruption shorter than this counts as a running job, so no slot may come due between two
    polls.
    """
    scheduled = [
        (name, found.schedule)
        for name, found in definitions.items()
        if found.schedule is not None
    ]
    intervals = [
        shortest_interval(schedule, name, SAMPLE) for name, schedule in scheduled
    ]
    return min(
        [
            settings.poll_interval,
            *(max(one, SHORTEST_POLL) for one in intervals if one is not None),
        ]
    )


def _chosen(
    settings: Settings, definitions: Mapping[str, Definition]
) -> dict[str, Definition]:
    """Return the jobs and tasks that this worker knows: all, or those that the settings name."""
    only = settings.only or definitions
    return {
        name: found
        for name, found in definitions.items()
        if name in only or found.renamed_to in settings.only
    }


def _log_levels(definitions: Mapping[str, Definition]) -> dict[str, int]:
    """Return the level of the log lines of each job that declares one."""
    levels = logging.getLevelNamesMapping()
    return {
        name: levels[found.log_level]
        for name, found in definitions.items()
        if found.log_level is not None
    }


class Worker:
    """One process of the cluster: it claims, runs, settles, renews and takes over rows of the jobs
    it knows.
    """

    #: The class that runs handlers; the test kit replaces it.
    runner_class: ClassVar[type[Runner]] = Runner
    is_starting = False
    #: Whether a drain wakes other workers: they may not know of what this one knows.
    wakes_others = True
    #: A stop that the starting thread itself requested.
    asked_meanwhile: Callable[[], int] | None = None
    #: Number of handlers, outcomes and lifespans that a stop has left behind; None before its end.
    _left_behind: int | None = None

    def __init__(
        self,
        settings: Settings,
        definitions: Mapping[str, Definition],
        *,
        database: Database,
        hooks: Hooks | None = None,
        isolate: Isolate | None = None,
        host_loop: asyncio.AbstractEventLoop | None = None,
        client: object = None,
        clock: Clock | None = None,
        version: str = "",
        born: float | None = None,
    ) -> None:
        """``born``: when the process that stands for this deploy (a supervisor, or this one)
        started, in elapsed seconds; by default, the time of planning counts.
        """
        self.settings = settings
        redact_also(settings.redact)
        self._names = frozenset(definitions)
        self.definitions = _chosen(settings, definitions)
        self.identity = Identity.new(settings.worker_name)
        self.name = str(self.identity)
        self.capacity = settings.threads or min(
            max(10, len(self.definitions)), MOST_THREADS
        )
        self.hooks = hooks = hooks or Hooks()
        self.listeners = events.Listeners(hooks.listeners, _log_levels(definitions))
        self.clock = clock or DatabaseClock()
        self.active_claims = ActiveClaims(self.clock.elapsed)
        self.database = database
        self.store = Store(
            database,
            self.definitions,
            clock=self.clock,
            poll=poll_interval(settings, self.definitions),
            at_insert=hooks.at_insert,
        )
        self.store.settlements.hooks = SettlementHooks(hooks.after_settle)
        self._stopping = threading.Event()
        self.cancelling = threading.Event()
        self._turn = threading.RLock()  # serializes start and stop
        needs_loop = any(found.is_async for found in self.definitions.values())
        self.loop = EventLoop(hooks.lifespan, host_loop, is_needed=needs_loop)
        self.common = WorkerCommon(
            self.listeners, self.name, settings, self.store, self.active_claims
        )
        self.sign_in = SignIn(
            self.common,
            self.identity,
            capacity=self.capacity,
            version=version,
            born=born,
        )
        self.runner = self._make_runner(client, isolate)
        self._make_loops()

    def _make_runner(self, client: object, isolate: Isolate | None) -> Runner:
        return self.runner_class(
            capacity=self.capacity,
            definitions=self.definitions,
            active_claims=self.active_claims,
            listeners=self.listeners,
            mark_running=self.store.held.mark_running,
            make_context=context_maker(
                self.store, client, lambda: self.is_draining, self.loop
            ),
            margin=self.settings.heartbeat_interval,
            loop=self.loop,
            hooks=self.hooks,
            isolate=isolate,
        )

    def _make_loops(self) -> None:
        """Make the loops and connect them to the runner."""
        common = self.common
        settings = self.settings
        membership = self.sign_in.membership
        # This worker claims what it has the tags for. It plans and takes over the others, too.
        claimed = sorted(
            name
            for name, found in self.definitions.items()
            if found.may_run_on(settings.tags)
        )
        self.poller = Poller(
            common,
            names=claimed,
            runner=self.runner,
            peers=membership.peers,
            pass_on=self._pass_on,
        )
        self.settler = Settler(common, on_free=self.poller.poll_now)
        self.counting = Counting(common, self.settler.tally)
        self.listeners.on_skipped = self.counting.skipped
        self.lease_watch = LeaseWatch(common, self.settler)
        self.runner.on_end = self.settler.put
        self.runner.limit = self.lease_watch.limit
        self.heartbeat = Heartbeat(
            common,
            sign_in=membership.renew,
            is_listening=lambda: self.wake_up.is_listening,
        )
        self.reaper = Reaper(
            common,
            names=sorted(self.definitions),
            on_reaped=self.poller.poll_now,
            tally=self.settler.tally,
            interval=settings.reaper_interval or settings.heartbeat_interval,
        )
        self.wake_up = WakeUp(
            common,
            self.database,
            names=claimed,
            wake=self._heed,
            offset=membership.peers.offset,
        )
        self.pruning = Pruning(common)
        self.pause_ends = PauseEnds(common, on_end=self.poller.poll_now)
        finish_watch = FinishWatch(common)
        watching = (finish_watch,) if finish_watch.names else ()
        #: The loops that a drain ends when no handler runs any more.
        self.others: tuple[Service, ...] = (
            self.reaper,
            self.wake_up,
            self.pruning,
            self.counting,
            self.pause_ends,
            *watching,
        )
        #: The loops in their start order: those that renew claims, and settle them to the end,
        #: before the others.
        self.keepers: tuple[Service, ...] = (
            self.heartbeat,
            self.lease_watch,
            self.settler,
        )
        self.loops: tuple[Service, ...] = (
            *self.keepers,
            self.poller,
            *self.others,
        )

    # -- start ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check the tables, plan the jobs, start the loops. Wait while the database is
        unreachable.

        If more than one batch of jobs is new, the others are planned while the loops run. A worker
        starts once. If a stop is requested meanwhile, it has not started, or drains if it may hold
        claims. Raise DatabaseRefused, SchemaMissing, SchemaMismatch or PlanMissing, and what the
        lifespan raises; then nothing is left behind.
        """
        with self._turn:
            self.is_starting = True
            try:
                self._start()
            except BaseException:
                self.is_starting = False
                # Race: a Ctrl-C at the last line meets claims, which a drain settles.
                if self.poller.has_started:
                    self.stop(timedelta(0))
                else:
                    self.close()
                raise
            self.is_starting = False
            if self._stopping.is_set() and not self.poller.has_started:
                self.close(bounded=True)
            elif self.asked_meanwhile is not None:
                self.asked_meanwhile()

    def _start(self) -> None:
        if not keep_trying(self._check, self.common, self._stopping):
            return
        self.loop.start(self._stopping)
        if self._stopping.is_set():
            return
        keep_trying(self.sign_in.enter, self.common, self._stopping)
        if self._stopping.is_set():
            return
        for service in self.loops:
            service.start()
        jobs = sum(found.is_planned for found in self.definitions.values())
        self.listeners.publish(
            events.WorkerStarted(worker=self.name, capacity=self.capacity, jobs=jobs)
        )
        rest = functools.partial(
            self.sign_in.plan_rest, self._stopping, self.poller.poll_now
        )
        keep_trying(rest, self.common, self._stopping)

    def _check(self) -> None:
        """Refuse the start before a row changes: a deploy is one decision. The lifespan, which may
        refuse it too, is entered next.
        """
        self.sign_in.verify()
        self._verify_hooks()
        self.sign_in.check()

    def _verify_hooks(self) -> None:
        self.hooks.verify(self.definitions.values(), self._names)

    def keep_trying(self, ask: Callable[[], None], stopping: threading.Event) -> bool:
        """Ask the database until it answers; return False if a stop was requested first. Raise
        DatabaseRefused.
        """
        return keep_trying(ask, self.common, stopping)

    def mind(self) -> None:
        """Begin to renew and settle claims without polling or reaping; ``stop`` or ``close`` ends
        it.

        If a stop is requested meanwhile, the lifespan is not entered, and nothing may be claimed.
        """
        self._verify_hooks()
        self.loop.start(self._stopping)
        for service in self.keepers:
            service.start()

    def _pass_on(self) -> None:
        """Wake other workers, without waiting: rows that they do not know of may be due, now or
        soon.
        """
        self.database.wake_ups.tell(LOOK, within=IN_A_MOMENT)

    def _heed(self, words: Collection[str]) -> None:
        """Wake the poller, and for an operation the heartbeat. Without words, some may have been
        lost.
        """
        self.poller.wake_for(words)
        if OPERATIONS in words:
            self.pause_ends.wake()
        if OPERATIONS in words or not words:
            self.heartbeat.heed()

    # -- stop -------------------------------------------------------------------------------------

    def request_stop(self, reason: str | None = None) -> None:
        """Request a stop, from any thread: the thread that waits for it drains. ``reason`` is kept
        in the history of workers, as SIGTERM.
        """
        membership = self.sign_in.membership
        membership.stop_reason = membership.stop_reason or reason
        self._stopping.set()
        if self.is_starting:
            self.database.limit_replies(REPLY_PATIENCE)

    def cancel(self) -> None:
        """Cancel what runs, in the current drain or the next one, and wait for no slow database
        any more.
        """
        self.cancelling.set()
        self._stopping.set()
        self.database.limit_replies(REPLY_PATIENCE)

    def wait_for_stop(self, seconds: float | None = None) -> bool:
        return self._stopping.wait(seconds)

    def stop(self, grace: timedelta | None = None, *, ending: bool = False) -> int:
        """Drain: hand back what has not started, wait for what runs, cancel it after ``grace``.

        Return the number of handlers that did not stop, outcomes that could not be written, and
        lifespans that were not left. Such handlers keep their claims until they return or the
        process ends. With ``ending`` the caller ends the process right after this: then their
        slots are handed back as the last write.

        Other calls wait for the same drain. Raise what the lifespan raises on exit, after
        everything has ended.
        """
        self.request_stop()  # before the lock: a start that waits for the database gives up
        with self._turn:
            # Race: a signal handler may stop what its own thread is starting, or stopping already.
            # The interrupted call finishes that.
            if self.is_starting:
                self.asked_meanwhile = functools.partial(
                    self.stop, grace, ending=ending
                )
                return 0
            if self.is_draining:
                if self._left_behind is None:
                    self.cancelling.set()
                return self.unfinished
            self.runner.is_draining = True
            self.sign_in.membership.drain()
            self.listeners.publish(
                events.DrainBegan(worker=self.name, running=len(self.active_claims))
            )
            if self.wakes_others:
                self._pass_on()
            self._drain(
                self.settings.shutdown_grace if grace is None else grace, ending=ending
            )
            return self.unfinished

    @property
    def state(self) -> object:
        """What the registry's lifespan has yielded; None without one."""
        return self.loop.state

    def blame(self, error: BaseException) -> str | None:
        """Return the name of the registry's lifespan if it raised this error, else None."""
        return self.loop.blame(error)

    @property
    def unfinished(self) -> int:
        """The number of handlers, outcomes and lifespans that the worker left behind when it
        stopped.
        """
        return self._left_behind or 0

    @property
    def is_draining(self) -> bool:
        """Whether nothing starts any more."""
        return self.runner.is_draining

    # -- the steps of a stop ----------------------------------------------------------------------

    def _drain(self, grace: timedelta, *, ending: bool) -> None:
        """Let handlers finish, cancel them after ``grace``, and close. ``ending``: the caller ends
        the process then.

        Race: a thread cannot be killed. A slot that is handed back while its handler still runs
        could start on another worker at the same time. So a process that ends hands it back as its
        very last write; any other keeps the claim.
        """
        self._stop_handlers(elapsed() + grace.total_seconds())
        self.database.limit_replies(REPLY_PATIENCE)
        self._end(*self.others)
        try:
            self._leave(lifespan_patience(self.settings) if ending else None)
        finally:
            running = [holding for holding in self.active_claims if not holding.ended]
            self._left_behind = len(running) + self.loop.left_behind
            if running and ending:
                self._hand_back_last(running)
            elif running:
                self._keep_until_returned(len(running))
            else:
                self._left_behind += self._write_outcomes()
                self._finish()
                self._tell_end()
            if not ending:
                self.database.limit_replies(None)

    def _stop_handlers(self, until: float) -> None:
        """Start nothing any more; let handlers finish ``until`` then, and ask the others to
        stop.
        """
        self._hand_back_unstarted()
        self._end(self.poller)
        self._hand_back_unstarted()  # claims of its last round
        while (left := until - elapsed()) > 0 and not self.cancelling.is_set():
            if self.active_claims.wait_empty(min(STEP, left)):
                break
        for holding in self.active_claims:
            holding.signal.set(Reason.SHUTDOWN)
        self.active_claims.wait_empty(aside(self.settings).total_seconds())

    def close(self, *, bounded: bool = False) -> None:
        """End everything now, for a worker that holds nothing. ``bounded``: limit the time of the
        lifespan's exit.

        After a cancellation it is limited, too: a handler that still runs may block it.
        """
        self._end(*self.loops)
        try:
            self._leave(
                lifespan_patience(self.settings)
                if bounded or self.cancelling.is_set()
                else None
            )
        finally:
            self._sign_out()
            self.database.limit_replies(None)

    def _hand_back_unstarted(self) -> None:
        """Hand back claims that have not started; the threads and the loop may be blocked."""
        for holding in self.active_claims:
            self.settler.put(holding, HandedBack(Reason.SHUTDOWN), unstarted=True)

    def _leave(self, within: timedelta | None) -> None:
        """Leave the threads, the loop and the lifespan. Heartbeats continue, as the application
        may take long.
        """
        self.runner.close()
        self.loop.stop(within)

    def _hand_back_last(self, left: Sequence[Holding]) -> None:
        """Hand back the remaining slots as the last write: after its commit, they may start
        elsewhere.
        """
        self._sign_out()
        self._tell_end()
        for holding in left:
            self.settler.put(holding, Aborted(Reason.SHUTDOWN))
        self._write_outcomes()
        self.settler.stop()
        self.settler.join(SHORTEST_ASIDE)  # it publishes the events of its writes

    def _keep_until_returned(self, count: int) -> None:
        logger.warning(
            "%d handlers did not stop; their claims are kept until they return, "
            "or this process ends",
            count,
        )

        def keep() -> None:
            self.active_claims.wait_empty(None)
            self._finish()
            self.database.close()

        threading.Thread(target=keep, name="slotwise-keep-claims", daemon=True).start()
        self._tell_end()

    def _write_outcomes(self) -> int:
        """Write the last outcomes and return how many could not be written."""
        if self.active_claims.wait_empty(WRITE_PATIENCE.total_seconds()):
            return 0
        count = len(self.active_claims)
        logger.warning(
            "%d outcomes could not be written; other workers take over when the leases end",
            count,
        )
        return count

    def _tell_end(self) -> None:
        self.listeners.publish(
            events.DrainEnded(worker=self.name, unfinished=self.unfinished)
        )

    def _finish(self) -> None:
        self._end(*self.keepers)
        self._sign_out()

    def _sign_out(self) -> None:
        """Sign out, on a thread: the database may answer nothing, to this or to a heartbeat
        before it.
        """

        def leave() -> None:
            self.counting.run_once()
            self.sign_in.membership.leave()

        leaving = threading.Thread(target=leave, name="slotwise-leave", daemon=True)
        leaving.start()
        leaving.join(LEAVE_PATIENCE.total_seconds())

    def _end(self, *loops: Service) -> None:
        """Stop these loops and wait for them, together no longer than the patience, or until what
        runs is cancelled.

        Race: a poller that is left behind may still claim; the runner hands such claims back.
        """
        for loop in reversed(loops):
            loop.stop()
        until = elapsed() + LOOP_PATIENCE.total_seconds()
        for loop in reversed(loops):
            while (
                not loop.join(timedelta(seconds=min(STEP, until - elapsed())))
                and elapsed() < until
            ):
                if self.cancelling.is_set() and loop is self.poller:
                    break
