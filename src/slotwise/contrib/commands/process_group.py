"""The processes of a command: one session, one process group, one stream of output, one end."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self, TypedDict, Unpack

from slotwise.spi import elapsed

#: Interval for polling a group that was asked to end, and for systems without pidfd.
LOOK: Final = timedelta(milliseconds=50)
#: How long to wait for the output of an ended command: a background process may keep it open for
#: ever.
LAST_WORDS: Final = timedelta(milliseconds=500)
_CHUNK: Final = 65_536


class Switch(TypedDict, total=False):
    """The arguments of ``Popen`` that change the account."""

    user: int
    group: int
    extra_groups: list[int]


class PopenOptions(Switch, total=False):
    """What surrounds the processes of a command."""

    cwd: str | None
    env: Mapping[str, str]


class ProcessGroup:
    """Start ``argv`` and pass its output on. Use it as a context manager: on exit, remaining
    processes are killed.

    The leader is reaped last. Race: from then on, the system may reuse its pid, which is the
    group's number. Raises OSError if it cannot be started.
    """

    def __init__(
        self,
        argv: list[str],
        output: Output,
        *,
        stdin: bytes | None = None,
        **how: Unpack[PopenOptions],
    ) -> None:
        self._output = output
        with ExitStack() as stack:
            given: IO[bytes] | int = subprocess.DEVNULL
            if (
                stdin is not None
            ):  # a file, not a pipe: no thread has to wait until the command reads
                given = stack.enter_context(_scratch())
                given.write(stdin)
                given.seek(0)
            self._popen = subprocess.Popen(
                argv,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                **how,
            )
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
        """The pid of the command, which is also the group's number."""
        return self._popen.pid

    def wait(self, duration: timedelta) -> bool:
        """Pass output on for at most this long; True once the command itself has ended."""
        span = duration if self._pidfd is not None else min(duration, LOOK)
        self._pass_on(span)
        return self._has_ended()

    def end(self, patience: timedelta) -> None:
        """Send SIGTERM to the group; after ``patience``, SIGKILL. Returns when the command has
        ended.
        """
        self._signal(signal.SIGTERM)
        deadline = elapsed() + patience.total_seconds()
        while elapsed() < deadline and not (
            self._has_ended() and not others_of(self.pid)
        ):
            self._pass_on(LOOK)
        self._signal(signal.SIGKILL)
        while not self.wait(LOOK):
            pass

    def finish(self, say: Callable[[str], object]) -> int | None:
        """Return the exit status: negative for a signal, None if it is unknown. Call it after
        ``wait`` returned True.

        Background processes of the command continue; ``say`` gets their output.
        """
        deadline = elapsed() + LAST_WORDS.total_seconds()
        while self._stream is not None and elapsed() < deadline:
            self._pass_on(LOOK)
        self._output.close()
        if self._stream is not None:
            self._selector.unregister(self._stream)
            stream = self._stream
            self._stream = None
            threading.Thread(
                target=_follow,
                args=(stream, Output(say)),
                name="slotwise-output",
                daemon=True,
            ).start()
            say(
                "(the command has ended; what it left in the background is not waited for)"
            )
        return self._reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
        """Whether the command has ended, without reaping it."""
        if not self._gone:
            self._gone = _is_zombie(self._popen)
        if self._gone:
            self._forget_pidfd()  # it stays readable: the selector would return at once, for ever
        return self._gone

    def _forget_pidfd(self) -> None:
        if self._pidfd is not None:
            self._selector.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _signal(self, number: int) -> None:
        with suppress(
            ProcessLookupError, PermissionError
        ):  # all gone; or the command changed its own user
            os.killpg(self.pid, number)

    def _reap(self) -> int | None:
        self._finished = True
        GUARDIAN.forget(self.pid)
        known = self._popen.returncode is not None or _can_be_reaped(self.pid)
        status = self._popen.wait()
        return status if known else None


def others_of(group: int) -> bool:
    """Whether the group has live processes; True on systems without /proc."""
    if not Path("/proc/self/stat").exists():
        return True
    return any(_belongs(stat, group) for stat in Path("/proc").glob("[0-9]*/stat"))


def _belongs(stat: Path, group: int) -> bool:
    """``pid (name) state ppid pgrp …``; the name may hold anything."""
    try:
        state, _, pgrp = (
            stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
        )
    except (OSError, ValueError):  # gone meanwhile
        return False
    return int(pgrp) == group and state not in ("Z", "X")


