"""How a process that ran handlers ends: also when some of its threads do not."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Final, NoReturn

logger = logging.getLogger("slotwise.cli")

#: How long threads and exit handlers of the application may keep a drained process from ending.
LINGER_SECONDS: Final = 3.0


def end_now(status: int) -> NoReturn:
    """End without waiting for anybody: the slots of what still runs are settled, their handlers must not go on."""
    with suppress(Exception):
        logging.shutdown()
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(status)


def end_soon(status: int) -> int:
    """Let the interpreter end by itself, but not for ever: a forgotten thread could keep it."""
    threading.Thread(target=_insist, args=(status,), name="slotwise-end", daemon=True).start()
    return status


def _insist(status: int) -> None:
    time.sleep(LINGER_SECONDS)
    left = [thread.name for thread in threading.enumerate() if not thread.daemon]
    logger.warning("drained, but threads or exit handlers of the application go on (%s): ending", ", ".join(left))
    end_now(status)
