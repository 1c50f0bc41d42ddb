"""SIGTERM, SIGINT and SIGHUP as calls on a thread, for the commands that own their process."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """While entered, each of these signals calls ``react(number, count)``; then the former handlers are back.

    Races: a Python signal handler runs only when the main thread gets to its next bytecode, which it never does
    if the signal comes just before it begins to wait; and it interrupts that thread anywhere, also within a lock
    that the reaction needs. So the number goes through the interpreter's wake-up socket, which is written by the
    system's own handler at once, and a thread reacts. Only in the main thread.
    What whoever started us had switched off (``nohup command``, ``command &`` in a script) stays off.

    ``final``: the process ends next. Instead of the former handlers, nothing reacts to a further signal: it would
    kill a worker that has drained, and its exit status would say so.
    """

    def __init__(self, react: Callable[[int, int], None], *, final: bool = False) -> None:
        self._react = react
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            former = signal.SIG_DFL if handler is None else handler
            signal.signal(number, signal.SIG_IGN if self._final else former)
        signal.set_wakeup_fd(self._former_socket)
        self._told.close()  # the thread hears the end

    def _listen(self) -> None:
        count = 0
        with self._heard:
            while numbers := self._heard.recv(64):
                for number in numbers:
                    if number in self._former:  # the application may handle other signals
                        count += 1
                        self.first = self.first or number
                        self._react(number, count)


def _heard_by_the_thread(number: int, frame: FrameType | None) -> None:
    """There must be a handler, or the system would end the process."""