def _scratch() -> IO[bytes]:
    """An anonymous file; on Linux in memory, since a container may be read-only."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("stdin"), "w+b")
    return tempfile.TemporaryFile()


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None on systems without pidfd."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _is_zombie(popen: subprocess.Popen[bytes]) -> bool:
    if not hasattr(
        os, "waitid"
    ):  # macOS before Python 3.13: reaped at once, a race that we cannot close there
        return popen.poll() is not None
    try:
        return (
            os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            is not None
        )
    except ChildProcessError:
        return True


def _can_be_reaped(pid: int) -> bool:
    """False if the status is lost: this process ignores SIGCHLD, or another thread waits for any
    child.
    """
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


#: Size of the tail: less than the ledger keeps of an error.
TAIL_LINES: Final = 100
TAIL_CHARACTERS: Final = 8_000
#: Longer lines are passed on in pieces.
LONGEST_LINE: Final = 8_192


#: How many characters of an attempt's output are passed on; the last lines are kept whatever was
#: written.
OUTPUT_BUDGET: Final = 1_048_576


class Output:
    """Split a stream of bytes into lines, pass each on, and keep the last ones. Not safe between
    threads.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._begun = bytearray()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._size = 0
        self._left = OUTPUT_BUDGET

    def feed(self, data: bytes) -> None:
        self._begun += data
        *lines, rest = bytes(self._begun).split(b"\n")
        self._begun = bytearray(rest)
        for line in lines:
            self._put(line)
        while len(self._begun) > LONGEST_LINE:
            self._put(bytes(self._begun[:LONGEST_LINE]))
            del self._begun[:LONGEST_LINE]

    def close(self) -> None:
        """Pass on a last line that has no newline."""
        if self._begun:
            self._put(bytes(self._begun))
            self._begun.clear()

    @property
    def tail(self) -> list[str]:
        """The last lines."""
        return list(self._tail)

    @property
    def last_line(self) -> str:
        """The last line that is not blank."""
        return next(
            (line.strip() for line in reversed(self._tail) if line.strip()), ""
        )

    def _put(self, line: bytes) -> None:
        text = line.removesuffix(b"\r").decode("utf-8", "replace")
        if self._left >= 0:
            self._left -= len(text) + 1
            self._say(
                text
                if self._left >= 0
                else f"(more than {OUTPUT_BUDGET} characters; the rest is not logged)"
            )
        self._remember(text[:TAIL_CHARACTERS])

    def _remember(self, text: str) -> None:
        if len(self._tail) == TAIL_LINES:
            self._size -= len(self._tail.popleft())
        self._tail.append(text)
        self._size += len(text)
        while self._size > TAIL_CHARACTERS:
            self._size -= len(self._tail.popleft())


logger = logging.getLogger(__name__)

#: Reads "+ GROUP" and "- GROUP". The pipe ends with the worker: then it sends SIGTERM to the
#: remaining groups, and later SIGKILL. It ignores signals that a terminal or a supervisor sends to
#: all processes.
_SCRIPT: Final = """: slotwise guardian of commands
trap '' HUP INT TERM
live=' '
while read -r what group; do
    case $what in
        +) live="$live$group " ;;
        -) live="${live%% $group *} ${live#* $group }" ;;
    esac
done
set -- $live
[ $# -gt 0 ] || exit 0
for group; do kill -s TERM -- "-$group"; done
sleep 4
for group; do kill -s KILL -- "-$group"; done
"""


class Guardian:
    """Ends commands when their worker ends, even if the worker is killed. Safe between threads.

    It is a small shell beside this process, which lives while commands run. It inherits only the
    end of a pipe, and never replies.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """End this process group if this process ends first."""
        if self._owner != os.getpid():
            self._reset()  # after a fork: the shell and its groups are the parent's
        with self._lock:
            self._groups.add(group)
            if self._shell is None or not self._tell(f"+ {group}\n"):
                self._start()

    def forget(self, group: int) -> None:
        """Do not end the group any more. Call this before the system can reuse its number."""
        with self._lock:
            self._groups.discard(group)
            told = self._tell(f"- {group}\n")
            if not self._groups:
                self._stop()
            elif not told:
                self._start()

    def _start(self) -> None:
        self._stop()
        try:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,
            )
        except OSError as error:
            logger.warning(
                "commands would outlive this process if it were killed: no guardian (%s)",
                error,
            )
            return
        self._tell("".join(f"+ {group}\n" for group in sorted(self._groups)))

    def _tell(self, words: str) -> bool:
        """Write to the shell; False if it is gone."""
        pipe = self._pipe
        if pipe is None:
            return False
        try:
            pipe.write(words.encode())
        except OSError:
            return False
        return True

    @property
    def _pipe(self) -> IO[bytes] | None:
        return None if self._shell is None else self._shell.stdin

    def _stop(self) -> None:
        """Stop the shell: no command runs any more, or another shell replaces it."""
        shell = self._shell
        self._shell = None
        if shell is None or shell.stdin is None:
            return
        if self._groups:
            shell.kill()  # a broken shell must not end the groups of its successor
        with suppress(OSError):
            shell.stdin.close()
        shell.wait()


#: The only one of this process.
GUARDIAN: Final = Guardian()
