"""A proxy before several servers, which leads each new connection to one of them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK = 65_536


class Switch:
    """Runs on a thread of its own. What is connected stays where it is."""

    def __init__(self, port: int) -> None:
        #: Where new connections lead.
        self.target = port
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        #: The ends of each connection, with its target.
        self._ends: dict[asyncio.StreamWriter, int] = {}
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def close_old(self) -> None:
        """Reset the connections that lead elsewhere than new ones."""

        async def close() -> None:
            for end, target in list(self._ends.items()):
                if target != self.target:
                    end.transport.abort()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._lead, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        assert self._server is not None
        self._server.close()
        for end in list(self._ends):
            end.transport.abort()
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    async def _lead(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        target = self.target
        self._ends[writer] = target
        try:
            answers, questions = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        self._ends[questions] = target
        await asyncio.gather(
            self._pass_on(reader, questions), self._pass_on(answers, writer)
        )

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK):
                writer.write(chunk)
                await writer.drain()
        self._ends.pop(writer, None)
        writer.close()
