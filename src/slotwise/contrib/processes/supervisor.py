"""Keep worker processes running: fresh interpreters, restarted when they die, stopped with the
supervisor.

A socket, the lifeline, connects the supervisor and each child. It carries "I am up", "drain" and
"cancel", and breaks when either process dies. Signals would not do: systemd, a terminal and
``timeout`` signal the children as well, so the supervisor's own would be the second one, which
cancels. A message may arrive twice and means the same.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from slotwise.contrib.processes.signals import StopSignals, signal_name
from slotwise.spi import elapsed, growing_pauses

logger = logging.getLogger("slotwise.supervisor")

#: First and longest pause before a supervisor starts a child again: reasoned, not measured.
RESTART_PAUSE: Final = timedelta(milliseconds=250)
LONGEST_RESTART_PAUSE: Final = timedelta(seconds=30)

#: PR_SET_PDEATHSIG of prctl(2).
_PARENT_DEATH_SIGNAL: Final = 1

_UP = b"u"
_DRAIN = b"d"
_CANCEL = b"c"


class Lifeline:
    """The child's end of the lifeline, from its first moment. The system closes it with the
    process, even after SIGKILL.

    Races: the supervisor may end while the child imports the application, which may hang for that
    very reason; until ``watch`` the process then ends at once, as by SIGTERM. It may end while
    the child is stopped, or before a stop has taken effect; then the child is woken.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(
            descriptor, False
        )  # children of a handler must not keep the socket open
        self._socket = socket.socket(fileno=descriptor)
        self._is_watched = False
        _wake_after_parent()
        if hasattr(select, "poll"):
            threading.Thread(
                target=self._end_orphan, name="slotwise-orphan", daemon=True
            ).start()

    def _end_orphan(self) -> None:
        """Wait until the supervisor is gone, and leave its messages to ``watch``."""
        poll = select.poll()
        poll.register(self._socket, 0)  # only the end of the other side
        poll.poll()
        if not self._is_watched:
            os._exit(128 + signal.SIGTERM)

    def say_up(self) -> None:
        _say(self._socket, _UP)  # if the supervisor is gone, ``watch`` notices it too

    def watch(
        self, *, on_drain: Callable[[], object], on_cancel: Callable[[], object]
    ) -> None:
        """Call these from a thread on the supervisor's messages, and ``on_drain`` once more when
        it is gone.
        """
        self._is_watched = True
        reactions = {_DRAIN: on_drain, _CANCEL: on_cancel}
        threading.Thread(
            target=self._listen,
            args=(reactions,),
            name="slotwise-lifeline",
            daemon=True,
        ).start()

    def _listen(self, reactions: dict[bytes, Callable[[], object]]) -> None:
        with suppress(OSError):
            while word := self._socket.recv(1):
                reactions[word]()
        reactions[_DRAIN]()


def _wake_after_parent() -> None:
    """Let Linux send SIGCONT to this process when its parent ends: nothing, unless it is stopped.

    The kernel itself wakes stopped orphans at that moment, but none in its own session, and
    none whose stop takes effect a moment later.
    """
    import ctypes  # late: only a child needs it

    with suppress(AttributeError, OSError):  # another system
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)


def _say(line: socket.socket, word: bytes) -> None:
    """Send without blocking: a frozen child does not read, and must not block its supervisor."""
    with suppress(OSError):
        line.send(word, socket.MSG_DONTWAIT)


class Child:
    """One worker process, and the two threads that report its start and its end."""

    def __init__(
        self,
        place: int,
        command: Sequence[str],
        *,
        on_up: Callable[[Child], None],
        on_gone: Callable[[Child, int], None],
    ) -> None:
        """``on_gone`` gets the exit status; a negative one is the signal that killed it."""
        self.place = place
        self.is_up = False
        self.since = elapsed()
        self._on_up = on_up
        self._on_gone = on_gone
        self._line, theirs = socket.socketpair()
        try:
            self.process = _spawn(command, theirs.fileno())
        except BaseException:
            self._line.close()
            raise
        finally:
            theirs.close()
        for work in (self._listen, self._wait):
            threading.Thread(
                target=work, name=f"slotwise-child-{place}", daemon=True
            ).start()

    def stop(self, count: int) -> None:
        """Drain the child at the first stop, cancel what runs in it at the second, and kill it at
        the third.

        Race: before its application is imported, a child does not read messages; but a signal ends
        it, as it should. If it does read, message and signal mean the same, and so does a signal
        that another process sent.
        """
        if count > 2:
            self.process.kill()
        elif count == 2:
            _say(self._line, _CANCEL)
        else:
            _say(self._line, _DRAIN)
            if not self.is_up:
                self.process.terminate()

    def _listen(self) -> None:
        with suppress(OSError):  # closed when the child is gone
            if self._line.recv(16).startswith(_UP):
                self._on_up(self)

    def _wait(self) -> None:
        status = self.process.wait()
        self._line.close()
        self._on_gone(self, status)


