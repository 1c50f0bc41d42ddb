"""SIGTERM and SIGINT as calls on a thread, for the commands that own their process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """While entered, each SIGTERM and SIGINT calls ``react(number, count)``; then the former handlers are back.

    Race: a signal handler interrupts the main thread anywhere, also within a lock that the reaction needs. So
    the handler only puts the number into a queue, which may be interrupted by itself, and a thread reacts.
    A SIGINT that whoever started us had switched off (``command &`` in a script) stays off.
    """

    def __init__(self, react: Callable[[int, int], None]) -> None:
        self._react = react
        self._numbers: SimpleQueue[int | None] = SimpleQueue()
        self._former: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._listen, name="slotwise-signals", daemon=True)
        #: The first signal that came, if any.
        self.first: int | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        for number in NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._numbers.put(None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or number
        self._numbers.put(number)

    def _listen(self) -> None:
        count = 0
        while (number := self._numbers.get()) is not None:
            count += 1
            self._react(number, count)
