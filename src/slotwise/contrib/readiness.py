"""Whether a web server's process can serve jobs: one look at the database for all who ask."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import Final

from slotwise.spi import Host

logger = logging.getLogger("slotwise.health")

#: How long an answer is passed on to others who ask, in seconds.
KEPT: Final = 1.0
#: How long somebody waits for a look that does not end, in seconds.
LIMIT: Final = 5.0


class Readiness:
    """The readiness of one host. However many ask, one thread looks, and nobody waits for longer
    than ``LIMIT``: a database that does not answer takes no thread from the application.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._look: Future[str | None] | None = None
        self._ended = 0.0
        self._told: str | None = None

    def look(self) -> Future[str | None]:
        """Return the look that is under way, or one that ended less than a second ago, or begin
        one. Its result is the reason why the process is not ready, or None.
        """
        with self._lock:
            look = self._look
            if look is None or (look.done() and time.monotonic() - self._ended > KEPT):
                look = self._look = Future()
                threading.Thread(
                    target=self._answer,
                    args=(look,),
                    name="slotwise-readiness",
                    daemon=True,
                ).start()
            return look

    def _answer(self, look: Future[str | None]) -> None:
        try:
            reason = self._host.problem()
        except Exception as error:
            logger.exception("a look at the host has failed")
            reason = type(error).__name__
        if reason is not None and reason != self._told:
            logger.warning("not ready: %s", reason)
        self._told = reason
        self._ended = time.monotonic()
        look.set_result(reason)
