"""The port of a worker: ``/livez``, ``/readyz`` and ``/metrics``; and one port for several processes.

A child of a supervisor serves the same as JSON on a Unix socket. The supervisor asks all children at each request: it
is as healthy as the worst of them, and shows their figures as one.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, RemoteDisconnected
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from slotwise.contrib.metrics.figures import Snapshot, as_plain, combined, from_plain
from slotwise.contrib.metrics.health import Verdict
from slotwise.errors import ConfigurationError

logger = logging.getLogger("slotwise.http")

#: How long a client may take to send its request, and how long a child may take to answer, in seconds.
SLOW_CLIENT: Final = 10.0
SLOW_CHILD: Final = 3.0
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})")


#: What a child reports, as JSON.
Told: TypeAlias = "dict[str, list[object]]"


class Source(Protocol):
    """What the port shows: a worker, or the children of a supervisor."""

    def check(self) -> Verdict: ...

    def snapshot(self) -> Snapshot: ...


def address_of(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``:PORT`` (all interfaces) or ``[::1]:PORT``. Raise ConfigurationError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ConfigurationError(f"--http {text!r:.60}: write :8081, 127.0.0.1:8081 or [::1]:8081")
    return match["six"] or match["host"] or "", int(match["port"])


class Port:
    """Serves a source over HTTP on threads of its own, from its creation to ``close``."""

    def __init__(self, address: str | Path, source: Source) -> None:
        """``address``: as for ``address_of``; a Path is a Unix socket, which serves JSON. Raise ConfigurationError."""
        handler = _handler(source)
        try:
            if isinstance(address, Path):
                self._server: ThreadingHTTPServer = _UnixServer(address, handler)
            else:
                self._server = _server(address_of(address), handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(f"--http {address}: {reason}; choose another address") from None
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="slotwise-http", daemon=True).start()

    @property
    def number(self) -> int:
        """The port's number, which the system has chosen if the address says 0."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no news."""
        logger.debug("a request has failed", exc_info=True)


class _SixServer(_Server):
    address_family = socket.AF_INET6


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


def _server(address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> _Server:
    """An empty host means all interfaces, of IPv4 and of IPv6 where there is one."""
    host, port = address
    if ":" in host:
        return _SixServer(address, handler)
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):
            return _DualServer(("::", port), handler)
    return _Server(address, handler)


class _DualServer(_SixServer):
    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


_NOTHING: Final = (int(HTTPStatus.NOT_FOUND), "text/plain", b"see /livez, /readyz and /metrics\n")


def _handler(source: Source) -> type[BaseHTTPRequestHandler]:
    pages: dict[str, Callable[[Source], tuple[int, str, bytes]]] = {
        "/livez": _livez, "/readyz": _readyz, "/metrics": _metrics, "/status": _status, "/figures": _figures,
    }  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "slotwise", ""
        timeout = SLOW_CLIENT

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            try:
                found = (
                    page(source) if page else (HTTPStatus.NOT_FOUND, "text/plain", b"see /livez, /readyz, /metrics\n")
                )
            except Exception as error:
                logger.exception("%s has failed", self.path)
                found = HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{type(error).__name__}\n".encode()
            status, kind, body = found
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


def _livez(source: Source) -> tuple[int, str, bytes]:
    verdict = source.check()
    return _told(verdict.is_alive, () if verdict.is_alive else verdict.problems)


def _readyz(source: Source) -> tuple[int, str, bytes]:
    verdict = source.check()
    return _told(verdict.is_ready, verdict.problems)


def _told(is_well: bool, problems: tuple[str, ...]) -> tuple[int, str, bytes]:
    status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "text/plain; charset=utf-8", "".join(f"{line}\n" for line in problems or ("ok",)).encode()


def _metrics(source: Source) -> tuple[int, str, bytes]:
    try:
        from slotwise.contrib.metrics.prometheus import CONTENT_TYPE, exposition
    except ConfigurationError as error:
        return HTTPStatus.NOT_IMPLEMENTED, "text/plain; charset=utf-8", f"{error}\n".encode()
    return HTTPStatus.OK, CONTENT_TYPE, exposition(source.snapshot())


def _status(source: Source) -> tuple[int, str, bytes]:
    verdict = source.check()
    told = {"alive": verdict.is_alive, "ready": verdict.is_ready, "problems": verdict.problems}
    return HTTPStatus.OK, "application/json", json.dumps(told).encode()


def _figures(source: Source) -> tuple[int, str, bytes]:
    return HTTPStatus.OK, "application/json", json.dumps(as_plain(source.snapshot())).encode()


# -- several processes ---------------------------------------------------------------------------------------------


class Children:
    """The worker processes of a supervisor as one source. Each serves on a socket in ``directory``.

    A child that has ended is not counted: the supervisor starts another one. One that does not answer is not alive.
    All ``count`` of them must be ready for the whole to be ready.
    """

    def __init__(self, count: int) -> None:
        folder = tempfile.gettempdir()
        # The name of a Unix socket is at most about 100 bytes long.
        self.directory = Path(tempfile.mkdtemp(prefix="slotwise-", dir=folder if len(folder) < 60 else "/tmp"))
        self._count = count
        self._pool = ThreadPoolExecutor(min(max(count, 1), 64), thread_name_prefix="slotwise-child-status")

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def check(self) -> Verdict:
        found = self._ask("/status")
        problems = [f"process {pid}: {problem}" for pid, one in found.items() for problem in _problems(one)]
        if (missing := self._count - len(found)) > 0:
            problems.append(f"{missing} of {self._count} worker processes are not up")
        return Verdict(
            is_alive=all(one is not None and bool(one["alive"]) for one in found.values()),
            is_ready=missing <= 0 and all(one is not None and bool(one["ready"]) for one in found.values()),
            problems=tuple(problems),
        )

    def snapshot(self) -> Snapshot:
        return combined(from_plain(one) for one in self._ask("/figures").values() if one is not None)

    def _ask(self, path: str) -> dict[str, Told | None]:
        """Ask all children at once; return the answers by process, None where there is none in time."""
        places = sorted(self.directory.glob("*.sock"))
        answers = self._pool.map(lambda place: _asked(place, path), places)
        return {place.stem: told for place, (is_there, told) in zip(places, answers, strict=True) if is_there}


def _problems(told: Told | None) -> list[str]:
    if told is None:
        return ["does not answer"]
    problems = told["problems"]
    return [str(one) for one in problems] if isinstance(problems, list) else []


def _asked(place: Path, path: str) -> tuple[bool, Told | None]:
    """Return whether a child listens at this place, and its answer.

    Race: a child that was killed leaves its socket behind, and nothing listens there; the next one has another name.
    """
    connection = _UnixConnection(place)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        return True, told if answer.status == HTTPStatus.OK and isinstance(told, dict) else None
    except (ConnectionRefusedError, FileNotFoundError):
        with suppress(OSError):
            place.unlink()
        return False, None
    except (ConnectionResetError, BrokenPipeError, RemoteDisconnected):  # it has ended just now
        return False, None
    except (OSError, HTTPException, ValueError):
        return True, None
    finally:
        connection.close()


class _UnixConnection(HTTPConnection):
    def __init__(self, place: Path) -> None:
        super().__init__("localhost", timeout=SLOW_CHILD)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._place))


def place_of_child(directory: Path) -> Path:
    """Return where this process serves, as a child of a supervisor that looks into ``directory``."""
    return directory / f"{os.getpid()}.sock"
