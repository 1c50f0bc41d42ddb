"""The route for ASGI: a whole application, or middleware before another one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import cast

from slotwise.contrib.asgi import Application, Receive, Scope, Send
from slotwise.contrib.tick.route import Answer, Mount


class TickASGI(Mount[Application]):
    """Answers POST at ``path`` with a tick, and passes everything else on to ``application``.

    Without ``application`` it answers at every path: mount it where you like. ``secret``: what the
    caller sends as ``Authorization: Bearer …``, one or, while it is changed, two; by default
    ``SLOTWISE_TICK_SECRET``. ``check``: a function of the headers that lets a caller in instead.
    ``async def`` handlers run on the server's loop. ``budget`` and ``early`` are those of Tick.

    Raises ConfigurationError if neither ``secret`` nor ``check`` is set.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan where there is no other application."""
        application = self._application
        is_ours = scope["type"] == "http" and (
            application is None or scope["path"] == self._path
        )
        if is_ours:
            await _send(send, await self._answered(scope))
        elif application is not None:
            await application(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _answered(self, scope: Scope) -> Answer:
        """Tick on a new thread.

        Race: the client goes away, and the server cancels this call. The thread goes on, and so do
        the handlers.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        method = str(scope["method"])
        headers = _headers(scope)

        def tell(found: Answer) -> None:
            if not answer.done():
                answer.set_result(found)

        def work() -> None:
            found = self._route.answer(method, headers, host_loop=loop)
            with suppress(RuntimeError):  # the server has closed its loop
                loop.call_soon_threadsafe(tell, found)

        threading.Thread(target=work, name="slotwise-tick").start()
        return await answer

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._route.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _headers(scope: Scope) -> dict[str, str]:
    pairs = cast("Iterable[tuple[bytes, bytes]]", scope["headers"])
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}


async def _send(send: Send, answer: Answer) -> None:
    headers = [
        (name.lower().encode(), value.encode("latin-1"))
        for name, value in answer.all_headers()
    ]
    await send(
        {
            "type": "http.response.start",
            "status": int(answer.status),
            "headers": headers,
        }
    )
    await send({"type": "http.response.body", "body": answer.body})
