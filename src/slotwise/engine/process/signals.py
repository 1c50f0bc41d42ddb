"""Stop requests by signals, and a drain before the process of a script ends."""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import TypeAlias

from slotwise.engine.process.tuning import ECHO
from slotwise.model.clock import Stopwatch, elapsed

logger = logging.getLogger(__name__)


#: What ``signal.signal`` returns; None: not set from Python.
Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequests:
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

    def __init__(
        self,
        stop: Callable[[], object],
        hurry: Callable[[], object],
        request: Callable[[str], object],
    ) -> None:
        """``request`` gets the name of the signal, before ``stop`` is called."""
        self._request = request
        self._stop = stop
        self._hurry = hurry
        self._pid = os.getpid()
        self._former: dict[int, Handler] = {}
        self._requests = StopRequests()
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
        name = signal.Signals(number).name
        logger.info(
            "%s: draining; send it again, after a second, to cancel running handlers",
            name,
        )
        try:
            self._request(name)
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
