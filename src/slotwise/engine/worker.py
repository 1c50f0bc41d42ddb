"""The composition root of a process: builds the loops, starts them in order, drains them in order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, ClassVar

from slotwise import events, migrate
from slotwise.clock import Clock, DatabaseClock
from slotwise.definition import Definition
from slotwise.engine.deadlines import Deadlines
from slotwise.engine.eventloop import EventLoop, Lifespan
from slotwise.engine.heartbeat import Heartbeat, LeaseWatch
from slotwise.engine.holdings import Holding, Holdings
from slotwise.engine.poller import Poller
from slotwise.engine.reaper import Reaper
from slotwise.engine.runner import Interceptor, Runner
from slotwise.engine.service import Outage, Service
from slotwise.engine.settler import Settler
from slotwise.errors import InvalidSchedule
from slotwise.execution import Aborted
from slotwise.identity import Identity
from slotwise.job import JobContext, TaskContext
from slotwise.policies import growing_pauses
from slotwise.schedules import Disabled
from slotwise.settings import Settings
from slotwise.store.database import Database, describe, is_transient
from slotwise.store.fence import LedgerFence
from slotwise.store.planner import Plan, Planner
from slotwise.store.revision import Revision
from slotwise.store.roster import Badge, Roster
from slotwise.store.store import Store

logger = logging.getLogger(__name__)

#: How long the row of a worker that vanished stays for people to read.
FORGET_WORKERS_AFTER = timedelta(days=1)
#: Above this the clocks of host and database differ enough to confuse people who read both.
SKEW_WARNING = 1.0


class Worker:
    """One process's share of the cluster: claims, runs, settles, beats and reaps for the jobs it knows."""

    #: Where the handlers run; a test kit puts in one that holds them back.
    runner_class: ClassVar[type[Runner]] = Runner

    def __init__(
        self,
        settings: Settings,
        definitions: Mapping[str, Definition],
        *,
        database: Database,
        listeners: events.Listeners,
        interceptors: tuple[Interceptor, ...] = (),
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
        self.identity = Identity.new(settings.worker_name)
        self.name = str(self.identity)
        self.capacity = settings.threads or max(10, len(self.definitions))
        self.listeners = listeners
        self.clock = clock or DatabaseClock()
        self.holdings = Holdings(self.clock.elapsed)
        self.store = Store(database, self.definitions, clock=self.clock)
        self.state: Any = None
        self._database = database
        self._client = client
        self._version = version
        self._born = born
        self._roster = Roster(self.store)
        self._fence = LedgerFence(self.store)
        self._stopping = threading.Event()
        self._cancelling = threading.Event()
        self._turn = threading.RLock()  # start and stop, one after the other
        self._is_starting = False
        self._is_draining = False
        self._unfinished: int | None = None
        self._badge: Badge | None = None
        self._refused: list[str] = []
        self._skew_told = False
        needs_loop = lifespan is not None or any(found.is_async for found in self.definitions.values())
        self._loop = EventLoop(lifespan, host_loop) if needs_loop else None
        self._build(interceptors)

    def _build(self, interceptors: tuple[Interceptor, ...]) -> None:
        settings, names = self.settings, sorted(self.definitions)
        service: dict[str, Any] = {
            "listeners": self.listeners,
            "worker": self.name,
            "is_transient": is_transient,
            "elapsed": self.clock.elapsed,
            "longest_pause": min(timedelta(seconds=15), settings.heartbeat_interval),
            "outage": Outage(self.listeners, self.name),
        }
        self.settler = Settler(self.store, self.holdings, on_free=self.wake, **service)
        self.deadlines = Deadlines(**service)
        self.runner = self.runner_class(
            capacity=self.capacity,
            definitions=self.definitions,
            holdings=self.holdings,
            listeners=self.listeners,
            mark_running=self.store.mark_running,
            make_context=self._context,
            on_end=self.settler.put,
            margin=settings.heartbeat_interval,
            watch=self.deadlines.watch,
            loop=self._loop,
            interceptors=interceptors,
        )
        self.poller = Poller(
            self.store, self.holdings, lease=settings.lease, poll_interval=settings.poll_interval,
            jobs=[name for name in names if self.definitions[name].is_job],
            tasks=[name for name in names if not self.definitions[name].is_job], runner=self.runner, **service,
        )  # fmt: skip
        self.heartbeat = Heartbeat(
            self.store, self.holdings, interval=settings.heartbeat_interval, sign_in=self._sign_in, **service
        )
        self.lease_watch = LeaseWatch(
            self.holdings, interval=settings.heartbeat_interval, hand_back=self.settler.hand_back, **service
        )
        self.reaper = Reaper(
            self.store, names=names, interval=settings.reaper_interval or settings.heartbeat_interval,
            heartbeat_interval=settings.heartbeat_interval, on_reaped=self.wake, **service,
        )  # fmt: skip

    @property
    def services(self) -> tuple[Service, ...]:
        """In the order in which they start: whoever keeps claims alive before whoever takes them."""
        return (self.heartbeat, self.lease_watch, self.deadlines, self.settler, self.reaper, self.poller)

    # -- start ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check the tables, plan the jobs, start the loops. Waits while the database is away.

        Starts once. Returns without having started if it was asked to stop meanwhile.
        Raises SchemaMissing, SchemaMismatch or PlanMissing when waiting would not help, and what the lifespan
        raises; then nothing of it is left behind.
        """
        with self._turn:
            self._is_starting = True
            try:
                self._start()
                if self._stopping.is_set():
                    self._close()
            except BaseException:
                self._close()
                raise
            finally:
                self._is_starting = False

    def _start(self) -> None:
        if not self._enter_cluster():
            return
        if self._loop is not None:
            self.state = self._loop.start()
        if self._stopping.is_set():
            return
        for service in self.services:
            service.start()
        jobs = sum(found.is_job for found in self.definitions.values())
        self.listeners.publish(events.WorkerStarted(worker=self.name, capacity=self.capacity, jobs=jobs))

    def revision(self) -> Revision:
        """What orders deploys: the id that was set, and when this deploy started, by the database's clock.

        Race: a supervisor restarts a child after a newer deploy has planned. By the child's own start it would
        look like the newest of all, and put the old schedule back.
        """
        age = timedelta(seconds=0.0 if self._born is None else self.clock.elapsed() - self._born)
        return Revision(text=self.settings.revision, started=self.store.now() - age)

    def verify(self) -> None:
        """Raise DatabaseUnreachable, SchemaMissing or SchemaMismatch unless the tables are as they must be."""
        self._database.verify()
        with self._database.main.connect() as connection:
            migrate.check(connection, prefix=self.settings.table_prefix, schema=self.settings.schema)

    @contextmanager
    def minding(self) -> Iterator[None]:
        """Keep claims alive and settle them, without polling or reaping: for claims that are ``adopt``ed."""
        try:
            if self._loop is not None:
                self.state = self._loop.start()
            for service in (self.heartbeat, self.lease_watch, self.deadlines, self.settler):
                service.start()
            yield
        finally:
            self._close()

    def plan(self) -> list[Plan]:
        """Bring the jobs' rows in line with the code, and make sure that each is there."""
        planner = Planner(self.store)
        jobs = [found for found in self.definitions.values() if found.is_job]
        revision = self.revision()
        plans = planner.plan(jobs, revision)
        for plan in plans:
            self.listeners.publish(self._planned(plan, revision))
        self._refused = [plan.job for plan in plans if plan.refused is not None]
        planner.verify([found for found in jobs if not isinstance(found.schedule, Disabled)])
        return plans

    def _planned(self, plan: Plan, ours: Revision) -> events.Planned:
        facts: dict[str, Any] = {
            "worker": self.name, "job": plan.job, "change": plan.change, "schedule": plan.schedule,
            "next_slot": plan.next_slot,
        }  # fmt: skip
        if plan.refused is None or plan.planned_by is None:
            return events.Planned(**facts)
        theirs = plan.planned_by
        return events.PlanRefused(
            **facts, refused=plan.refused, revision=str(ours), planned_by=str(theirs), cure=ours.cure(theirs)
        )

    def _enter_cluster(self) -> bool:
        """Check, plan, sign in: until it has succeeded; False if asked to stop first. An outage is said once."""
        told = False
        for pause in growing_pauses(timedelta(milliseconds=300), timedelta(seconds=15)):
            if self._stopping.is_set():
                return False
            try:
                self.verify()
                self._database.check_capacity()
                self.plan()
                self._badge = self._make_badge()
                self._roster.sweep(FORGET_WORKERS_AFTER)
                self._sign_in()
                break
            except Exception as error:
                if not is_transient(error):
                    raise
                if not told:
                    described = describe(error)
                    self.listeners.publish(events.DatabaseLost(worker=self.name, loop="start", error=described))
                told = True
            self._stopping.wait(pause.total_seconds())
        if told:
            self.listeners.publish(events.DatabaseBack(worker=self.name, loop="start"))
        return True

    def _make_badge(self) -> Badge:
        return Badge(
            worker=self.name,
            host=self.identity.host,
            pid=self.identity.pid,
            boot_id=self.identity.boot_id,
            version=self._version,
            capacity=self.capacity,
            tags=sorted(self.settings.tags),
            tasks=sorted(self.definitions),
            lease=self.settings.lease,
            started=self.store.now(),
            revision=self.settings.revision,
            refused=self._refused,
        )

    def _sign_in(self) -> float | None:
        if self._badge is None:
            return None
        skew = self._roster.sign_in(self._badge, "draining" if self._is_draining else "running")
        if abs(skew) > SKEW_WARNING and not self._skew_told:
            self._skew_told = True
            logger.warning(
                "this host's clock is %.1f s off the database's; jobs run by the database's clock, logs here do not",
                skew,
            )
        return skew

    def _context(self, holding: Holding) -> JobContext:
        row = holding.claim.row
        schedule = None
        with suppress(InvalidSchedule):  # a newer release wrote it: the slot runs, the next is for others to tell
            schedule = self.store.schedule_of(row).running if row.schedule else None
        definition = self.definitions[row.task_name]
        return (JobContext if definition.is_job else TaskContext)(
            holding,
            fence=self._fence,
            schedule=schedule,
            read=definition.payload.decode,
            client=self._client,
            state=self.state,
            stopping=lambda: self._is_draining,
        )

    def wake(self) -> None:
        """Look for due rows now, not when the poll interval is over."""
        self.poller.wake()

    # -- stop -------------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Ask for an end, from any thread: whoever waits for it drains. Asking again changes nothing."""
        self._stopping.set()

    def cancel(self) -> None:
        """Wait no longer for what runs: cancel it, in the drain that goes on or comes next."""
        self._cancelling.set()
        self._stopping.set()

    def wait_for_stop(self, seconds: float | None = None) -> bool:
        """Until somebody asked for an end."""
        return self._stopping.wait(seconds)

    def stop(self, grace: timedelta | None = None) -> int:
        """Drain: hand back what has not started, wait for what runs, cancel it after ``grace``, hand the rest back.

        Heartbeats go on until the last outcome is written. Returns how many handlers were still running.
        Whoever stops it meanwhile, or later, waits for that, too, and learns the same. Raises what the lifespan
        raises while it is left; all the same, everything has ended.
        """
        self._stopping.set()  # before the turn: a start that waits for the database gives it up
        with self._turn:
            # Race: a signal handler may stop what its own thread is starting, or stopping already. Who was
            # interrupted finishes that.
            if self._is_starting:
                return 0
            if self._is_draining:
                if self._unfinished is None:
                    self._cancelling.set()
                return self._unfinished or 0
            self._is_draining = True
            return self._drain(self.settings.shutdown_grace if grace is None else grace)

    def _drain(self, grace: timedelta) -> int:
        self.listeners.publish(events.DrainBegan(worker=self.name, running=len(self.holdings)))
        self.runner.drain()
        self._hand_back_unstarted()
        self.poller.stop()
        self.poller.join(timedelta(seconds=10))
        self._hand_back_unstarted()  # what its last round has brought
        self._wait_for_handlers(grace)
        self._unfinished = self._cancel_the_rest()
        try:
            self._close()
        finally:
            self.listeners.publish(events.DrainEnded(worker=self.name, unfinished=self._unfinished))
        return self._unfinished

    def _hand_back_unstarted(self) -> None:
        """Not left to the threads and the loop: they may be blocked."""
        for holding in self.holdings:
            self.settler.hand_back(holding, "shutdown")

    def _wait_for_handlers(self, grace: timedelta) -> None:
        """Up to ``grace``, or until a second request to stop cancels the wait."""
        left = grace.total_seconds()
        step = 0.05
        while left > 0 and not self._cancelling.is_set():
            if self.holdings.wait_empty(min(step, left)):
                return
            left -= step

    def _cancel_the_rest(self) -> int:
        """Ask what still runs to stop, wait again, and hand back, as the last write, what does not listen."""
        for holding in self.holdings:
            holding.signal.set("shutdown")
        if self.holdings.wait_empty(max(min(self.settings.shutdown_grace.total_seconds(), 5.0), 1.0)):
            return 0
        left = [holding for holding in self.holdings if not holding.ended]
        for holding in left:
            self.settler.put(holding, Aborted("shutdown"))
        if not self.holdings.wait_empty(5.0):
            logger.warning("%d outcomes could not be written; others take over when the leases end", len(self.holdings))
        return len(left)

    def _close(self) -> None:
        for service in reversed(self.services):
            service.stop()
        for service in reversed(self.services):
            service.join(timedelta(seconds=10))
        self.runner.close()
        try:
            if self._loop is not None:
                self._loop.stop()
        finally:
            self._sign_out()

    def _sign_out(self) -> None:
        if self._badge is not None:
            try:
                self._roster.sign_out(self.name)
            except Exception as error:
                logger.warning("could not sign out (%s); the row is swept later", describe(error))
