"""The worker of a process: started here or on a thread, stopped by anybody, at most one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta

from slotwise.engine.process.signals import ProcessHook
from slotwise.engine.worker import Worker
from slotwise.errors import ConfigurationError, DatabaseUnreachable, SlotwiseError
from slotwise.model.durations import format_duration

logger = logging.getLogger("slotwise.registry")


class Life:
    """The worker of this process, from its start to its end. A fork of the process has none."""

    def __init__(self, close_database: Callable[[], None]) -> None:
        self._close_database = close_database
        # Held for an assignment only, so that a fork does not find it taken.
        self._turn = threading.Lock()
        self._worker: Worker | None = None
        self._pid: int | None = None
        self._hook: ProcessHook | None = None
        self.start_error: BaseException | None = None

    @property
    def worker(self) -> Worker | None:
        return self._worker if self._pid == os.getpid() else None

    def adopt(self, worker: Worker) -> None:
        """Make this the worker of the process. Raises ConfigurationError if it has one."""
        with self._turn:
            if self.worker is not None:
                raise ConfigurationError(
                    "the registry is running already; stop it first"
                )
            if self._worker is not None:
                raise ConfigurationError(
                    f"the worker was started in process {self._pid} before process "
                    f"{os.getpid()} was forked, which has none; start it after the fork, e.g. "
                    "in gunicorn's post_worker_init hook, or without --preload"
                )
            self._worker = worker
            self._pid = os.getpid()
            self._hook = None
            self.start_error = None

    def start(self, worker: Worker, limit: timedelta | None) -> bool:
        """Start it in this thread; return False if another thread has stopped it meanwhile.

        Raises DatabaseUnreachable if it has not started within ``limit``.
        """
        _start_within(worker, limit)
        if worker.asked_meanwhile:
            self._forget(worker)
            return False
        return True

    def start_aside(self, worker: Worker) -> threading.Thread:
        """Start it on a thread of its own; an error is logged, and is the ``start_error``."""
        thread = threading.Thread(
            target=self._start_and_log,
            args=(worker,),
            name="slotwise-start",
            daemon=True,
        )
        thread.start()
        return thread

    def _start_and_log(self, worker: Worker) -> None:
        try:
            self.start(worker, None)
        except BaseException as error:
            self.start_error = error
            is_ours = isinstance(error, SlotwiseError)
            logger.error("the worker cannot start: %s", error, exc_info=not is_ours)
            self._forget(worker)

    def end_with_process(self, worker: Worker) -> None:
        """Drain the worker when the script ends, or on a signal; from the main thread only."""
        hook = ProcessHook(self.stop, worker.cancel, worker.request_stop)
        hook.install()
        with self._turn:
            if self._worker is worker:
                self._hook = hook
                return
        hook.remove()  # another thread has stopped it just now

    def stop(self, grace: timedelta | None = None) -> int:
        """Drain and stop the worker, if there is one; return what ``Worker.stop`` returns."""
        # Race: another caller may start one meanwhile. So it is read once.
        worker = self.worker
        if worker is None:
            self._close_database()
            return 0
        try:
            return worker.stop(grace)
        finally:
            if (
                not worker.is_starting
            ):  # else in this very thread, which then goes on there
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
        self._close_database()


def _start_within(worker: Worker, limit: timedelta | None) -> None:
    """Start the worker. Raise DatabaseUnreachable if it has not started within ``limit``."""
    if limit is None:
        worker.start()
        return
    too_late = threading.Event()

    def give_up() -> (
        None
    ):  # race: it may have started just now; then it is stopped again
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
            "database does not answer, or rows stayed locked; the log has the reason"
        )
