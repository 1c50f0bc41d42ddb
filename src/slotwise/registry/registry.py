"""The facade: the jobs, the settings, and the worker that runs them."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, Self, Unpack

from slotwise.client.client import Client
from slotwise.engine.process.single_run import Ended, SingleRun
from slotwise.engine.run.event_loop import Lifespan
from slotwise.engine.run.hooks import BeforeStart, Hooks, Interceptor
from slotwise.engine.worker import Worker
from slotwise.errors import ConfigurationError
from slotwise.jobs.context import S_co
from slotwise.jobs.definition import Definition
from slotwise.jobs.functions import JobOf, TaskFor
from slotwise.model.clock import Clock
from slotwise.model.durations import parse_duration
from slotwise.model.events import Listener
from slotwise.model.identity import own_version
from slotwise.registry.beside import run_beside
from slotwise.registry.isolation import isolation_for
from slotwise.registry.life import Life
from slotwise.registry.validation import (
    Customize,
    by_settings,
    check_callables,
    check_hooks_by_name,
    check_lifespan,
    customized,
    defined,
    job_named,
    listed,
    refuse_own_loop,
    unique,
)
from slotwise.settings.keywords import SettingsKeywords
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.queue.queue import AtInsert
from slotwise.store.slots.settlement_hooks import AfterSettle
from slotwise.store.slots.store import Store

if TYPE_CHECKING:
    from slotwise.client.inspection import Inspection
    from slotwise.client.operations import Operations
    from slotwise.store.planning.deploy_preview import DeployChange

logger = logging.getLogger("slotwise.registry")


class JobRegistry(Generic[S_co]):
    """Jobs and tasks, their settings, and the worker of this process.

    ``jobs`` are DistributedJob instances (a class is instantiated if it takes no arguments) and
    functions under ``@job``; ``tasks`` are one-time tasks. ``lifespan`` yields ``ctx.state`` of
    their handlers, and type checkers compare its type. Further keywords are settings
    (``poll_interval="5s"``) and have precedence over the environment and slotwise.toml;
    ``customize`` receives the settings last and has precedence over everything.

    ``listeners`` receive every event after it happened, ``interceptors`` are context managers
    around each handler, ``before_start`` hooks refuse a start or hold something while the handler
    runs, ``at_insert`` hooks write in the transaction of each insert, and ``after_settle`` has the
    names of jobs and tasks with the hook in their settlements; see the page on events.

    Building a registry opens no connection. ``start`` and ``stop`` run a worker inside this
    process; so do ``with registry:`` and, inside an asyncio application, ``async with registry:``
    (async handlers then run on the application's loop, and signal handlers are left alone).

    Raises InvalidJob, InvalidSetting or ConfigurationError with the remedy in one line.
    """

    #: The class of its workers, for integrations that prepare a start or follow it.
    worker_class: ClassVar[type[Worker]] = Worker

    def __init__(
        self,
        *,
        jobs: Iterable[JobOf[S_co]] = (),
        tasks: Iterable[TaskFor[S_co]] = (),
        lifespan: Lifespan[S_co] | None = None,
        listeners: Iterable[Listener] = (),
        interceptors: Iterable[Interceptor] = (),
        before_start: Iterable[BeforeStart] = (),
        at_insert: Iterable[AtInsert] = (),
        after_settle: Mapping[str, AfterSettle] | None = None,
        customize: Customize | None = None,
        clock: Clock | None = None,
        config: Path | None = None,
        **settings: Unpack[SettingsKeywords],
    ) -> None:
        self._written = unique([*defined(jobs, "jobs"), *defined(tasks, "tasks")])
        self._asked = Settings.load(config=config, **settings)
        self._customize = customize
        self.settings = customized(self._asked, customize)
        self.definitions: Mapping[str, Definition] = by_settings(
            self._written, self.settings
        )
        self.hooks = Hooks(
            lifespan=check_lifespan(lifespan),
            listeners=tuple(check_callables(listeners, "listeners")),
            interceptors=tuple(check_callables(interceptors, "interceptors")),
            before_start=tuple(check_callables(before_start, "before_start")),
            at_insert=tuple(check_callables(at_insert, "at_insert")),
            after_settle=check_hooks_by_name(after_settle or {}),
        )
        self._clock = clock
        self._database: Database | None = None
        self._turn = (
            threading.Lock()
        )  # held for an assignment only, so that a fork does not find it taken
        self._life = Life(self._close_database)
        #: Schedules one-time tasks; needs no worker in this process.
        self.client = Client(
            self._store,
            wake=lambda: self._ask(lambda worker: worker.poller.poll_now()),
        )
        self._made: Store | None = None

    @staticmethod
    def builder() -> RegistryBuilder:
        """The same, step by step:
        ``JobRegistry.builder().with_job(…).settings(poll_interval="5s").build()``.
        """
        return RegistryBuilder()

    def configure(self, **settings: object) -> Self:
        """Apply further settings, such as those of a command line, then ``customize`` again.

        For hosts, before a start: raises ConfigurationError while the registry runs. Raises
        InvalidSetting.
        """
        self._refuse_while_running()
        asked = self._asked.replace(**settings)
        self.settings = customized(asked, self._customize)
        self._asked = asked
        self.definitions = {
            **self.definitions,
            **by_settings(self._written, self.settings),
        }
        self._close_database()
        self._database = None
        return self

    @contextmanager
    def overridden(self, **settings: object) -> Iterator[Self]:
        """Apply other settings within the block, with a database pool of their own; then all is as
        before.

        Raises InvalidSetting, and ConfigurationError while the registry runs.
        """
        self._refuse_while_running()
        before = self._asked, self.settings, self.definitions, self._database
        self._database = None
        try:
            yield self.configure(**settings)
        finally:
            self.stop(timedelta(0))
            self._close_database()
            self._asked, self.settings, self.definitions, self._database = before

    def _refuse_while_running(self) -> None:
        if self.is_running:
            raise ConfigurationError(
                "the registry is running; stop it before changing its settings"
            )

    @property
    def database(self) -> Database:
        """The registry's own small pool, separate from the application's; connects at first use.

        Race: several threads may be the first. All must get the same pool, or the others would
        never be closed.
        """
        if self._database is None:
            made = self.open_database()
            with self._turn:
                self._database = self._database or made
        return self._database

    def open_database(self) -> Database:
        """Return a new pool for these settings; integrations replace it. Nothing is connected."""
        return Database(self.settings)

    def _store(self) -> Store:
        """Return the client's store, a new one when the settings have changed."""
        made = self._made
        is_current = (
            made is not None
            and made.database is self.database
            and made.definitions is self.definitions
            and made.at_insert is self.hooks.at_insert
        )
        if made is None or not is_current:
            made = self._made = Store(
                self.database,
                self.definitions,
                clock=self._clock,
                at_insert=self.hooks.at_insert,
            )
        return made

    @property
    def jobs(self) -> list[Definition]:
        """The jobs, by name."""
        return [
            self.definitions[name]
            for name in sorted(self.definitions)
            if self.definitions[name].is_planned
        ]

    @property
    def operations(self) -> Operations:
        """Operations on jobs in the whole cluster: pause, resume, trigger, skip, cancel, retry,
        backfill, delete.
        """
        return self.client.operations

    @property
    def inspect(self) -> Inspection:
        """Reads jobs, slots, tasks and workers for people and dashboards; changes nothing."""
        return self.client.inspect

    def add(
        self, jobs: Iterable[object] = (), *, tasks: Iterable[object] = ()
    ) -> Self:
        """Add jobs, such as those of a file that the command line names, and tasks; for hosts,
        before a start.

        Raises ConfigurationError if a name is taken.
        """
        given = [*defined(jobs, "jobs"), *defined(tasks, "tasks")]
        added = unique(given) if given else {}
        if double := sorted(added.keys() & self.definitions.keys()):
            raise ConfigurationError(
                f"the registry has jobs or tasks of the same names already: {', '.join(double)}"
            )
        self.definitions = {**self.definitions, **added}
        return self

    def preview(self, *, installed: bool = True) -> list[DeployChange]:
        """Return, by name of the job, what starting a worker of these jobs would change in the
        database; nothing is changed.

        ``installed=False``: compare with empty tables instead, as an upgrade will create them;
        needs no database. Raises SchemaMissing, SchemaMismatch or another DatabaseProblem.
        """
        from slotwise.registry import deploy  # late: it brings the planner and alembic

        return deploy.preview(self) if installed else deploy.preview_of_first(self)

    def listen(self, listener: Listener) -> Self:
        """Add a listener, for workers that are created from now on."""
        known = self.hooks.listeners
        self.hooks = replace(self.hooks, listeners=(*known, listener))
        return self

    def run_now(self, name: str) -> Ended:
        """Run one slot of the job now, in this process, under a claim of its own; return how it
        ended.

        Works beside running workers, heartbeats included. A handler that failed is an outcome, not
        an exception. Raises UnknownTask, SchemaMissing, SchemaMismatch, ClaimLost, and the errors
        of an unavailable database.
        """
        try:
            return self.single_run(name).run()
        finally:
            self.database.close()

    # -- for hosts: a worker that they run themselves ---------------------------------------------

    def single_run(self, name: str) -> SingleRun:
        """Return a run of one slot of the job now, which a host starts, and may cancel; ``run_now``
        is the short form.

        Raises UnknownTask, and ConfigurationError for a one-time task. Close ``database`` after it.
        """
        return SingleRun(self.worker_of_one_slot(name), self.definitions[name])

    def worker_of_one_slot(self, name: str) -> Worker:
        """Return a worker that has not started, for a slot of this job, whatever ``only`` says.

        Raises UnknownTask, and ConfigurationError for a one-time task.
        """
        job_named(self.definitions, name)
        return self._build_worker(self.settings.replace(only=frozenset()))

    def make_worker(
        self,
        *,
        host_loop: asyncio.AbstractEventLoop | None = None,
        born: float | None = None,
    ) -> Worker:
        """Return a worker that has not started, for a host that runs it itself, such as
        Foreground; ``start`` makes the usual one.

        ``host_loop`` runs the ``async def`` handlers. ``born``: when the process that stands for
        this deploy started, in elapsed seconds. Raises ConfigurationError if ``only`` names what
        is not registered, or ``after_settle`` does.
        """
        for what, names in (
            ("only", self.settings.only),
            ("after_settle", self.hooks.after_settle.keys()),
        ):
            if unknown := sorted(names - self.definitions.keys()):
                raise ConfigurationError(
                    f"{what} names {', '.join(map(repr, unknown))}, which is not registered; "
                    f"known: {', '.join(sorted(self.definitions))}"
                )
        return self._build_worker(self.settings, host_loop, born)

    def _build_worker(
        self,
        settings: Settings,
        host_loop: asyncio.AbstractEventLoop | None = None,
        born: float | None = None,
    ) -> Worker:
        isolate = isolation_for(self.definitions.values(), settings)
        return self.worker_class(
            settings,
            self.definitions,
            database=self.database,
            hooks=self.hooks,
            isolate=isolate,
            host_loop=host_loop,
            client=self.client,
            clock=self._clock,
            version=own_version(),
            born=born,
        )

    # -- life -------------------------------------------------------------------------------------

    def start(
        self,
        *,
        host_loop: asyncio.AbstractEventLoop | None = None,
        timeout: timedelta | str | None = None,
        wait: bool = True,
    ) -> None:
        """Start a worker in this process and return when it claims. Waits while the database is
        away.

        ``timeout`` bounds that wait; an attempt to connect may take up to a heartbeat interval
        longer. Then DatabaseUnreachable is raised. With ``wait=False`` it returns at once, and a
        thread starts the worker. If that fails, the error is logged and is the ``start_error``;
        ``stop`` ends it in any state.

        In a script's main thread, SIGTERM and SIGINT then drain the worker, unless
        ``process_hook=False``. If another thread stops it meanwhile, it returns without a worker.
        ``host_loop`` runs the ``async def`` handlers; do not wait in that loop for this call: use
        ``async with``, or ``wait=False``.

        Raises DatabaseRefused, SchemaMissing, SchemaMismatch or PlanMissing, and what the lifespan
        raises; then nothing is left running. Raises ConfigurationError if it is running, also in
        the parent of a forked process.
        """
        limit = None if timeout is None else parse_duration(timeout)
        if limit is not None and not wait:
            raise ConfigurationError(
                "start(): pass timeout, or wait=False, which waits for nothing"
            )
        if wait:
            refuse_own_loop(host_loop)
        worker = self.make_worker(host_loop=host_loop)
        self._life.adopt(worker)
        in_script = (
            host_loop is None and threading.current_thread() is threading.main_thread()
        )
        try:
            if not wait:
                self._life.start_aside(worker)
            elif not self._life.start(worker, limit):
                return
            if self.settings.process_hook and in_script:
                self._life.end_with_process(worker)
        except BaseException:  # a Ctrl-C, too, that comes just after the start
            self.stop(timedelta(0))
            raise

    def start_aside(
        self, host_loop: asyncio.AbstractEventLoop | None = None
    ) -> threading.Thread:
        """Start a worker on a thread of its own, for a host, and return that thread.

        If the start fails, that is logged and is the ``start_error``. Raises ConfigurationError as
        ``start`` does.
        """
        worker = self.make_worker(host_loop=host_loop)
        self._life.adopt(worker)
        return self._life.start_aside(worker)

    @property
    def start_error(self) -> BaseException | None:
        """Why the last start on a thread of its own failed; None while it runs, and if it
        succeeded.
        """
        return self._life.start_error

    def stop(self, grace: timedelta | None = None) -> int:
        """Drain and stop. Return how much was left behind after ``grace`` (default:
        ``shutdown_grace``): handlers that did not stop, outcomes that could not be written, a
        lifespan that was not left.

        Such handlers keep their claims until they return or the process ends, so no other worker
        starts their slots. A second call waits for the first one. Raises what the lifespan raises
        on exit, after everything has ended.
        """
        return self._life.stop(grace)

    @property
    def worker(self) -> Worker | None:
        """The running worker, if any."""
        return self._life.worker

    @property
    def is_running(self) -> bool:
        """Whether a worker runs in this process. After a fork the child has no threads, so it does
        not run there.
        """
        return self.worker is not None

    def _ask(self, request: Callable[[Worker], object]) -> None:
        if (worker := self.worker) is not None:
            request(worker)

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()  # the client may have used it

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        start = functools.partial(self.start, host_loop=asyncio.get_running_loop())
        await run_beside(
            start, on_cancel=lambda: self._ask(Worker.request_stop), undo=self.stop
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_beside(self.stop, on_cancel=lambda: self._ask(Worker.cancel))


class RegistryBuilder:
    """Build a JobRegistry step by step, with the same checks and messages as its constructor."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self._options: dict[str, Any] = {}

    def with_job(self, job: JobOf[Never]) -> Self:
        return self.with_jobs([job])

    def with_jobs(self, jobs: Iterable[JobOf[Never]]) -> Self:
        return self._with("jobs", *listed(jobs, "jobs"))

    def with_task(self, task: TaskFor[Never]) -> Self:
        return self.with_tasks([task])

    def with_tasks(self, tasks: Iterable[TaskFor[Never]]) -> Self:
        return self._with("tasks", *listed(tasks, "tasks"))

    def with_listener(self, listener: Listener) -> Self:
        return self._with("listeners", listener)

    def with_interceptor(self, interceptor: Interceptor) -> Self:
        return self._with("interceptors", interceptor)

    def with_before_start(self, hook: BeforeStart) -> Self:
        return self._with("before_start", hook)

    def with_at_insert(self, hook: AtInsert) -> Self:
        return self._with("at_insert", hook)

    def with_after_settle(self, name: str, hook: AfterSettle) -> Self:
        """Call the hook in settlements of the job or task of this name; the last hook counts."""
        self._parts.setdefault("after_settle", {})[name] = hook
        return self

    def lifespan(self, lifespan: Lifespan) -> Self:
        self._options["lifespan"] = lifespan
        return self

    def settings(self, **settings: Unpack[SettingsKeywords]) -> Self:
        """Set any settings by keyword, as in the constructor; a later call changes those that
        it names.
        """
        self._options.update(settings)
        return self

    def customize(self, function: Customize) -> Self:
        """``function(settings) -> settings`` runs last, in ``build``, and has precedence over
        everything.
        """
        self._options["customize"] = function
        return self

    def build(self) -> JobRegistry:
        """Check everything and build. Opens no connection."""
        return JobRegistry(**self._options | self._parts)

    def _with(self, part: str, *given: object) -> Self:
        self._parts.setdefault(part, []).extend(given)
        return self
