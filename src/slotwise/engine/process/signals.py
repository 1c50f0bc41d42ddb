"""Signals of a process: calls on a thread for SIGTERM, SIGINT and SIGHUP, and a drain before the process ends."""

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
from datetime import timedelta
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

from slotwise.model.clock import Stopwatch, elapsed

logger = logging.getLogger(__name__)


NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Signals that come within this time after one that counted are the same one.
ECHO = timedelta(seconds=1)
#: Those that are entered; a hook that the interpreter calls cannot be taken back, so there is one for all.
_entered: set[StopSignals] = set()
_masks = threading.local()


class Requests:
    """Counts what people mean, not what arrives: one stop often comes as two signals.

    ``timeout`` signals its child and then the group that the child is in; systemd sends SIGHUP after SIGTERM on
    request; a terminal that closes sends both to all. To take the second for impatience would cancel what runs.
    """

    def __init__(self, elapsed: Stopwatch = elapsed) -> None:
        self._elapsed = elapsed
        self._counted: float | None = None
        self._count = 0

    def next(self) -> int | None:
        """A signal has come: the how manieth request is it? None: it is the echo of the last."""
        now = self._elapsed()
        if self._counted is not None and now - self._counted < ECHO.total_seconds():
            return None
        self._counted = now
        self._count += 1
        return self._count


class StopSignals:
    """While entered, each of these signals calls ``react(number, count)``; then the former handlers are back.

    Further signals within a second count as the same one, and are not passed on.

    Races: a Python signal handler runs only when the main thread gets to its next bytecode, which it never does
    if the signal comes just before it begins to wait; and it interrupts that thread anywhere, also within a lock
    that the reaction needs. So the number goes through the interpreter's wake-up socket, which is written by the
    system's own handler at once, and a thread reacts. Only in the main thread.
    What whoever started us had switched off (``nohup command``, ``command &`` in a script) stays off.
    A fork of this process (``multiprocessing``) has the former handlers: a signal to it is none to us.

    ``final``: the process ends next. Instead of the former handlers, nothing reacts to a further signal: it would
    kill a worker that has drained, and its exit status would say so.
    """

    def __init__(self, react: Callable[[int, int], None], *, final: bool = False, elapsed: Stopwatch = elapsed) -> None:
        self._react = react
        self._requests = Requests(elapsed)
        self._final = final
        self._former: dict[int, Any] = {}
        self._former_socket = -1
        #: The first signal that came, if any.
        self.first: int | None = None

    def __enter__(self) -> Self:
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        threading.Thread(target=self._listen, name="slotwise-signals", daemon=True).start()
        self._former_socket = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        for number in NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, _heard_by_the_thread)
        _entered.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.discard(self)
        self._restore(signal.SIG_IGN if self._final else None)
        signal.set_wakeup_fd(self._former_socket)
        self._told.close()  # the thread hears the end

    def _restore(self, instead: signal.Handlers | None = None) -> None:
        for number, handler in self._former.items():
            former = signal.SIG_DFL if handler is None else handler
            signal.signal(number, former if instead is None else instead)

    def _leave_to_parent(self) -> None:
        """In a fork, whose thread is not there: it would write into the parent's socket, and ignore what it gets."""
        self._restore()
        signal.set_wakeup_fd(-1)
        self._told.close()
        self._heard.close()

    def _listen(self) -> None:
        with self._heard:
            while numbers := self._heard.recv(64):
                for number in numbers:
                    if number in self._former and (count := self._requests.next()):  # others are the application's
                        self.first = self.first or number
                        self._react(number, count)


def _heard_by_the_thread(number: int, frame: FrameType | None) -> None:
    """There must be a handler, or the system would end the process."""


def _before_fork() -> None:
    """Race: ``Pool.terminate`` may signal a child that has not come to its hook yet. It gets that afterwards."""
    if _entered:
        _masks.former = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def _after_fork() -> None:
    former, _masks.former = getattr(_masks, "former", None), None
    if former is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _in_fork() -> None:
    while _entered:
        _entered.pop()._leave_to_parent()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_fork)


#: What is called at exit, the newest first.
_stops: list[Callable[[], object]] = []
_registered = False


def _at_exit(stop: Callable[[], object]) -> None:
    """Call ``stop`` at exit, when the script and its threads have ended, but pools still take work.

    Race: ``atexit`` comes too late. Before it, concurrent.futures has closed its pools for ever, and a handler that
    wants ``asyncio.to_thread`` or an executor would fail in the very drain that lets it finish. So we use the place
    that the pools use, after them: what came last is called first.
    """
    global _registered  # once for the process: there is no way to take it back
    _stops.append(stop)
    if not _registered:
        _registered = True
        register = getattr(threading, "_register_atexit", atexit.register)  # private, and there since 3.9
        register(_run_stops)


def _run_stops() -> None:
    pools = getattr(concurrent.futures.thread, "_threads_queues", {})
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread() and thread not in pools:
            thread.join()  # the script's own: as long as they run, the script has not ended
    for stop in reversed(_stops[:]):
        stop()


class ProcessHook:
    """At exit, and on SIGTERM and SIGINT, calls ``stop``; then the former handler of the signal has its turn.

    A further signal, after a second, calls ``hurry``. What was switched off (SIG_IGN), or set by something other
    than Python, stays as it is.

    Race: the handler interrupts the main thread anywhere, also within a lock that the drain needs. So the drain
    is a thread's, which has been started before: at the end of the interpreter none can be started any more.
    """

    def __init__(self, stop: Callable[[], object], hurry: Callable[[], object]) -> None:
        self._stop = stop
        self._hurry = hurry
        self._pid = os.getpid()
        self._former: dict[int, Any] = {}
        self._requests = Requests()
        self._drained = False
        self._is_asked = False
        self._numbers: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._listen, name="slotwise-signals", daemon=True)

    def install(self) -> None:
        """From the main thread only."""
        self._thread.start()
        for number in NUMBERS:
            former = signal.getsignal(number)
            if former is not None and former != signal.SIG_IGN:
                self._former[number] = former
                signal.signal(number, self._on_signal)
        _at_exit(self._stop)

    def remove(self) -> None:
        """Put the former handlers back: at once in the main thread, otherwise when the next signal comes.

        Race: who called ``stop`` in a script goes on when this returns, and finds no thread of ours. But one that
        drains may wait for whoever calls this, and ends by itself.
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
            if signal.getsignal(number) == self._on_signal:  # whoever came after us keeps it
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._drained or self._pid != os.getpid():  # a fork inherits the handler, and nothing to drain
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
        logger.info("%s: draining; once more, after a second, cancels what runs", signal.Signals(number).name)
        try:
            self._stop()
        except BaseException:
            logger.exception("the drain failed")
        finally:
            self._drained = True
            main = threading.main_thread().ident
            if main is not None:
                signal.pthread_kill(main, number)  # to that thread: it may sleep in a call that only EINTR ends