def _spawn(command: Sequence[str], end: int) -> subprocess.Popen[bytes]:
    # A group of its own: Ctrl-C in a terminal reaches only the supervisor, which drains,
    # cancels, kills.
    return subprocess.Popen(
        [*command, f"--lifeline={end}"],
        stdin=subprocess.DEVNULL,
        pass_fds=[end],
        process_group=0,
    )


class Supervisor:
    """Run ``processes`` children of ``command`` until a stop is requested.

    The first child starts alone, the others when it is up. If it exits with a status of ``fatal``
    before that, the configuration is wrong, and the supervisor exits with that status. Later,
    every child that ends is restarted, after pauses that grow while it keeps ending soon. All get
    the start time of the supervisor, so that a restarted one never looks like a newer deploy. All
    drain by themselves if the supervisor is killed.
    """

    def __init__(
        self, command: Sequence[str], processes: int, *, fatal: Collection[int]
    ) -> None:
        self._command = [*command, f"--born={elapsed()}"]
        self._processes = processes
        self._fatal = fatal
        #: What children and signals report, from their threads: calls for the thread that runs the
        #: supervisor.
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._children: dict[int, Child] = {}
        self._due: dict[int, float] = {0: elapsed()}
        self._pauses: dict[int, Iterator[timedelta]] = {}
        self._proven = False
        self._stops = 0
        self._status = 0

    def run(self) -> int:
        """Run until a signal has stopped all children, or the first one could not start; return
        the exit status.
        """
        with StopSignals(
            lambda _, count: self._news.put(partial(self._on_stop, count)), final=True
        ):
            while self._due or self._children:
                self._start_due()
                wait = (
                    max(min(self._due.values()) - elapsed(), 0) if self._due else None
                )
                with suppress(Empty):  # the next start is due
                    self._news.get(timeout=wait)()
        return self._status

    def _start_due(self) -> None:
        for place in [place for place, due in self._due.items() if due <= elapsed()]:
            try:
                child = Child(
                    place,
                    self._command,
                    on_up=lambda child: self._news.put(partial(self._on_up, child)),
                    on_gone=lambda child, status: self._news.put(
                        partial(self._on_gone, child, status)
                    ),
                )
            except OSError as error:  # no memory, no process id: it may pass
                logger.warning(
                    "worker process %d cannot be started: %s", place + 1, error
                )
                self._due[place] = elapsed() + self._pause(place).total_seconds()
                continue
            del self._due[place]
            self._children[place] = child
            self._tell(logging.INFO, "child_start", child, "started")

    def _on_up(self, child: Child) -> None:
        child.is_up = True
        if not self._proven and not self._stops:
            self._due |= dict.fromkeys(range(1, self._processes), elapsed())
        self._proven = True

    def _on_gone(self, child: Child, status: int) -> None:
        del self._children[child.place]
        if self._stops:
            if status > 0 or (
                status and child.is_up
            ):  # one that was up and was killed may have left claims behind
                self._tell(
                    logging.WARNING,
                    "child_exit",
                    child,
                    f"ended with {_spelled(status)}",
                )
                self._status = max(self._status, status if status > 0 else 4)
        elif not self._proven and status in self._fatal:
            self._status = status
        else:
            self._plan_restart(child, status)

    def _plan_restart(self, child: Child, status: int) -> None:
        lived = elapsed() - child.since
        if lived > LONGEST_RESTART_PAUSE.total_seconds():
            self._pauses.pop(child.place, None)
        pause = self._pause(child.place)
        self._due[child.place] = elapsed() + pause.total_seconds()
        text = (
            f"ended with {_spelled(status)} after {lived:.1f} s; starting it again in "
            f"{pause.total_seconds():.1f} s"
        )
        self._tell(logging.WARNING, "child_exit", child, text, pause=pause)

    def _pause(self, place: int) -> timedelta:
        """Return the pause before a restart: ever longer, until a child has lived for a while."""
        if place not in self._pauses:
            self._pauses[place] = growing_pauses(RESTART_PAUSE, LONGEST_RESTART_PAUSE)
        return next(self._pauses[place])

    def _on_stop(self, count: int) -> None:
        self._stops = count
        self._due.clear()
        logger.info(
            "stopping %d worker processes",
            len(self._children),
            extra={"event": "supervisor_stop"},
        )
        for child in self._children.values():
            child.stop(count)

    def _tell(
        self, level: int, event: str, child: Child, text: str, **facts: object
    ) -> None:
        pid = child.process.pid
        extra = {"event": event, "pid": pid, **facts}
        logger.log(
            level,
            "worker process %d (pid %d) %s",
            child.place + 1,
            pid,
            text,
            extra=extra,
        )


def _spelled(status: int) -> str:
    return f"status {status}" if status >= 0 else signal_name(-status)
