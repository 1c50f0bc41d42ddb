"""Sees to it that commands end when their worker does, even if that is killed or ends without waiting."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from contextlib import suppress
from typing import IO, Final

logger = logging.getLogger(__name__)

#: Reads "+ GROUP" and "- GROUP"; when the pipe ends, which it does with the worker, asks what is left to end, then
#: kills it. Deaf to what a terminal or a supervisor sends to everybody.
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
    """A small shell beside this process, there as long as commands run. Safe between threads.

    It holds no descriptor of ours but the end of a pipe, and needs no reply: what it knows is enough at any moment.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """End this process group, should we end first."""
        if self._owner != os.getpid():
            self._reset()  # after a fork: the shell, and whatever it watches, are the parent's
        with self._lock:
            self._groups.add(group)
            if self._shell is None or not self._tell(f"+ {group}\n"):
                self._start()

    def forget(self, group: int) -> None:
        """Nothing of the group is ours to end any more. Call before its number can be used again."""
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
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0,
                cwd="/", env={"PATH": "/usr/bin:/bin"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            logger.warning("commands would outlive this process if it were killed: no guardian (%s)", error)
            return
        self._tell("".join(f"+ {group}\n" for group in sorted(self._groups)))

    def _tell(self, words: str) -> bool:
        """False if nobody is there to read."""
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
        """Only when no command runs any more, or for another one that knows the same."""
        shell, self._shell = self._shell, None
        if shell is None or shell.stdin is None:
            return
        if self._groups:
            shell.kill()  # a broken one must not end what another one watches
        with suppress(OSError):
            shell.stdin.close()
        shell.wait()


#: One for the process.
GUARDIAN: Final = Guardian()
