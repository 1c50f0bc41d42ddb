"""A network between worker and database that can be cut, stalled, or made to lose an answer."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

CHUNK = 65_536
#: What PostgreSQL's client sends to commit, as a simple query.
COMMIT = b"COMMIT\x00"
#: The message that has a statement carried out; one that is prepared first was said in a trip
#: before.
EXECUTE = b"E\x00\x00\x00\x09\x00\x00\x00\x00\x00"
#: Linux: a filter on a socket drops segments before TCP sees them, so that the sender gets no
#: acknowledgement.
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: return 0

CAN_CUT = sys.platform == "linux"


@dataclass(eq=False)
class Link:
    """One connection: what was said and heard since its last commit, and both ends."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    said: bytes = b""
    heard: bytes = b""
    deaf: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def break_off(self) -> None:
        """Both ends get a reset."""
        for end in (self.client, self.server):
            end.transport.abort()
        for task in self.tasks:
            task.cancel()


class Proxy:
    """Forwards to a PostgreSQL server; runs on a thread of its own. Faults are methods, to be
    called from a test.
    """

    def __init__(self, url: str) -> None:
        self._target = sa.make_url(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="proxy", daemon=True
        )
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self._open = threading.Event()  # answers pass
        self._open.set()
        self._said: bytes | None = None
        self._heard = b""
        self._end = COMMIT
        self._forwards_commit = True
        #: Set when a commit, or its answer, was lost.
        self.lost = threading.Event()
        self._held: bytes | None = None
        #: Set while a statement is held up.
        self.holding = threading.Event()

    @property
    def url(self) -> str:
        """The address of the database, through here."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return self._target.set(host="127.0.0.1", port=port).render_as_string(
            hide_password=False
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- faults -----------------------------------------------------------------------------------

    def cut(self) -> None:
        """A black hole: whatever is sent here is dropped unacknowledged, and nothing comes
        back.
        """
        self._open.clear()
        self._call(self._filter(True))

    def heal(self) -> None:
        """The network is back; connections from before are dead."""
        self._call(self._filter(False))
        self._open.set()
        self._call(self._break_off())

    def stall(self) -> None:
        """Something in between acknowledges, and passes nothing on."""
        self._open.clear()

    def lose_commit(self, *, said: bytes, heard: bytes = b"", forward: bool) -> None:
        """Cut the next connection that commits a transaction in which these words fell.

        ``forward``: the server gets the commit, and its answer is lost; else the commit is lost.
        """
        self.lost.clear()
        self._forwards_commit = forward
        self._said, self._heard, self._end = said, heard, COMMIT

    def lose_statement(self, said: bytes, *, forward: bool) -> None:
        """Cut the next connection that has this carried out as a transaction by itself, as
        ``lose_commit`` does.
        """
        self.lose_commit(said=said, forward=forward)
        self._end = EXECUTE

    def hold(self, said: bytes) -> None:
        """Hold up the next statement that says this, until ``release``; all other connections
        go on.
        """
        self.holding.clear()
        self._held = said

    def release(self) -> None:
        """Let the statement that is held up go on."""
        self.holding.clear()

    # -- forwarding -------------------------------------------------------------------------------

    async def _serve(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        try:
            answers, server = await asyncio.open_connection(
                self._target.host, self._target.port
            )
        except OSError:
            client.transport.abort()
            return
        link = Link(client, server)
        self._links.add(link)
        link.tasks = [
            asyncio.ensure_future(self._ask(link, reader)),
            asyncio.ensure_future(self._answer(link, answers)),
        ]
        await asyncio.wait(link.tasks, return_when=asyncio.FIRST_COMPLETED)
        link.break_off()
        self._links.discard(link)

    async def _ask(self, link: Link, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._passable()
                link.said = (link.said + data)[-CHUNK:]
                await self._held_up(data)
                if self._end in data and self._is_doomed(link):
                    await self._lose(link, data)
                    return
                if COMMIT in data:
                    link.said = link.heard = b""
                link.server.write(data)
                await link.server.drain()

    async def _answer(self, link: Link, answers: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await answers.read(CHUNK):
                await self._passable()
                link.heard = (link.heard + data)[-CHUNK:]
                if not link.deaf:
                    link.client.write(data)
                    await link.client.drain()

    def _is_doomed(self, link: Link) -> bool:
        if (
            self._said is None
            or self._said not in link.said
            or self._heard not in link.heard
        ):
            return False
        self._said = None
        return True

    async def _lose(self, link: Link, commit: bytes) -> None:
        """The server is given the time to commit, and nobody learns of it."""
        if self._forwards_commit:
            link.deaf = True
            link.server.write(commit)
            await link.server.drain()
            await asyncio.sleep(0.2)
        link.client.transport.abort()
        self.lost.set()

    async def _held_up(self, data: bytes) -> None:
        if self._held is not None and self._held in data:
            self._held = None
            self.holding.set()
            while self.holding.is_set():
                await asyncio.sleep(0.01)

    async def _passable(self) -> None:
        while not self._open.is_set():
            await asyncio.sleep(0.01)

    # -- the loop's side of the faults ------------------------------------------------------------

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _filter(self, drop: bool) -> None:
        assert self._server is not None
        for end in [
            *self._server.sockets,
            *[link.client.get_extra_info("socket") for link in self._links],
        ]:
            with suppress(OSError):
                _filter(end, drop)

    async def _break_off(self) -> None:
        for link in list(self._links):
            link.break_off()

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._break_off()
        await asyncio.sleep(0.05)


def _filter(end: socket.socket, drop: bool) -> None:
    if not drop:
        end.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        return
    program = ctypes.create_string_buffer(DROP_ALL)
    end.setsockopt(
        socket.SOL_SOCKET,
        SO_ATTACH_FILTER,
        struct.pack("HL", 1, ctypes.addressof(program)),
    )
