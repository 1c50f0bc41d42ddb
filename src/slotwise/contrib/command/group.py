"""A command and all that it starts: one session, one process group, one stream of output, one end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from slotwise.contrib.command.guardian import GUARDIAN
from slotwise.contrib.command.output import Output
from slotwise.model.clock import elapsed

#: How often a group that is asked to end, or a system that cannot tell by itself, is looked at.
LOOK: Final = timedelta(milliseconds=50)
#: How long the output of an ended command is waited for: what it left in the background may hold it for ever.
LAST_WORDS: Final = timedelta(milliseconds=500)
_CHUNK: Final = 65_536


class ProcessGroup:
    """Starts ``argv`` and passes on what it writes. Use it as a context manager: what is left at the end is killed.

    The leader is reaped last of all. Race: from then on its number, which is the group's, may be somebody else's.
    Raises OSError if it cannot be started.
    """

    def __init__(self, argv: list[str], output: Output, *, stdin: bytes | None = None, **how: Any) -> None:
        self._output = output
        with ExitStack() as stack:
            given: IO[bytes] | int = subprocess.DEVNULL
            if stdin is not None:  # a file, not a pipe: nobody has to write while the command does not read
                given = stack.enter_context(_scratch())
                given.write(stdin)
                given.seek(0)
            self._popen = subprocess.Popen(
                argv, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
                start_new_session=True, **how,
            )  # fmt: skip
        GUARDIAN.watch(self._popen.pid)
        assert self._popen.stdout is not None
        self._stream: IO[bytes] | None = self._popen.stdout
        os.set_blocking(self._stream.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stream, selectors.EVENT_READ)
        self._pidfd = _open_pidfd(self._popen.pid)
        if self._pidfd is not None:
            self._selector.register(self._pidfd, selectors.EVENT_READ)
        self._gone = False
        self._finished = False

    @property
    def pid(self) -> int:
        """Of the command; the group's number, too."""
        return self._popen.pid

    def wait(self, duration: timedelta) -> bool:
        """Pass on what comes out, for so long at most; True once the command itself has ended."""
        span = duration if self._pidfd is not None else min(duration, LOOK)
        self._pass_on(span)
        return self._has_ended()

    def end(self, patience: timedelta) -> None:
        """Ask all of it to end; after ``patience``, kill what has not. Returns when the command is gone."""
        self._signal(signal.SIGTERM)
        deadline = elapsed() + patience.total_seconds()
        while elapsed() < deadline and not (self._has_ended() and not others_of(self.pid)):
            self._pass_on(LOOK)
        self._signal(signal.SIGKILL)
        while not self.wait(LOOK):
            pass

    def finish(self, say: Callable[[str], object]) -> int | None:
        """The exit status, negative for a signal, None if nobody can know; after ``wait`` has said True.

        What the command left in the background goes on; ``say`` gets what it still writes.
        """
        deadline = elapsed() + LAST_WORDS.total_seconds()
        while self._stream is not None and elapsed() < deadline:
            self._pass_on(LOOK)
        self._output.close()
        if self._stream is not None:
            self._selector.unregister(self._stream)
            stream, self._stream = self._stream, None
            threading.Thread(target=_follow, args=(stream, Output(say)), name="slotwise-output", daemon=True).start()
            say("(the command has ended; what it left in the background is not waited for)")
        return self._reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            self.end(timedelta(0))
            self._reap()
        if self._stream is not None:
            self._stream.close()
        self._forget_pidfd()
        self._selector.close()

    def _pass_on(self, duration: timedelta) -> None:
        for key, _ in self._selector.select(duration.total_seconds()):
            if key.fd == self._pidfd:
                self._forget_pidfd()
            elif self._stream is not None:
                self._read(self._stream)

    def _read(self, stream: IO[bytes]) -> None:
        data = stream.read(_CHUNK)
        if data:
            self._output.feed(data)
        elif data is not None:
            self._selector.unregister(stream)
            stream.close()
            self._stream = None

    def _has_ended(self) -> bool:
        """Without reaping it."""
        if not self._gone:
            self._gone = _is_zombie(self._popen)
        if self._gone:
            self._forget_pidfd()  # readable from now on: nothing would ever wait again
        return self._gone

    def _forget_pidfd(self) -> None:
        if self._pidfd is not None:
            self._selector.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # all gone; or it has become somebody else by itself
            os.killpg(self.pid, number)

    def _reap(self) -> int | None:
        self._finished = True
        GUARDIAN.forget(self.pid)
        known = self._popen.returncode is not None or _can_be_reaped(self.pid)
        status = self._popen.wait()
        return status if known else None


def others_of(group: int) -> bool:
    """Whether processes of the group run besides its zombies; where the system does not tell, we believe so."""
    if not Path("/proc/self/stat").exists():
        return True
    return any(_belongs(stat, group) for stat in Path("/proc").glob("[0-9]*/stat"))


def _belongs(stat: Path, group: int) -> bool:
    """``pid (name) state ppid pgrp …``; the name may hold anything."""
    try:
        state, _, pgrp = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
    except (OSError, ValueError):  # gone meanwhile
        return False
    return int(pgrp) == group and state not in ("Z", "X")


def _scratch() -> IO[bytes]:
    """A file without a name; on Linux in memory, since a container may have no place to write."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("stdin"), "w+b")
    return tempfile.TemporaryFile()


def _open_pidfd(pid: int) -> int | None:
    """Becomes readable when the process ends; None where the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _is_zombie(popen: subprocess.Popen[bytes]) -> bool:
    if not hasattr(os, "waitid"):  # macOS before Python 3.13: reaped at once, a race that we cannot close there
        return popen.poll() is not None
    try:
        return os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _can_be_reaped(pid: int) -> bool:
    """False where somebody else has done it: this process ignores SIGCHLD, or waits for any child."""
    if not hasattr(os, "waitid"):
        return True
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _follow(stream: IO[bytes], output: Output) -> None:
    os.set_blocking(stream.fileno(), True)
    with stream:
        while data := stream.read(_CHUNK):
            output.feed(data)
    output.close()
