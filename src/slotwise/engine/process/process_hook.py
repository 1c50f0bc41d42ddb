"""Drains a worker before its process ends, where a script, and no host, owns the process."""

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
from typing import Any

from slotwise.engine.process.signals import NUMBERS, Requests

logger = logging.getLogger(__name__)

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
