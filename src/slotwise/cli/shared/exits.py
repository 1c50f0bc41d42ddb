"""How a command's process ends: its exit status, and the end of a process whose threads go on.

Scripts and supervisors rely on the numbers.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final, NoReturn

#: Success; a worker has drained, and nothing was left running.
OK: Final = 0
#: A mistake in the application, its settings or the arguments; a failed job; an unhealthy cluster;
#: no row to act on.
FAILED: Final = 1
#: The command line cannot be parsed.
USAGE: Final = 2
#: The database is unreachable, it rejects the login, or its tables are missing or of another
#: version.
DATABASE: Final = 3
#: A worker has drained, but handlers did not stop in time (their slots were handed back), outcomes
#: could not be written, or the lifespan was not left.
UNFINISHED: Final = 4
#: A deploy would change something, according to `slotwise plan`.
CHANGES: Final = 5
#: An error in slotwise itself.
BUG: Final = 70
#: Ended by a closed terminal, by Ctrl-C, by SIGTERM or by a closed pipe, with the numbers that
#: shells use.
HUNG_UP: Final = 129
INTERRUPTED: Final = 130
TERMINATED: Final = 143
PIPE_CLOSED: Final = 141

_BY_SIGNAL: Final = {
    signal.SIGINT: INTERRUPTED,
    signal.SIGTERM: TERMINATED,
    signal.SIGHUP: HUNG_UP,
}


def of_signal(number: int) -> int:
    """Return the status of a command that this signal has ended."""
    return _BY_SIGNAL[signal.Signals(number)]


#: For ``--help``.
MEANINGS: Final = (
    (OK, "drained cleanly"),
    (FAILED, "a mistake in the application or the settings"),
    (USAGE, "the command line cannot be understood"),
    (DATABASE, "the database cannot be used, and waiting would not help"),
    (
        UNFINISHED,
        "drained, but a handler did not stop, an outcome was not written or the "
        "lifespan was not left",
    ),
    (BUG, "an error in slotwise itself"),
)


logger = logging.getLogger("slotwise.cli")

#: How long threads and exit handlers of the application may keep a drained process from ending.
LINGER_SECONDS: Final = 3.0


def end_now(status: int) -> NoReturn:
    """Exit without waiting for threads: the slots of running handlers are settled, so the handlers
    must end.
    """
    with suppress(Exception):
        logging.shutdown()
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(status)


def end_soon(status: int) -> int:
    """Let the interpreter exit by itself, but end it after a while: a forgotten thread could block
    it for ever.
    """
    threading.Thread(
        target=_insist, args=(status,), name="slotwise-end", daemon=True
    ).start()
    return status


def _insist(status: int) -> None:
    time.sleep(LINGER_SECONDS)
    left = [thread.name for thread in threading.enumerate() if not thread.daemon]
    logger.warning(
        "drained, but threads or exit handlers of the application are still running (%s): exiting",
        ", ".join(left),
    )
    end_now(status)
