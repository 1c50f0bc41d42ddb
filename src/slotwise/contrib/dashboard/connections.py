"""Connections of browsers to ``slotwise dashboard``: none may hold the others up."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

#: How long a request's head may take to arrive, in seconds.
HEAD: Final = 10.0
#: Connections at a time: with more, the one that has waited longest for a request is closed.
MOST: Final = 200


class Connection(H11Protocol):
    """One connection. It is closed if a request has begun to arrive, or none has, and its head is
    not complete in time.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST:
            self._close_oldest()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEAD, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _close_oldest(self) -> None:
        waiting = [
            (one._waiting.when(), one)
            for one in self.connections
            if isinstance(one, Connection) and one._waiting is not None
        ]
        _, oldest = min(waiting, key=lambda pair: pair[0])
        oldest._wait_no_more()  # it is lost in a moment: the next one closes another
        oldest.transport.abort()
