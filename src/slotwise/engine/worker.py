"""The composition root of a process: build the loops, start them in order, and end them in order."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

from slotwise.engine.loops.heartbeat import Heartbeat, LeaseWatch
from slotwise.engine.loops.housekeeping import Deadlines, History, Reaper, WakeUp
from slotwise.engine.loops.poller import Poller
from slotwise.engine.loops.service import Outage, Service, ServiceOptions
from slotwise.engine.loops.settler import Settler
from slotwise.engine.run.active_claims import ActiveClaims
from slotwise.engine.run.child_process import Isolation
from slotwise.engine.run.event_loop import EventLoop, Lifespan
from slotwise.engine.run.runner import Contexts, Interceptor, OnEnd, Runner
from slotwise.engine.run.start_hooks import NO_HOOKS, Hooks
from slotwise.engine.shutdown import LONGEST_ASIDE, SHORTEST_ASIDE, Shutdown
from slotwise.engine.sign_in import SignIn, Startup
from slotwise.jobs.definition import Definition
from slotwise.model import events
from slotwise.model.clock import Clock, DatabaseClock
from slotwise.model.identity import Identity
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.connect.database_errors import is_transient
from slotwise.store.connect.notifications import LOOK
from slotwise.store.planning.planner import Plan
from slotwise.store.slots.retention import Pruner
from slotwise.store.slots.settlements import SettlementHooks
from slotwise.store.slots.store import Store

#: The most threads without a setting: ten thousand jobs must not start ten thousand threads.
MOST_THREADS = 500


class Worker:
    """One process of the cluster: it claims, runs, settles, renews and takes over rows of the jobs it knows."""

    #: The class that runs handlers; the test kit replaces it.
    runner_class: ClassVar[type[Runner]] = Runner

    def __init__(
        self,
        settings: Settings,
        definitions: Mapping[str, Definition],
        *,
        database: Database,
        listeners: events.Listeners,
        interceptors: tuple[Interceptor, ...] = (),
        hooks: Hooks = NO_HOOKS,
        lifespan: Lifespan | None = None,
        host_loop: asyncio.AbstractEventLoop | None = None,
        client: Any = None,
        clock: Clock | None = None,
        version: str = "",
        born: float | None = None,
    ) -> None:
        """``born``: when whoever speaks for this deploy started, in elapsed seconds; else planning time counts."""
        self.settings = settings
        self.definitions = {
            name: found for name, found in definitions.items() if not settings.only or name in settings.only
        }
        #: Names that this worker claims: those it knows and has the tags for. It plans and takes over the others, too.
        self._claimed = sorted(name for name, found in self.definitions.items() if found.may_run_on(settings.tags))
        self.identity = Identity.new(settings.worker_name)
        self.name = str(self.identity)
        self.capacity = settings.threads or min(max(10, len(self.definitions)), MOST_THREADS)
        self.listeners = listeners
        self.clock = clock or DatabaseClock()
        self.active_claims = ActiveClaims(self.clock.elapsed)
        self.store = Store(
            database, self.definitions, clock=self.clock, poll=settings.poll_interval, at_insert=hooks.at_insert
        )  # fmt: skip
        self.store.settlements.hooks = SettlementHooks(hooks.after_settle)
        self._database = database
        self.contexts = Contexts(self.store, client, lambda: self.is_draining)
        self.entrance = SignIn(
            self.name, self.identity, settings, self.store, listeners=listeners, elapsed=self.clock.elapsed,
            capacity=self.capacity, version=version, born=born,
        )  # fmt: skip
        self._stopping = threading.Event()
        self._cancelling = threading.Event()
        self._turn = threading.RLock()  # serializes start and stop
        self.is_starting = False
        #: A stop that the starting thread itself requested.
        self.asked_meanwhile: Callable[[], int] | None = None
        self.is_draining = False
        needs_loop = lifespan is not None or any(found.is_async for found in self.definitions.values())
        self._loop = EventLoop(lifespan, host_loop) if needs_loop else None
        self._build(interceptors, hooks)

    def _build(self, interceptors: tuple[Interceptor, ...], hooks: Hooks) -> None:
        self._outage = Outage(self.listeners, self.name, self.clock.elapsed)
        service: ServiceOptions = {
            "listeners": self.listeners,
            "worker": self.name,
            "is_transient": is_transient,
            "elapsed": self.clock.elapsed,
            "longest_pause": min(timedelta(seconds=15), self.settings.heartbeat_interval),
            "outage": self._outage,
        }
        self.deadlines = Deadlines(**service)
        self.runner = self._make_runner(interceptors, hooks)
        self.poller = Poller(
            self.store, self.active_claims, names=self._claimed, lease=self.settings.lease,
            poll_interval=self.settings.poll_interval, runner=self.runner, peers=self.entrance.membership.peers,
            pass_on=self._pass_on, **service,
        )  # fmt: skip
        self.settler = Settler(self.store, self.active_claims, on_free=self.poller.look, **service)
        self.runner.report_to(self.settler.put)
        self.wake_up = WakeUp(
            self._database, names=self._claimed, wake=self.poller.wake_for, obey=self._obey,
            offset=self.entrance.membership.peers.offset, **service,
        )  # fmt: skip
        self._build_keepers(self.settings.heartbeat_interval, service)
        keep = Pruner(self.store, keep=self.settings.retention, failure_retention=self.settings.failure_retention)
        self.history = History(keep, **service)
        self._shutdown = self._make_shutdown()

    def _make_runner(self, interceptors: tuple[Interceptor, ...], hooks: Hooks) -> Runner:
        return self.runner_class(
            capacity=self.capacity,
            definitions=self.definitions,
            active_claims=self.active_claims,
            listeners=self.listeners,
            mark_running=self.store.held.mark_running,
            make_context=self.contexts.make,
            margin=self.settings.heartbeat_interval,
            watch=self.deadlines.watch,
            loop=self._loop,
            interceptors=interceptors,
            before_start=hooks.before_start,
            isolation=self._isolation(),
        )

    def _build_keepers(self, interval: timedelta, service: ServiceOptions) -> None:
        """Build the loops that renew claims and take over expired ones."""
        self.heartbeat = Heartbeat(
            self.store, self.active_claims, interval=interval, sign_in=self.entrance.membership.renew, **service
        )
        self.lease_watch = LeaseWatch(
            self.active_claims, interval=interval, hand_back=self.settler.hand_back, **service
        )
        self.reaper = Reaper(
            self.store, names=sorted(self.definitions), interval=self.settings.reaper_interval or interval,
            heartbeat_interval=interval, on_reaped=self.wake, **service,
        )  # fmt: skip

    def _make_shutdown(self) -> Shutdown:
        return Shutdown(
            active_claims=self.active_claims, runner=self.runner, settler=self.settler, poller=self.poller,
            others=(self.wake_up, self.deadlines, self.reaper, self.history),
            keepers=(self.heartbeat, self.lease_watch, self.settler),
            membership=self.entrance.membership, loop=self._loop, cancelling=self._cancelling, tell_end=self._tell_end,
            close=self._database.close, longest_grace=self.settings.shutdown_grace,
        )  # fmt: skip

    @property
    def services(self) -> tuple[Service, ...]:
        """The loops in their start order: those that renew claims before the one that makes them."""
        keepers = (self.heartbeat, self.lease_watch, self.deadlines, self.settler)
        return (*keepers, self.reaper, self.poller, self.wake_up, self.history)

    # -- start ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check the tables, plan the jobs, start the loops. Wait while the database is unreachable.

        A worker starts once. If a stop is requested meanwhile, it returns without having started. If it may hold
        claims already, it drains: in the thread that requested the stop, or here if that is this thread.
        Raise DatabaseRefused, SchemaMissing, SchemaMismatch or PlanMissing when waiting would not help, and what
        the lifespan raises; then nothing is left behind.
        """
        with self._turn:
            self.is_starting = True
            try:
                self._start()
            except BaseException:
                self.is_starting = False
                self._undo()
                raise
            self.is_starting = False
            if self._stopping.is_set() and not self.poller.has_started:
                self._shutdown.close(bounded=True)
            elif self.asked_meanwhile is not None:
                self.asked_meanwhile()

    def _undo(self) -> None:
        """Undo a start that failed. Race: a Ctrl-C at its last line meets claims, which only a drain may settle."""
        if self.poller.has_started:
            self.stop(timedelta(0))
        else:
            self._shutdown.close()

    def _start(self) -> None:
        if not Startup(self.entrance.enter, self._outage, self._stopping).run():
            return
        if self._loop is not None:
            self.contexts.state = self._loop.start(self._stopping)
        if self._stopping.is_set():
            return
        for service in self.services:
            service.start()
        jobs = sum(found.is_job for found in self.definitions.values())
        self.listeners.publish(events.WorkerStarted(worker=self.name, capacity=self.capacity, jobs=jobs))

    def _isolation(self) -> Isolation:
        """Build the runner of child processes. A child that does not stop is killed before the shutdown gives it up."""
        settings = self.settings
        patience = min(max(settings.shutdown_grace, SHORTEST_ASIDE), LONGEST_ASIDE) * 0.6
        return Isolation(settings.told(), settings.app, patience=patience)

    @contextmanager
    def running_alone(self, on_end: OnEnd) -> Iterator[None]:
        """Start only what runs handlers: for a child with one attempt, whose parent polls, renews and settles."""
        self.runner.report_to(on_end)
        if self._loop is not None:
            self.contexts.state = self._loop.start()
        yield

    @contextmanager
    def minding(self) -> Iterator[None]:
        """Renew and settle claims without polling or reaping: for claims that are ``adopt``ed.

        If a stop is requested meanwhile, the lifespan is not entered, and nothing may be claimed.
        """
        try:
            if self._loop is not None:
                self.contexts.state = self._loop.start(self._stopping)
            for service in (self.heartbeat, self.lease_watch, self.deadlines, self.settler):
                service.start()
            yield
        finally:
            self._shutdown.close()

    def plan(self, revision: str | None = None) -> list[Plan]:
        """Create or update the rows of the jobs to match the code."""
        return self.entrance.plan(revision)

    def wake(self) -> None:
        """Poll now instead of after the poll interval; a worker that drains wakes the others instead."""
        if self.is_draining:
            self._pass_on()
        else:
            self.poller.wake()

    def _pass_on(self) -> None:
        """Wake other workers: rows that they do not know of may be due, now or soon."""
        self._database.wake_ups.tell(LOOK)

    def _obey(self) -> None:
        """Wake the heartbeat: an operator may have written an order into a held row."""
        if len(self.active_claims):
            self.heartbeat.wake()

    # -- stop -------------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Request a stop, from any thread: the thread that waits for it drains. A repeated request changes nothing."""
        self._stopping.set()

    def cancel(self) -> None:
        """Cancel what runs, in the current drain or the next one."""
        self._cancelling.set()
        self._stopping.set()

    def wait_for_stop(self, seconds: float | None = None) -> bool:
        """Wait until a stop is requested."""
        return self._stopping.wait(seconds)

    def stop(self, grace: timedelta | None = None, *, ending: bool = False) -> int:
        """Drain: hand back what has not started, wait for what runs, cancel it after ``grace``.

        Return the number of handlers that did not stop, outcomes that could not be written, and lifespans that were
        not left. Such handlers keep their claims, and heartbeats continue, until they return or the process ends. With
        ``ending`` the caller ends the process right after this: then their slots are handed back as the last write.

        Concurrent and later calls wait for the same drain and return the same number. Raise what the lifespan raises
        on exit, after everything has ended.
        """
        self._stopping.set()  # before the lock: a start that waits for the database gives up
        with self._turn:
            # Race: a signal handler may stop what its own thread is starting, or stopping already. The interrupted
            # call finishes that.
            if self.is_starting:
                self.asked_meanwhile = functools.partial(self.stop, grace, ending=ending)
                return 0
            if self.is_draining:
                if self._shutdown.unfinished is None:
                    self._cancelling.set()
                return self.unfinished
            self.is_draining = True
            self.listeners.publish(events.DrainBegan(worker=self.name, running=len(self.active_claims)))
            self._pass_on()
            self._shutdown.run(self.settings.shutdown_grace if grace is None else grace, ending=ending)
            return self.unfinished

    @property
    def unfinished(self) -> int:
        """The number of handlers, outcomes and lifespans that the worker left behind when it stopped."""
        return self._shutdown.unfinished or 0

    def blame(self, error: BaseException) -> str | None:
        """Return the name of the application's lifespan if it raised ``error``, else None."""
        return None if self._loop is None else self._loop.blame(error)

    def _tell_end(self, unfinished: int) -> None:
        self.listeners.publish(events.DrainEnded(worker=self.name, unfinished=unfinished))
