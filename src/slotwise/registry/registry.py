"""The facade: the jobs, the settings, and the worker that runs them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack

from slotwise.client.client import Client
from slotwise.engine.process.isolation import Isolation
from slotwise.engine.process.signals import ProcessHook
from slotwise.engine.process.slot_run import Ended, SingleRun, SlotRun, Wanted
from slotwise.engine.run.event_loop import Lifespan
from slotwise.engine.run.runner import BeforeStart, Interceptor
from slotwise.engine.worker import Hooks, Worker, aside
from slotwise.errors import (
    ConfigurationError,
    DatabaseUnreachable,
    DriverMissing,
    InvalidJob,
    InvalidSetting,
    SlotwiseError,
    located,
)
from slotwise.jobs.definition import Definition, define, rescheduled
from slotwise.model.clock import Clock
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.events import Listener
from slotwise.model.identity import own_version
from slotwise.registry.beside import run_beside
from slotwise.settings.settings import Settings, SettingsKeywords, place
from slotwise.store.connect.database import Database
from slotwise.store.connect.dsn import database_url
from slotwise.store.queue.queue import AtInsert
from slotwise.store.slots.settlement_hooks import AfterSettle
from slotwise.store.slots.store import Store

if TYPE_CHECKING:
    from slotwise.client.inspection import Inspection
    from slotwise.client.operations import Operations
    from slotwise.store.planning.deploy_preview import DeployChange

logger = logging.getLogger("slotwise.registry")

Customize: TypeAlias = Callable[[Settings], Settings]
Called = TypeVar("Called")


class JobRegistry:
    """Jobs and tasks, their settings, and the worker of this process.

    ``jobs`` are DistributedJob instances (a class is instantiated if it takes no arguments) and
    functions under ``@job``; ``tasks`` are one-time tasks. Further keywords are settings
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

    def __init__(
        self,
        *,
        jobs: Iterable[object] = (),
        tasks: Iterable[object] = (),
        lifespan: Lifespan | None = None,
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
        self.lifespan = check_lifespan(lifespan)
        self.listeners = tuple(check_callables(listeners, "listeners"))
        self.interceptors = tuple(check_callables(interceptors, "interceptors"))
        self.hooks = Hooks(
            before_start=tuple(check_callables(before_start, "before_start")),
            at_insert=tuple(check_callables(at_insert, "at_insert")),
            after_settle=check_hooks_by_name(after_settle or {}),
        )
        self._clock = clock
        self._database: Database | None = None
        self._turn = (
            threading.Lock()
        )  # held for an assignment only, so that a fork does not find it taken
        self._worker: Worker | None = None
        self._worker_pid: int | None = None
        self._starter: threading.Thread | None = None
        self._hook: ProcessHook | None = None
        #: Why the last ``start(wait=False)`` failed; None while it goes on, and if it succeeded.
        self.start_error: BaseException | None = None
        #: Schedules one-time tasks; needs no worker in this process.
        self.client = Client(
            self._store, wake=lambda: self._ask(lambda worker: worker.poller.poll_now())
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
        self.definitions = {**self.definitions, **by_settings(self._written, self.settings)}
        if self._database is not None:
            self._database.close()
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
            if self._database is not None:
                self._database.close()
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
            made = Database(self.settings)
            with self._turn:
                self._database = self._database or made
        return self._database

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
            if self.definitions[name].is_job
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

    def add(self, jobs: Iterable[object]) -> Self:
        """Add jobs, such as those of a file that the command line names; for hosts, before a
        start.

        Raises ConfigurationError if a name is taken.
        """
        added = {found.name: found for found in defined(jobs, "jobs")}
        if double := sorted(added.keys() & self.definitions.keys()):
            raise ConfigurationError(
                f"the registry has jobs of the same names already: {', '.join(double)}"
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
        self.listeners = (*self.listeners, listener)
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
        return SingleRun(self._worker_of_one_slot(), name)

    def slot_run(
        self,
        name: str,
        wanted: Wanted = "due",
        *,
        early: timedelta = timedelta(0),
        waits: bool = True,
        tell: Callable[[str], object] = lambda line: None,
    ) -> SlotRun:
        """Return a run of one slot of the job's schedule, as in the pod of a CronJob.

        ``wanted``: the newest slot that has come, the one before it, or the one of an instant.
        ``early``: how long to wait for a slot that is about to come. ``waits``: wait for another
        holder where no worker is live. ``tell`` receives a line for each wait. Raises UnknownTask,
        and ConfigurationError for a one-time task. Close ``database`` after it.
        """
        worker = self._worker_of_one_slot()
        return SlotRun(worker, name, wanted, early=early, waits=waits, tell=tell)

    def _worker_of_one_slot(self) -> Worker:
        """A worker for one slot in the foreground, whatever ``only`` says."""
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
        isolated = sorted(
            name for name, found in self.definitions.items() if found.isolation
        )
        if isolated and settings.app is None:
            raise ConfigurationError(
                f'{", ".join(isolated)}: isolation="process" needs to import the '
                "application again; say where it is: "
                'JobRegistry(…, app="package.module:registry"), or SLOTWISE_APP'
            )
        return Worker(
            settings,
            self.definitions,
            database=self.database,
            listeners=self.listeners,
            interceptors=self.interceptors,
            hooks=self.hooks,
            lifespan=self.lifespan,
            # A child that does not stop is killed before the shutdown gives it up.
            isolate=Isolation(
                settings.told(), settings.app, patience=aside(settings) * 0.6
            ).run,
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
        starts = threading.Thread(
            target=self._start_aside, args=(worker,), name="slotwise-start", daemon=True
        )
        self._adopt(worker, threading.current_thread() if wait else starts)
        in_script = (
            host_loop is None and threading.current_thread() is threading.main_thread()
        )
        try:
            if not wait:
                starts.start()
            else:
                _start_within(worker, limit)
                if worker.asked_meanwhile:
                    self._forget(worker)
                    return
            if self.settings.process_hook and in_script:
                self._install_hook(worker)
        except BaseException:  # a Ctrl-C, too, that comes just after the start
            self.stop(timedelta(0))
            raise

    def _adopt(self, worker: Worker, starter: threading.Thread) -> None:
        """Make this the registry's worker. Raises ConfigurationError if it has one."""
        with self._turn:
            if self.is_running:
                raise ConfigurationError("the registry is running already; stop it first")
            if self._worker is not None:
                raise ConfigurationError(
                    f"the worker was started in process {self._worker_pid} before process "
                    f"{os.getpid()} was forked, which has none; start it after the fork, e.g. "
                    "in gunicorn's post_worker_init hook, or without --preload"
                )
            self._worker = worker
            self._worker_pid = os.getpid()
            self._hook = None
            self._starter = starter
            self.start_error = None

    def _start_aside(self, worker: Worker) -> None:
        try:
            worker.start()
        except BaseException as error:
            self.start_error = error
            logger.error(
                "the worker cannot start: %s",
                error,
                exc_info=not isinstance(error, SlotwiseError),
            )
            self._forget(worker)
        else:
            if worker.asked_meanwhile:
                self._forget(worker)

    def stop(
        self,
        grace: timedelta | None = None,
        *,
        started_by: threading.Thread | None = None,
    ) -> int:
        """Drain and stop. Return how much was left behind after ``grace`` (default:
        ``shutdown_grace``): handlers that did not stop, outcomes that could not be written, a
        lifespan that was not left.

        Such handlers keep their claims until they return or the process ends, so no other worker
        starts their slots. A second call waits for the first one. Raises what the lifespan raises
        on exit, after everything has ended. ``started_by``: stop only a worker that this thread has
        started, and leave that of another caller alone.
        """
        # Race: another caller may start the registry meanwhile. So the worker is read before it
        # is judged.
        worker = self._worker
        is_others = self.is_running and started_by not in (None, self._starter)
        if is_others:
            return 0
        if worker is None or self._worker_pid != os.getpid():
            if self._database is not None:
                self._database.close()  # the client may have used it
            return 0
        try:
            return worker.stop(grace)
        finally:
            if not worker.is_starting:  # else in this very thread, which then goes on there
                self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        """Forget a stopped worker. Race: a second stop may come here late, after another worker
        was started.
        """
        with self._turn:
            if self._worker is not worker:
                return
            self._worker = None
            hook = self._hook
            self._hook = None
        if hook is not None:
            hook.remove()
        self.database.close()

    def _install_hook(self, worker: Worker) -> None:
        hook = ProcessHook(self.stop, worker.cancel)
        hook.install()
        with self._turn:
            if self._worker is not worker:
                hook.remove()  # by another thread, just now
            else:
                self._hook = hook

    @property
    def worker(self) -> Worker | None:
        """The running worker, if any."""
        return self._worker if self.is_running else None

    def _ask(self, request: Callable[[Worker], object]) -> None:
        if (worker := self.worker) is not None:
            request(worker)

    @property
    def is_running(self) -> bool:
        """Whether a worker runs in this process. After a fork the child has no threads, so it does
        not run there.
        """
        return self._worker is not None and self._worker_pid == os.getpid()

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

    def with_job(self, job: object) -> Self:
        return self.with_jobs([job])

    def with_jobs(self, jobs: Iterable[object]) -> Self:
        return self._with("jobs", *listed(jobs, "jobs"))

    def with_task(self, task: object) -> Self:
        return self.with_tasks([task])

    def with_tasks(self, tasks: Iterable[object]) -> Self:
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


def _start_within(worker: Worker, limit: timedelta | None) -> None:
    """Start the worker. Raise DatabaseUnreachable if it has not started within ``limit``."""
    if limit is None:
        worker.start()
        return
    too_late = threading.Event()

    def give_up() -> None:  # race: it may have started just now; then it is stopped again
        too_late.set()
        worker.request_stop()

    timer = threading.Timer(limit.total_seconds(), give_up)
    timer.daemon = True
    timer.start()
    try:
        worker.start()
    finally:
        timer.cancel()
    if too_late.is_set():
        raise DatabaseUnreachable(
            f"the worker could not start within {format_duration(limit)}: the "
            "database does not answer, or rows stayed "
            "locked; the log has the reason"
        )


# -- validation: each error is one line with the cure ---------------------------------------------


def check_callables(given: Iterable[Called], what: str) -> Iterable[Called]:
    """Yield what was given. Raise ConfigurationError for something that cannot be called."""
    for one in listed(given, what):
        if not callable(one):
            raise ConfigurationError(f"{what}: {one!r:.80} cannot be called")
        yield one


def check_hooks_by_name(given: Mapping[str, AfterSettle]) -> Mapping[str, AfterSettle]:
    """Return the hooks. Raise ConfigurationError unless each name has one that can be called."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"after_settle is {given!r:.80}; name the jobs and tasks whose settlements a hook "
            'receives: after_settle={"report": hook}'
        )
    check_all = check_callables(given.values(), "after_settle")
    return dict(zip(given, check_all, strict=True))


def check_lifespan(lifespan: Called) -> Called:
    """Return the lifespan. Raise ConfigurationError unless a call of it makes an asynchronous
    context manager.
    """
    if lifespan is not None and not callable(lifespan):
        raise ConfigurationError(
            f"lifespan is {lifespan!r:.80}; pass the function, without calling it"
        )
    if inspect.isasyncgenfunction(lifespan) or inspect.iscoroutinefunction(lifespan):
        name = getattr(lifespan, "__name__", lifespan)
        raise ConfigurationError(
            f"lifespan {name} is not a context manager; put "
            "@contextlib.asynccontextmanager above it"
        )
    return lifespan


def refuse_own_loop(host_loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise ConfigurationError rather than block the loop that the start needs."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if host_loop is running:
        raise ConfigurationError(
            "start would block the event loop that it needs; use: async with registry"
        )


def defined(given: Iterable[object], what: str) -> Iterable[Definition]:
    """Yield the definitions of one of the two keywords. Raise InvalidJob for one that belongs
    under the other.
    """
    for found in map(define, listed(given, what)):
        if found.is_job and what == "tasks":
            raise InvalidJob(
                f"{found.name!r} among tasks has a schedule, so it is a job; pass it in jobs=[…]"
            )
        if not found.is_job and what == "jobs":
            raise InvalidJob(
                f"{found.name!r} among jobs is a one-time task, without a "
                "schedule; pass it in tasks=[…]"
            )
        yield found


def definitions_of(subjects: Iterable[object]) -> dict[str, Definition]:
    """Return the definitions of jobs and tasks by name. Raise InvalidJob with the cure."""
    return unique([define(one) for one in listed(subjects, "jobs")])


def unique(definitions: list[Definition]) -> dict[str, Definition]:
    """Return the definitions by name. Raise InvalidJob for two of one name, and if there are
    none.
    """
    if not definitions:
        raise InvalidJob(
            "at least one job or task must be registered; e.g. JobRegistry(jobs=[NightlyReport()])"
        )
    double = [
        name
        for name, count in Counter(found.name for found in definitions).items()
        if count > 1
    ]
    if double:
        raise InvalidJob(
            "names must be unique within a registry; more than once: "
            f"{', '.join(map(repr, double))}"
        )
    return {found.name: found for found in definitions}


def by_settings(
    definitions: Mapping[str, Definition], settings: Settings
) -> dict[str, Definition]:
    """Return the definitions, jobs with the schedules that the settings have for them."""
    found = dict(definitions)
    try:
        for name, text in sorted(settings.schedules):
            if name not in found:
                near = get_close_matches(name, found, n=1)
                hint = (
                    f"did you mean {near[0]!r}?"
                    if near
                    else f"known: {', '.join(sorted(found))}"
                )
                raise ConfigurationError(
                    f"schedules names {name!r}, which is not registered; {hint}"
                )
            found[name] = rescheduled(found[name], text, f"schedules[{name!r}]")
    except SlotwiseError as error:
        error.place = place("schedules", settings.schedules)
        raise
    return found


def customized(settings: Settings, customize: Customize | None) -> Settings:
    """Return the settings that ``customize`` makes of these. Raise InvalidSetting for an invalid
    address.

    ``DATABASE_URL`` is shared with other programs, and the command line may override it, so it is
    read when it is used.
    """
    if customize is not None:
        if not callable(customize):
            raise ConfigurationError(
                f"customize is {customize!r:.80}; pass a function from settings to settings"
            )
        settings = customize(settings)
        if not isinstance(settings, Settings):
            kind = type(settings).__name__
            raise ConfigurationError(
                f"customize returned {kind}; return the settings, e.g. settings.replace(threads=4)"
            )
    with suppress(DriverMissing):
        if settings.database_url not in (None, os.environ.get("DATABASE_URL", "").strip()):
            database_url(settings.database_url)
        if settings.wake_up_url is not None:
            with located("wake_up_url", InvalidSetting):
                database_url(settings.wake_up_url)
    return settings


def listed(given: Iterable[Called], what: str) -> Iterable[Called]:
    """Return what was given. Raise InvalidJob if it cannot be iterated over."""
    if given is None:
        raise InvalidJob(f"{what} cannot be None; pass a list of {what}")
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidJob(f"{what} is {given!r:.80}; pass a list of {what}")
    return given
