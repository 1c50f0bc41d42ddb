"""The two faces of the dashboard: an ASGI and a WSGI application."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from slotwise.contrib.dashboard.exchange import (
    HEADERS,
    LONGEST_BODY,
    Request,
    Response,
    text,
)
from slotwise.contrib.dashboard.streams import Streams

if TYPE_CHECKING:
    from slotwise.contrib.dashboard.dashboard import Dashboard

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Environ: TypeAlias = dict[str, Any]

EVENTS = "/events"
_TOO_MANY = text(503, "too many pages are open; this one goes on without live events")
#: How long a form may take to arrive, in seconds.
LONGEST_ARRIVAL = 10.0
_TOO_SLOW = text(408, "the form did not arrive in time")
_TOO_LONG = text(413, f"a form has at most {LONGEST_BODY} bytes")


class StartResponse(Protocol):
    """How a WSGI server takes status and headers."""

    def __call__(
        self, status: str, headers: list[tuple[str, str]], /
    ) -> Callable[[bytes], object]: ...


class ASGIFace:
    """An ASGI application; pages are made on threads."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._streams = Streams(dashboard.pulse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; close the connections when the server's lifespan ends."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(LONGEST_ARRIVAL):
                body = await _body(receive)
        except TimeoutError:
            await _send(_TOO_SLOW, send, is_head=False)
            return
        request = _from_scope(scope, body or b"")
        if body is None:
            response = _TOO_LONG
        elif request.path == EVENTS and request.method == "GET":
            await self._stream(request, receive, send)
            return
        else:
            response = await asyncio.to_thread(self._dashboard.respond, request)
        await _send(response, send, is_head=scope["method"] == "HEAD")

    async def _stream(self, request: Request, receive: Receive, send: Send) -> None:
        """Send events until the visitor leaves; refuse what is too many (503)."""
        visitor = await asyncio.to_thread(self._dashboard.visitor_of, request)
        if isinstance(visitor, Response):
            await _send(visitor, send, is_head=False)
            return
        async with self._streams.place(visitor) as has_place:
            if not has_place:
                await _send(_TOO_MANY, send, is_head=False)
                return
            leaving = asyncio.create_task(_gone(receive))
            sending = asyncio.create_task(self._send_events(request, send))
            done, pending = await asyncio.wait(
                (leaving, sending), return_when=asyncio.FIRST_COMPLETED
            )
            for task in pending:
                task.cancel()
            await asyncio.gather(*done, *pending, return_exceptions=True)

    async def _send_events(self, request: Request, send: Send) -> None:
        async def still_may() -> bool:
            found = await asyncio.to_thread(self._dashboard.visitor_of, request)
            return not isinstance(found, Response)

        own = {
            **HEADERS,
            "Content-Type": "text/event-stream",
            "X-Accel-Buffering": "no",
        }
        await send(
            {"type": "http.response.start", "status": 200, "headers": _bytes(own)}
        )
        async for message in self._streams.messages(still_may):
            await send(
                {"type": "http.response.body", "body": message, "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await asyncio.to_thread(self._dashboard.close)
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes | None:
    """Return the body; None of one that is too long."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > LONGEST_BODY:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _from_scope(scope: Scope, body: bytes) -> Request:
    root = scope.get("root_path", "")
    path = scope["path"]
    if root and path.startswith(root):  # since ASGI 2.4 the path has it
        path = path[len(root) :]
    headers = [(name.decode("latin-1"), value) for name, value in scope["headers"]]
    return Request(
        method=scope["method"],
        path=path or "/",
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=_once(
            (name.lower(), value.decode("latin-1")) for name, value in headers
        ),
        body=body,
        root=root,
        host=scope,
        has_streams=True,
    )


async def _send(response: Response, send: Send, *, is_head: bool) -> None:
    headers = _bytes(dict(response.all_headers()))
    start = {
        "type": "http.response.start",
        "status": response.status,
        "headers": headers,
    }
    await send(start)
    body = b"" if is_head else response.body
    await send({"type": "http.response.body", "body": body})


def _bytes(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
    ]


class WSGIFace:
    """A WSGI application."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def __call__(
        self, environ: Environ, start_response: StartResponse
    ) -> Sequence[bytes]:
        """Answer one request."""
        body = _read(environ)
        if body is None:
            response = _TOO_LONG
        else:
            response = self._dashboard.respond(_from_environ(environ, body))
        status = f"{response.status} {HTTPStatus(response.status).phrase}"
        start_response(status, response.all_headers())
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]


def _read(environ: Environ) -> bytes | None:
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return None
    if not 0 <= length <= LONGEST_BODY:
        return None
    return cast("IO[bytes]", environ["wsgi.input"]).read(length)


def _from_environ(environ: Environ, body: bytes) -> Request:
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
    return Request(
        method=environ["REQUEST_METHOD"],
        path=path or "/",
        query=environ.get("QUERY_STRING", ""),
        headers=headers,
        body=body,
        root=environ.get("SCRIPT_NAME", "")
        .encode("latin-1")
        .decode("utf-8", "replace"),
        host=environ,
    )


def _once(headers: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Return the headers by name. One that is repeated is joined, so that none hides another."""
    found: dict[str, str] = {}
    for name, value in headers:
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
