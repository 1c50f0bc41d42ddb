"""Whether a web server's process can serve jobs: one query of the database for all who ask."""

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
#: How long a request waits for an answer that does not come, in seconds.
LIMIT: Final = 5.0


class Readiness:
    """The readiness of one host. However many ask, one thread asks the database, and no request
    waits for longer than ``LIMIT``: a database that does not answer takes no thread from the
    application.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._answering: Future[str | None] | None = None
        self._ended = 0.0
        self._told: str | None = None

    def ask(self) -> Future[str | None]:
        """Return the answer that is under way, or one that came less than a second ago, or start
        a thread for one. Its result is the reason why the process is not ready, or None.
        """
        with self._lock:
            answer = self._answering
            if answer is None or (
                answer.done() and time.monotonic() - self._ended > KEPT
            ):
                answer = self._answering = Future()
                threading.Thread(
                    target=self._answer,
                    args=(answer,),
                    name="slotwise-readiness",
                    daemon=True,
                ).start()
            return answer

    def _answer(self, answer: Future[str | None]) -> None:
        try:
            reason = self._host.problem()
        except Exception as error:
            logger.exception("the host could not be asked")
            reason = type(error).__name__
        if reason is not None and reason != self._told:
            logger.warning("not ready: %s", reason)
        self._told = reason
        self._ended = time.monotonic()
        answer.set_result(reason)
