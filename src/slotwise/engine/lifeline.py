"""The line between a supervisor and a child: a socket that says "I am up", and breaks when either of them dies."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

_UP = b"u"


class Lifeline:
    """The child's end. It outlives no process: the system closes it, also after SIGKILL."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # a handler's own children must not keep the line open
        self._socket = socket.socket(fileno=descriptor)

    def say_up(self) -> None:
        """The worker has started."""
        try:
            self._socket.send(_UP)
        except OSError:
            return  # the supervisor is gone; the watch sees it too

    def watch(self, on_cut: Callable[[], None]) -> None:
        """Call ``on_cut`` once, from a thread, when the supervisor is gone."""
        threading.Thread(target=self._listen, args=(on_cut,), name="slotwise-lifeline", daemon=True).start()

    def _listen(self, on_cut: Callable[[], None]) -> None:
        try:
            while self._socket.recv(16):
                continue
        except OSError:
            pass
        on_cut()


def is_up_message(data: bytes) -> bool:
    """Whether a child said that it is up; nothing at all means that it is gone."""
    return data.startswith(_UP)
