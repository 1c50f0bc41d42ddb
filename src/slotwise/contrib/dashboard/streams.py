"""Server-sent events: one reader of the database for all open pages of a process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from slotwise.contrib.dashboard.access import Visitor

#: How often the database is read for all streams of a process, in seconds.
BEAT: Final = 5.0
#: How often a stream that has nothing to send sends a comment, and checks the role again.
PING: Final = 15.0
#: How long a stream lasts; the browser then opens another one.
LONGEST: Final = 600.0
MOST_STREAMS: Final = 100
MOST_OF_A_VISITOR: Final = 5
PINGED: Final = b": ping\n\n"

#: Returns what is sent to every page: one line of JSON.
Read = Callable[[], str]


class Streams:
    """The open streams of one process, on one event loop."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._by_visitor = Counter[str]()
        self._changed = asyncio.Condition()
        self._number = 0
        self._latest = ""
        self._beat: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def place(self, visitor: Visitor) -> AsyncIterator[bool]:
        """Take a place for a stream; False if there is none, of this process or this visitor."""
        mine = self._by_visitor[visitor.name]
        if self._by_visitor.total() >= MOST_STREAMS or mine >= MOST_OF_A_VISITOR:
            yield False
            return
        self._by_visitor[visitor.name] += 1
        if self._beat is None:
            self._beat = asyncio.create_task(self._go())
        try:
            yield True
        finally:
            self._by_visitor[visitor.name] -= 1
            self._by_visitor += Counter()  # drop visitors without a stream
            if not self._by_visitor and self._beat is not None:
                self._beat.cancel()
                self._beat = None

    async def messages(
        self, still_may: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        """Yield what a stream sends, until it is ten minutes old, or the visitor has lost the
        role.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + LONGEST
        seen = 0
        yield b"retry: 5000\n\n"
        while loop.time() < end:
            if await self._wait(seen):
                seen = self._number
                yield f"event: tick\ndata: {self._latest}\n\n".encode()
            elif await still_may():
                yield PINGED
            else:
                return

    async def _wait(self, seen: int) -> bool:
        """Wait for a newer message than the one seen; False if there is none for a while."""

        async def newer() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: self._number > seen)

        with suppress(TimeoutError):
            await asyncio.wait_for(newer(), PING)
            return True
        return False

    async def _go(self) -> None:
        while True:
            latest = await asyncio.to_thread(self._read)
            async with self._changed:
                self._latest = latest
                self._number += 1
                self._changed.notify_all()
            await asyncio.sleep(BEAT)
