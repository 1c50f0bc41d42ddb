"""Signals of a process: calls on a thread for SIGTERM, SIGINT and SIGHUP."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, Self, TypeAlias

from slotwise.spi import StopRequests, elapsed

#: What ``signal.signal`` returns; None: not set from Python.
Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: The entered instances; a fork hook cannot be removed, so there is one for all.
_entered: set[StopSignals] = set()
_masks = threading.local()


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
        elapsed: Callable[[], float] = elapsed,
    ) -> None:
        self._react = react
        self._requests = StopRequests(elapsed)
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


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL; of one without a name, such as ``signal 40``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
