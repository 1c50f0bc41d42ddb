"""The line between a supervisor and a child: it carries "I am up", "drain" and "cancel", and breaks when either dies.

Not signals: whoever stops a group of processes (systemd, a terminal, ``timeout``) signals the children as well, and
the supervisor's own signal would then be each child's second, which cancels. A word may come twice and means the same.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

_UP = b"u"
_DRAIN = b"d"
_CANCEL = b"c"


class Lifeline:
    """The child's end. It outlives no process: the system closes it, also after SIGKILL."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # a handler's own children must not keep the line open
        self._socket = socket.socket(fileno=descriptor)

    def say_up(self) -> None:
        """The worker has started."""
        _say(self._socket, _UP)  # if the supervisor is gone, the watch sees it too

    def watch(self, *, on_drain: Callable[[], object], on_cancel: Callable[[], object]) -> None:
        """Call these from a thread when the supervisor says so; ``on_drain`` once more when it is gone."""
        reactions = {_DRAIN: on_drain, _CANCEL: on_cancel}
        threading.Thread(target=self._listen, args=(reactions,), name="slotwise-lifeline", daemon=True).start()

    def _listen(self, reactions: dict[bytes, Callable[[], object]]) -> None:
        try:
            while word := self._socket.recv(1):
                reactions[word]()
        except OSError:
            pass
        reactions[_DRAIN]()


class Leash:
    """The supervisor's end, for one child."""

    def __init__(self) -> None:
        self._socket, self._theirs = socket.socketpair()

    @property
    def descriptor(self) -> int:
        """The child's end, to be passed on; close ours of it with ``hand_over``."""
        return self._theirs.fileno()

    def hand_over(self) -> None:
        """The child has its end, or there is none."""
        self._theirs.close()

    def wait_until_up(self) -> bool:
        """Whether the child said that it is up; False means that it is gone."""
        try:
            return self._socket.recv(16).startswith(_UP)
        except OSError:  # closed when the child is gone
            return False

    def drain(self) -> None:
        """Let what runs finish, and end."""
        _say(self._socket, _DRAIN)

    def cancel(self) -> None:
        """Wait no longer for what runs."""
        _say(self._socket, _CANCEL)

    def close(self) -> None:
        self._socket.close()


def _say(line: socket.socket, word: bytes) -> None:
    """To whoever is there; a frozen child does not read, and must not block its supervisor."""
    try:
        line.send(word, socket.MSG_DONTWAIT)
    except OSError:
        return
