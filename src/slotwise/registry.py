"""The facade that users hold: which jobs there are, with which settings; and the worker that runs them."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from types import FrameType, TracebackType
from typing import Any, Self, TypeAlias

from slotwise.client import Client
from slotwise.clock import Clock
from slotwise.definition import Definition, define
from slotwise.engine.eventloop import Lifespan
from slotwise.engine.runner import Interceptor
from slotwise.engine.single import Ended, SingleRun
from slotwise.engine.worker import Worker
from slotwise.errors import ConfigurationError, InvalidJob
from slotwise.events import Listener, Listeners
from slotwise.settings import Settings
from slotwise.store.database import Database
from slotwise.store.store import Store

Customize: TypeAlias = Callable[[Settings], Settings]


class JobRegistry:
    """Jobs and tasks, their settings, and the worker of this process.

    ``jobs`` are DistributedJob instances (a class is instantiated if it takes no arguments) and functions under
    ``@job``; ``tasks`` are one-time tasks. Further keywords are settings (``poll_interval="5s"``) and win over
    the environment and slotwise.toml; ``customize`` gets the settings last and wins over everything.

    Building one never touches the database. ``start`` and ``stop`` run a worker inside this process; so do
    ``with registry:`` and, inside an asyncio application, ``async with registry:`` (async handlers then run on
    the application's loop, and no signal handler is touched).

    Raises InvalidJob, InvalidSetting or ConfigurationError with the cure in one line.
    """

    def __init__(
        self,
        *,
        jobs: Iterable[object] = (),
        tasks: Iterable[object] = (),
        lifespan: Lifespan | None = None,
        listeners: Iterable[Listener] = (),
        interceptors: Iterable[Interceptor] = (),
        customize: Customize | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        if jobs is None or tasks is None:
            raise InvalidJob("jobs cannot be None; pass a list of jobs")
        self.definitions: Mapping[str, Definition] = _unique([*map(define, jobs), *map(define, tasks)])
        self.settings = _customized(Settings.load(**settings), customize)
        self.lifespan = lifespan
        self.listeners = tuple(listeners)
        self.interceptors = tuple(interceptors)
        self._customize = customize
        self._clock = clock
        self._database: Database | None = None
        self._worker: Worker | None = None
        self._worker_pid: int | None = None
        self._hook: _ProcessHook | None = None
        #: Schedules one-time tasks; needs no worker in this process.
        self.client = Client(lambda: Store(self.database, self.definitions, clock=self._clock), wake=self._wake)

    @staticmethod
    def builder() -> RegistryBuilder:
        """The same, step by step: ``JobRegistry.builder().with_job(…).poll_interval("5s").build()``."""
        return RegistryBuilder()

    def configured(self, **settings: Any) -> Self:
        """Lay further settings over (the command line's do), then ``customize`` again. Not while running."""
        if self._running():
            raise ConfigurationError("the registry is running; stop it before changing its settings")
        self.settings = _customized(self.settings.with_(**settings), self._customize)
        self._database = None
        return self

    @property
    def database(self) -> Database:
        """The registry's own small pool, separate from the application's; connects at first use."""
        if self._database is None:
            self._database = Database(self.settings)
        return self._database

    @property
    def jobs(self) -> list[Definition]:
        """The jobs, by name."""
        return [self.definitions[name] for name in sorted(self.definitions) if self.definitions[name].is_job]

    def listen(self, listener: Listener) -> Self:
        """Tell this listener, too; of workers that are made from now on."""
        self.listeners = (*self.listeners, listener)
        return self

    def run_now(self, name: str) -> Ended:
        """Run one slot of the job now, in this process, under a claim that nobody else can take; how it ended.

        Works beside running workers, heartbeats included. A handler that failed is an outcome, not an exception.
        Raises UnknownTask, SchemaMissing, SchemaMismatch, ClaimLost, and what a missing database raises.
        """
        try:
            return self.make_run(name).run()
        finally:
            self.database.close()

    def make_run(self, name: str) -> SingleRun:
        """What ``run_now`` runs, for whoever wants to cancel it from another thread."""
        return SingleRun(self._make_worker(self.settings.with_(only=frozenset())), name)

    def make_worker(self, *, host_loop: asyncio.AbstractEventLoop | None = None, born: float | None = None) -> Worker:
        """A worker that has not started; ``start`` makes the usual one. ``born``: as for the Worker."""
        unknown = sorted(self.settings.only - set(self.definitions))
        if unknown:
            raise ConfigurationError(
                f"only names {', '.join(map(repr, unknown))}, which is not registered; "
                f"known: {', '.join(sorted(self.definitions))}"
            )
        return self._make_worker(self.settings, host_loop, born)

    def _make_worker(
        self, settings: Settings, host_loop: asyncio.AbstractEventLoop | None = None, born: float | None = None
    ) -> Worker:
        return Worker(
            settings,
            self.definitions,
            database=self.database,
            listeners=Listeners(self.listeners),
            interceptors=self.interceptors,
            lifespan=self.lifespan,
            host_loop=host_loop,
            client=self.client,
            clock=self._clock,
            version=own_version(),
            born=born,
        )

    # -- life -------------------------------------------------------------------------------------------------

    def start(self, *, host_loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start a worker in this process and return when it claims. Waits while the database is away.

        Verifies that every enabled job has its row. Raises SchemaMissing, SchemaMismatch or PlanMissing.
        In a script's main thread SIGTERM and SIGINT then drain first (``process_hook=False``: they do not).
        """
        if self._running():
            raise ConfigurationError("the registry is running already; stop it first")
        self._worker, self._worker_pid = self.make_worker(host_loop=host_loop), os.getpid()
        try:
            self._worker.start()
        except BaseException:
            self._worker = None
            self.database.close()
            raise
        if self.settings.process_hook and host_loop is None and threading.current_thread() is threading.main_thread():
            self._hook = _ProcessHook(self)
            self._hook.install()

    def stop(self, grace: timedelta | None = None) -> int:
        """Drain and stop; how many handlers were still running after ``grace``. A second stop changes nothing."""
        worker, self._worker = self._worker, None
        if worker is None or self._worker_pid != os.getpid():
            return 0
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        try:
            return worker.stop(grace)
        finally:
            self.database.close()

    @property
    def worker(self) -> Worker | None:
        """The running worker, if any."""
        return self._worker if self._running() else None

    def _wake(self) -> None:
        if (worker := self.worker) is not None:
            worker.wake()

    def _running(self) -> bool:
        """A worker started before a fork does not run in the child: its threads stayed behind."""
        return self._worker is not None and self._worker_pid == os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start, host_loop=asyncio.get_running_loop())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


class _ProcessHook:
    """Drains before the process ends: at exit, and on SIGTERM and SIGINT, whose former handlers come after it."""

    def __init__(self, registry: JobRegistry) -> None:
        self._registry = registry
        self._former: dict[int, Any] = {}
        self._drained = False
        self._draining: threading.Thread | None = None

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._former[number] = signal.signal(number, self._on_signal)
        atexit.register(self._registry.stop)

    def remove(self) -> None:
        """Put the former handlers back; only the main thread may, so a drain by signal leaves it to the handler."""
        atexit.unregister(self._registry.stop)
        if threading.current_thread() is threading.main_thread():
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Race: the main thread may be anywhere, so the drain is a thread's, and the signal comes again after it."""
        if self._drained:
            self._restore()
            os.kill(os.getpid(), number)
        elif self._draining is None:
            self._draining = threading.Thread(target=self._drain, args=(number,), name="slotwise-drain")
            self._draining.start()
        elif (worker := self._registry._worker) is not None:
            worker.request_stop()

    def _drain(self, number: int) -> None:
        worker = self._registry._worker
        if worker is not None:
            worker.request_stop()
        self._registry.stop()
        self._drained = True
        os.kill(os.getpid(), number)


class RegistryBuilder:
    """Builds a JobRegistry step by step; every setting has a method of its name."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {"jobs": [], "tasks": [], "listeners": [], "interceptors": []}
        self._options: dict[str, Any] = {}

    def with_job(self, job: object) -> Self:
        return self.with_jobs([job])

    def with_jobs(self, jobs: Iterable[object]) -> Self:
        if jobs is None:
            raise InvalidJob("jobs cannot be None; pass a list of jobs")
        self._parts["jobs"].extend(jobs)
        return self

    def with_task(self, task: object) -> Self:
        self._parts["tasks"].append(task)
        return self

    def with_listener(self, listener: Listener) -> Self:
        self._parts["listeners"].append(listener)
        return self

    def with_interceptor(self, interceptor: Interceptor) -> Self:
        self._parts["interceptors"].append(interceptor)
        return self

    def lifespan(self, lifespan: Lifespan) -> Self:
        return self.setting("lifespan", lifespan)

    def database_url(self, url: str) -> Self:
        return self.setting("database_url", url)

    def poll_interval(self, interval: timedelta | str) -> Self:
        return self.setting("poll_interval", interval)

    def heartbeat_interval(self, interval: timedelta | str) -> Self:
        return self.setting("heartbeat_interval", interval)

    def missed_heartbeats_limit(self, limit: int) -> Self:
        return self.setting("missed_heartbeats_limit", limit)

    def shutdown_grace(self, grace: timedelta | str) -> Self:
        return self.setting("shutdown_grace", grace)

    def threads(self, threads: int) -> Self:
        return self.setting("threads", threads)

    def process_hook(self, wanted: bool) -> Self:
        return self.setting("process_hook", wanted)

    def setting(self, name: str, value: Any) -> Self:
        """Any other setting, by name."""
        self._options[name] = value
        return self

    def customize(self, function: Customize) -> Self:
        """``function(settings) -> settings`` runs last, in ``build``, and wins over everything."""
        return self.setting("customize", function)

    def build(self) -> JobRegistry:
        """Check everything and build. Touches no database."""
        return JobRegistry(**self._parts, **self._options)


def _unique(definitions: list[Definition]) -> dict[str, Definition]:
    if not definitions:
        raise InvalidJob("at least one job or task must be registered; e.g. JobRegistry(jobs=[NightlyReport()])")
    double = [name for name, count in Counter(found.name for found in definitions).items() if count > 1]
    if double:
        raise InvalidJob(f"names must be unique within a registry; more than once: {', '.join(map(repr, double))}")
    return {found.name: found for found in definitions}


def _customized(settings: Settings, customize: Customize | None) -> Settings:
    if customize is None:
        return settings
    customized = customize(settings)
    if not isinstance(customized, Settings):
        raise ConfigurationError(
            f"customize returned {type(customized).__name__}; return the settings, e.g. settings.with_(threads=4)"
        )
    return customized


def own_version() -> str:
    """The version of slotwise that is installed."""
    try:
        return version("slotwise")
    except PackageNotFoundError:  # pragma: no cover - a source tree that was never installed
        return "unknown"
