"""A registry in a web server's process: its worker starts and stops with the server, and forks are
refused by rule.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401  # its exit handler must come before ours
import inspect
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from slotwise.client.client import Client
from slotwise.errors import (
    ConfigurationError,
    DatabaseProblem,
    InvalidSetting,
    SlotwiseError,
)
from slotwise.model.durations import parse_duration
from slotwise.registry.beside import run_beside
from slotwise.registry.registry import JobRegistry

logger = logging.getLogger("slotwise.host")

#: A registry, or a function that makes one: called once in each process, after the server's fork.
RegistrySource: TypeAlias = JobRegistry | Callable[[], JobRegistry]

HostState: TypeAlias = Literal["client", "stopped", "starting", "running", "failed"]

#: How long a start may keep the server waiting, so that a mistake ends it. An absent database
#: takes longer.
START_WAIT: Final = timedelta(seconds=2)


class Host:
    """Runs a registry inside a process that belongs to a web server.

    With ``worker``, ``start`` starts a worker on a thread of its own. It waits for it for
    ``start_wait`` at most, so that missing tables or a wrong password end the server's start.
    While the database is away, the server starts without the worker, which follows as soon as the
    database is back. Without ``worker`` there is the client alone.

    After a fork the child has no worker, since threads stay in the parent. If the start came
    before the fork, every use in the child raises ConfigurationError with the hook to use instead;
    ``hook`` names it.
    """

    def __init__(
        self,
        registry: RegistrySource,
        *,
        worker: bool = True,
        start_wait: timedelta | str = START_WAIT,
        hook: str = "start it in gunicorn's post_worker_init hook, or without --preload",
        caller: str = "Host",
    ) -> None:
        if not isinstance(registry, JobRegistry) and not _is_factory(registry):
            raise ConfigurationError(
                f"{caller}: {registry!r:.80} is no registry; pass a JobRegistry, "
                "or a function without arguments that makes one"
            )
        if not isinstance(worker, bool):
            raise ConfigurationError(
                f"{caller}: worker is {worker!r:.80}; write True or False"
            )
        self._source = registry
        self._worker = worker
        self._hook = hook
        try:
            self._start_wait = parse_duration(start_wait).total_seconds()
        except InvalidSetting as error:
            raise ConfigurationError(f"{caller}: start_wait: {error}") from None
        self._made: tuple[int, JobRegistry] | None = None
        self._pid: int | None = None
        self._turn = threading.Lock()
        #: Starts the worker; before a start, a thread that does nothing.
        self._thread = threading.Thread()
        self._error: BaseException | None = None

    @property
    def registry(self) -> JobRegistry:
        """The registry of this process. Raises ConfigurationError in a child of the process that
        has started it.
        """
        self._refuse_fork()
        if isinstance(self._source, JobRegistry):
            return self._source
        if self._made is None or self._made[0] != os.getpid():
            try:
                made = self._source()
            except SlotwiseError:
                raise
            except Exception as error:
                raise ConfigurationError(
                    f"{self._source!r:.80} raised {type(error).__name__}: "
                    f"{' '.join(str(error).split())}; it must return a JobRegistry"
                ) from error
            if not isinstance(made, JobRegistry):
                raise ConfigurationError(
                    f"{self._source!r:.80} returned {made!r:.80}; it must return a JobRegistry"
                )
            self._made = os.getpid(), made
        return self._made[1]

    @property
    def client(self) -> Client:
        """The registry's client. Raises what ``registry`` raises."""
        return self.registry.client

    @property
    def state(self) -> HostState:
        """``client`` without a worker; else ``stopped``, ``starting``, ``running`` or
        ``failed``.
        """
        self._refuse_fork()
        if not self._worker:
            return "client"
        if self._start_error() is not None:
            return "failed"
        if self._pid is None:
            return "stopped"
        return "starting" if self._thread.is_alive() else "running"

    @property
    def failure(self) -> str | None:
        """Why the worker could not start, in one line; None unless it is ``failed``."""
        error = self._start_error()
        return None if error is None else " ".join(str(error).split())

    def _start_error(self) -> BaseException | None:
        if self._error is None and self._pid is not None:
            return self.registry.start_error
        return self._error

    def start(self, *, host_loop: asyncio.AbstractEventLoop | None = None) -> bool:
        """Start the worker of this process, once; a second call changes nothing and returns False.

        ``host_loop`` runs the ``async def`` handlers; call this from another thread then. Raises
        what ``registry.start`` raises within ``start_wait``. Later failures are logged and are the
        ``failure``.
        """
        registry = self.registry
        with self._turn:
            if self._pid is not None:
                return False
            if not self._worker:
                return True
            self._launch(registry, host_loop)
        self._thread.join(self._start_wait)
        if self._thread.is_alive():
            logger.warning(
                "the server starts without its worker, which still waits for the database"
            )
        elif (failure := registry.start_error) is not None:
            self._error = failure
            self._pid = None
            raise failure
        return True

    def _launch(
        self, registry: JobRegistry, host_loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self._error = None
        try:
            if registry.is_running:
                raise ConfigurationError(
                    "the registry is running already in this process; stop it "
                    "first, or pass worker=False"
                )
            self._thread = registry.start_aside(host_loop)
        except Exception as error:
            self._error = error
            logger.error("the worker cannot start: %s", error)
            raise
        self._pid = os.getpid()

    def stop(self) -> int:
        """Drain and stop the worker, and close the client's connections; return what
        ``registry.stop`` returns.

        A worker that another caller has started keeps running.
        """
        is_parents = self._pid is not None and self._pid != os.getpid()
        if is_parents or not (isinstance(self._source, JobRegistry) or self._made):
            return 0
        registry = self.registry
        if self._pid is None and registry.is_running:
            return 0
        left = registry.stop()
        self._pid = self._error = None
        return left

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Host]:
        """Run the worker beside the running event loop, until the block is left; the loop runs
        the ``async def`` handlers.

        The outermost of several blocks starts and stops it. Raises what ``start`` raises.
        """
        loop = asyncio.get_running_loop()
        is_ours = True

        def start() -> None:
            nonlocal is_ours
            is_ours = self.start(host_loop=loop)

        try:
            await run_beside(start)
            yield self
        finally:
            if is_ours:  # else the block that has started it stops it
                await run_beside(self.stop)

    def problem(self) -> str | None:
        """Return why this process cannot serve jobs, in one line; None if all is well.

        Checks the worker's state, and the database for the client. Waits for the database as long
        as a connection may take.
        """
        try:
            state = self.state
            if state == "failed":
                return f"the worker cannot start: {self.failure}"
            if state == "stopped":
                return "the worker is stopped"
            self.registry.inspect.now()
        except DatabaseProblem as error:
            reason = " ".join(str(error).split())
            return (
                f"the worker is starting, and waits for the database: {reason}"
                if state == "starting"
                else reason
            )
        except ConfigurationError as error:  # after a fork
            return str(error)
        return "the worker is starting" if state == "starting" else None

    def start_once(self) -> None:
        """Start the worker of this process, once, and stop it when the process ends: for hosts
        without a hook for that.

        Raises what ``start`` raises.
        """
        if self.state != "stopped":
            return
        # ``atexit`` runs after concurrent.futures has closed its pools, which handlers may use.
        register = getattr(
            threading, "_register_atexit", atexit.register
        )  # private, available since 3.9
        register(self._stop_in, os.getpid())
        self.start()

    def start_at_request(self) -> None:
        """As ``start_once``, and serve even if the worker cannot start. Raises ConfigurationError
        after a fork.
        """
        if self.state == "stopped":
            with suppress(SlotwiseError):  # the log has it, and the health check
                self.start_once()

    def _stop_in(self, pid: int) -> None:
        if pid == os.getpid():
            self.stop()

    def _refuse_fork(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            raise ConfigurationError(
                f"the worker was started in process {self._pid} before the server "
                f"forked process {os.getpid()}, which has none; {self._hook}"
            )


def _is_factory(source: object) -> bool:
    """Whether this can be called without arguments; a class is none."""
    if isinstance(source, type) or not callable(source):
        return False
    try:
        inspect.signature(source).bind()
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True
