"""Signals of a process: calls on a thread for SIGTERM, SIGINT and SIGHUP, and a drain before the
process ends.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Self, TypeAlias

from slotwise.engine.process.tuning import ECHO
from slotwise.model.clock import Stopwatch, elapsed

logger = logging.getLogger(__name__)


#: What ``signal.signal`` returns; None: not set from Python.
Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: The entered instances; a fork hook cannot be removed, so there is one for all.
_entered: set[StopSignals] = set()
_masks = threading.local()


class Requests:
    """Count stop requests instead of signals: one stop often arrives as two, and a second request
    cancels what runs.

    ``timeout`` signals its child and then the child's group; systemd can send SIGHUP after
    SIGTERM.
    """

    def __init__(self, elapsed: Stopwatch = elapsed) -> None:
        self._elapsed = elapsed
        self._counted: float | None = None
        self._count = 0

    def next(self) -> int | None:
        """Return the ordinal of this stop request, or None if it repeats the last one."""
        now = self._elapsed()
        if self._counted is not None and now - self._counted < ECHO.total_seconds():
            return None
        self._counted = now
        self._count += 1
        return self._count


class StopSignals:
    """While entered, each of these signals calls ``react(number, count)``; on exit the former
    handlers return.

    Races: a Python signal handler runs only at the next bytecode of the main thread, which never
    comes if the signal arrives just before that thread begins to wait. It also interrupts that
    thread anywhere, even inside a lock that the reaction needs. So the number goes through the
    interpreter's wake-up socket, and a thread reacts. Use in the main thread only. A signal that
    the parent process ignores (``nohup command``) stays ignored. A fork of this process has the
    former handlers.

    ``final``: the process ends next, so further signals are ignored: one would show in the exit
    status.
    """

    def __init__(
        self,
        react: Callable[[int, int], None],
        *,
        final: bool = False,
        elapsed: Stopwatch = elapsed,
    ) -> None:
        self._react = react
        self._requests = Requests(elapsed)
        self._final = final
        self._former: dict[int, Handler] = {}
        self._former_socket = -1
        #: The first signal that came, if any.
        self.first: int | None = None

    def __enter__(self) -> Self:
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        threading.Thread(
            target=self._listen, name="slotwise-signals", daemon=True
        ).start()
        self._former_socket = signal.set_wakeup_fd(
            self._told.fileno(), warn_on_full_buffer=False
        )
        for number in NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, _heard_by_the_thread)
        _entered.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _entered.discard(self)
        self._restore(signal.SIG_IGN if self._final else None)
        signal.set_wakeup_fd(self._former_socket)
        self._told.close()  # ends the thread

    def _restore(self, instead: signal.Handlers | None = None) -> None:
        for number, handler in self._former.items():
            former = signal.SIG_DFL if handler is None else handler
            signal.signal(number, former if instead is None else instead)

    def _leave_to_parent(self) -> None:
        """Detach in a fork, which lacks the thread: it would write to the parent's socket."""
        self._restore()
        signal.set_wakeup_fd(-1)
        self._told.close()
        self._heard.close()

    def _listen(self) -> None:
        with self._heard:
            while numbers := self._heard.recv(64):
                for number in numbers:
                    if number in self._former and (
                        count := self._requests.next()
                    ):  # others: the application
                        self.first = self.first or number
                        self._react(number, count)


def _heard_by_the_thread(number: int, frame: FrameType | None) -> None:
    """No-op handler: without one the system would end the process."""


def _before_fork() -> None:
    """Block signals during a fork. Race: ``Pool.terminate`` may signal a child before its fork
    hook has run.
    """
    if _entered:
        _masks.former = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def _after_fork() -> None:
    former = getattr(_masks, "former", None)
    _masks.former = None
    if former is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _in_fork() -> None:
    while _entered:
        _entered.pop()._leave_to_parent()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_fork
    )


#: Callbacks at exit, the newest first.
_stops: list[Callable[[], object]] = []
_registered = False


def _at_exit(stop: Callable[[], object]) -> None:
    """Call ``stop`` at exit, when the script and its threads have ended, but pools still accept
    work.

    Race: ``atexit`` runs after concurrent.futures has closed its pools, and a handler that uses
    one would fail during the drain. So we register where the pools register, after them: the last
    one is called first.
    """
    global _registered  # once per process: it cannot be unregistered
    _stops.append(stop)
    if not _registered:
        _registered = True
        register = getattr(
            threading, "_register_atexit", atexit.register
        )  # private, available since 3.9
        register(_run_stops)


def _run_stops() -> None:
    pools = getattr(concurrent.futures.thread, "_threads_queues", {})
    for thread in threading.enumerate():
        if (
            not thread.daemon
            and thread is not threading.main_thread()
            and thread not in pools
        ):
            thread.join()  # threads of the script: it ends with the last of them
    for stop in reversed(_stops[:]):
        stop()


class ProcessHook:
    """Call ``stop`` at exit, and on SIGTERM and SIGINT; then the former handler of the signal
    runs.

    A further signal, after a second, calls ``hurry``. A signal that is ignored (SIG_IGN), or whose
    handler was not set from Python, stays as it is.

    Race: the handler interrupts the main thread anywhere, even inside a lock that the drain needs.
    So a thread drains, which is started in advance: none can be at the end of the interpreter.
    """

    def __init__(self, stop: Callable[[], object], hurry: Callable[[], object]) -> None:
        self._stop = stop
        self._hurry = hurry
        self._pid = os.getpid()
        self._former: dict[int, Handler] = {}
        self._requests = Requests()
        self._drained = False
        self._is_asked = False
        self._numbers: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._listen, name="slotwise-signals", daemon=True
        )

    def install(self) -> None:
        """Install the handlers; from the main thread only."""
        self._thread.start()
        for number in NUMBERS:
            former = signal.getsignal(number)
            if former is not None and former != signal.SIG_IGN:
                self._former[number] = former
                signal.signal(number, self._on_signal)
        _at_exit(self._stop)

    def remove(self) -> None:
        """Restore the former handlers: at once in the main thread, otherwise when the next signal
        arrives.

        Race: a script that called ``stop`` continues when this returns, and must find no thread of
        ours. But a thread that drains may wait for the caller of this, and ends by itself.
        """
        with suppress(ValueError):
            _stops.remove(self._stop)
        self._drained = True
        self._numbers.put(None)
        if threading.current_thread() is threading.main_thread():
            self._restore()
        if not self._is_asked:
            self._thread.join()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            if (
                signal.getsignal(number) == self._on_signal
            ):  # a handler installed after ours stays
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if (
            self._drained or self._pid != os.getpid()
        ):  # a fork inherits the handler and has nothing to drain
            self._restore()
            signal.raise_signal(number)
        elif count := self._requests.next():
            if count == 1:
                self._is_asked = True
                self._numbers.put(number)
            else:
                self._hurry()

    def _listen(self) -> None:
        number = self._numbers.get()
        if number is None:
            return
        logger.info(
            "%s: draining; send it again, after a second, to cancel running handlers",
            signal.Signals(number).name,
        )
        try:
            self._stop()
        except BaseException:
            logger.exception("the drain failed")
        finally:
            self._drained = True
            main = threading.main_thread().ident
            if main is not None:
                signal.pthread_kill(
                    main, number
                )  # it may sleep in a call that only EINTR ends


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL; of one without a name, such as ``signal 40``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
