"""The port of probes and Prometheus: ``/livez``, ``/readyz`` and ``/metrics`` over HTTP.

A child of a supervisor serves what the supervisor asks for, ``/status`` and ``/figures``, as JSON
on a Unix socket.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Final, Protocol, TypeAlias

from slotwise import ConfigurationError
from slotwise.contrib.metrics.figures import Snapshot, as_plain
from slotwise.contrib.metrics.health import ProbeResult

logger = logging.getLogger("slotwise.health")

#: How long a whole request may take, from its connection to its answer, in seconds.
REQUEST_LIMIT: Final = 10.0
#: How many connections may be open. One more closes the oldest: a probe is answered even if
#: somebody keeps as many half-sent requests.
CONNECTIONS: Final = 32
#: How often connections are checked for their age, in seconds.
LOOK: Final = 0.1
LOOPBACK: Final = "127.0.0.1"
#: All interfaces, of IPv4 too.
EVERYWHERE: Final = "::"
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})"
)


class Source(Protocol):
    """What the port shows: a worker, or the children of a supervisor."""

    def check(self) -> ProbeResult: ...

    def snapshot(self) -> Snapshot: ...


Answer: TypeAlias = tuple[int, str, bytes]
Pages: TypeAlias = Mapping[str, Callable[[Source], Answer]]


def address_of(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``:PORT`` (the loopback), ``*:PORT`` (all interfaces, of IPv4 and IPv6)
    or ``[::1]:PORT``. Raise ConfigurationError.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ConfigurationError(
            f"--http {text!r:.60}: write :8081 for this host alone, *:8081 for all interfaces, "
            "192.0.2.7:8081 or [::1]:8081"
        )
    return match["six"] or match["host"] or LOOPBACK, int(match["port"])


class Port:
    """Serves a source over HTTP on threads of its own, from its creation to ``close``.

    At most 32 connections are open, and a request takes at most ten seconds as a whole.
    """

    def __init__(self, address: str | Path, source: Source) -> None:
        """``address``: as for ``address_of``; a Path is a Unix socket, which serves JSON. Raise
        ConfigurationError.
        """
        try:
            self._server = _server(address, source)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"--http {address}: {reason}; choose another address"
            ) from None
        threading.Thread(
            target=self._server.serve_forever,
            args=(LOOK,),
            name="slotwise-http",
            daemon=True,
        ).start()

    @property
    def number(self) -> int:
        """The port's number, which the system has chosen if the address says 0."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, HTTPServer):
    """One thread for each connection, and a bound for their number and age.

    ``serve_forever`` calls ``process_request`` and ``service_actions`` in one thread. A connection
    leaves ``_since`` in the thread of its request, so the dictionary is read by a copy.
    """

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]
    ) -> None:
        self._since: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def process_request(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        opened = dict(self._since)
        if len(opened) >= CONNECTIONS:
            self._cut(min(opened, key=opened.__getitem__))
        self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        now = time.monotonic()
        for connection, since in dict(self._since).items():
            if now - since > REQUEST_LIMIT:
                self._cut(connection)

    def _cut(self, connection: socket.socket) -> None:
        """End a connection: its thread reads the end of the request, and closes it."""
        self._since.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: object) -> None:
        assert isinstance(request, socket.socket)
        self._since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no news."""
        logger.debug("a request has failed", exc_info=True)


class _SixServer(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        if self.server_address[0] == EVERYWHERE:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def __init__(self, place: Path, handler: type[BaseHTTPRequestHandler]) -> None:
        self._place = str(place)
        super().__init__(("", 0), handler)

    def server_bind(self) -> None:
        self.socket.bind(self._place)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, _ = self.socket.accept()
        return connection, ("", 0)


def _server(address: str | Path, source: Source) -> _Server:
    if isinstance(address, Path):
        return _UnixServer(address, _handler(source, {**_PAGES, **_PAGES_OF_A_CHILD}))
    host, port = address_of(address)
    handler = _handler(source, _PAGES)
    if host == "*":
        with suppress(OSError):  # a host without IPv6
            return _SixServer((EVERYWHERE, port), handler)
        return _Server(("", port), handler)
    return (_SixServer if ":" in host else _Server)((host, port), handler)


def _handler(source: Source, pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "slotwise"
        sys_version = ""

        def do_GET(self) -> None:
            status, kind, body = _answer(
                source, pages.get(self.path.partition("?")[0])
            )
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *arguments: object) -> None:
            logger.debug(format, *arguments)

    return Handler


def _answer(source: Source, page: Callable[[Source], Answer] | None) -> Answer:
    if page is None:
        return HTTPStatus.NOT_FOUND, "text/plain", b"see /livez, /readyz, /metrics\n"
    try:
        return page(source)
    except Exception as error:
        logger.exception("a page of the port has failed")
        name = type(error).__name__
        return HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{name}\n".encode()


def _livez(source: Source) -> Answer:
    verdict = source.check()
    return _told(verdict.is_alive, () if verdict.is_alive else verdict.problems)


def _readyz(source: Source) -> Answer:
    verdict = source.check()
    return _told(verdict.is_ready, verdict.problems)


def _told(is_well: bool, problems: tuple[str, ...]) -> Answer:
    status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    text = "".join(f"{line}\n" for line in problems or ("ok",))
    return status, "text/plain; charset=utf-8", text.encode()


def _metrics(source: Source) -> Answer:
    try:
        from slotwise.contrib.metrics.prometheus import CONTENT_TYPE, exposition
    except ConfigurationError as error:
        text = f"{error}\n"
        return HTTPStatus.NOT_IMPLEMENTED, "text/plain; charset=utf-8", text.encode()
    return HTTPStatus.OK, CONTENT_TYPE, exposition(source.snapshot())


def _status(source: Source) -> Answer:
    verdict = source.check()
    told = {
        "alive": verdict.is_alive,
        "ready": verdict.is_ready,
        "problems": verdict.problems,
    }
    return HTTPStatus.OK, "application/json", json.dumps(told).encode()


def _figures(source: Source) -> Answer:
    figures = json.dumps(as_plain(source.snapshot()))
    return HTTPStatus.OK, "application/json", figures.encode()


_PAGES: Final[Pages] = {"/livez": _livez, "/readyz": _readyz, "/metrics": _metrics}
_PAGES_OF_A_CHILD: Final[Pages] = {"/status": _status, "/figures": _figures}
