"""What tells a running handler to stop, and why."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Signal:
    """Tells a running handler to stop, and why: lost, operator, timeout or shutdown. The first reason stays."""

    __slots__ = ("_callbacks", "_event", "_lock", "reason")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason: str | None = None

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self, reason: str) -> bool:
        """Give the signal; True for whoever was first."""
        with self._lock:
            if self.reason is not None:
                return False
            self.reason = reason
            callbacks = tuple(self._callbacks)
        self._event.set()
        for callback in callbacks:
            callback()
        return True

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the signal is given, at once if it already was."""
        with self._lock:
            if self.reason is None:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, seconds: float | None) -> bool:
        return self._event.wait(seconds)
