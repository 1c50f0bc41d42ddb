"""A dashboard behind a real server, and a browser that sends what it is told to."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode
from wsgiref.simple_server import WSGIRequestHandler, make_server

import uvicorn
from tests.kit.patience import PATIENCE

from slotwise.contrib.dashboard import Dashboard

Face = Literal["asgi", "wsgi"]
FACES: tuple[Face, ...] = ("asgi", "wsgi")


@dataclass(frozen=True)
class Answer:
    """What the server has sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """The address of a dashboard."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Send one request, with these headers and no others but Host and Content-Length."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=PATIENCE
        )
        given = {"host": f"127.0.0.1:{self.port}", **(headers or {})}
        try:
            connection.putrequest(
                method, path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in given.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, **given: str
    ) -> Answer:
        query = f"?{urlencode(given)}" if given else ""
        return self.ask("GET", path + query, headers)

    def token(self) -> str:
        """Return the token that this visitor's forms carry now."""
        found = re.search(
            r'name="token" value="(\w+)"', self.get("/job", name="poll-orders").text
        )
        assert found is not None
        return found[1]

    def post(
        self, form: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Submit a form as a page of the site does, unless the headers say otherwise."""
        ours = {"sec-fetch-site": "same-origin"} if headers is None else headers
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return self.ask("POST", "/operate", {**kind, **ours}, urlencode(form).encode())


@contextmanager
def served(dashboard: Dashboard, face: Face = "asgi") -> Iterator[Site]:
    """Serve a dashboard on a free port, and close it at the end."""
    serve = _by_asgi if face == "asgi" else _by_wsgi
    with serve(dashboard) as port:
        yield Site(port)
    dashboard.close()


@contextmanager
def _by_asgi(dashboard: Dashboard) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        dashboard.asgi, log_level="warning", ws="none", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def _by_wsgi(dashboard: Dashboard) -> Iterator[int]:
    server = make_server("127.0.0.1", 0, dashboard.wsgi, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()
