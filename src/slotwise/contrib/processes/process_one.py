"""Process 1 of a container: its child is the program; it passes signals on, and reaps orphans."""

from __future__ import annotations

import os
import signal
from typing import Final

#: What is sent to process 1 is meant for the program.
_PASSED_ON: Final = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


def reap_as_process_one() -> None:
    """In process 1, continue in a child, and reap orphans here until that child has ended.

    A command or a handler may leave background processes. The system makes them children of
    process 1, where each would stay as a zombie. A reaper within the program would take exit
    statuses away that the program waits for. Call this before threads are started.
    """
    if os.getpid() == 1:
        continue_in_child()


def continue_in_child() -> None:
    """Return in a child; this process ends with the child's exit status, as a shell has it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, no status would be left
    # Race: a signal may come at any time. Blocked, it waits for ``sigwait``.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        return
    status: int | None = None
    while status is None:
        number = signal.sigwait({*_PASSED_ON, signal.SIGCHLD})
        if number == signal.SIGCHLD:
            status = _reap(child)
        else:
            os.kill(child, number)
    os._exit(status if status >= 0 else 128 - status)


def _reap(child: int) -> int | None:
    """Reap all children that have ended; return the status of ``child`` if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            return None
