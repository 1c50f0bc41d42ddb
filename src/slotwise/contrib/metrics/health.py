"""Whether a worker is alive and ready, and what tells it: a file that is written again and again,
and an HTTP port.

The port has ``/livez``, ``/readyz`` and ``/metrics``. A child of a supervisor serves the same as
JSON on a Unix socket. The supervisor asks all children at each request: it is as healthy as the
worst of them, and shows their figures as one.
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
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, RemoteDisconnected
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from slotwise import ConfigurationError
from slotwise.contrib.metrics.figures import Snapshot, as_plain, combined, from_plain
from slotwise.spi import Service, Worker, parse_duration

logger = logging.getLogger("slotwise.health")

#: The least time after which a loop counts as stuck, by default: restarts must not make a slow
#: database slower.
SHORTEST: Final = timedelta(minutes=1)
#: How often the file is written.
INTERVAL: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The health of one worker, or the worst of several. ``problems``: why it is not alive, or not
    ready.
    """

    is_alive: bool
    is_ready: bool
    problems: tuple[str, ...] = ()


class WorkerHealth:
    """Judges a worker by its loops, without the database.

    A loop is stuck if its current round has lasted for longer than ``stuck_after``; by default two
    leases, at least one minute. Every statement has a deadline, so an absent or slow database
    leaves the worker alive: a restart would not help, and handlers may be running. A worker is
    ready when it has started, does not drain and reaches the database.
    """

    def __init__(
        self,
        worker: Callable[[], Worker | None],
        stuck_after: timedelta | str | None = None,
    ) -> None:
        self._worker = worker
        self._stuck_after = None if stuck_after is None else parse_duration(stuck_after)
        if self._stuck_after is not None and not self._stuck_after:
            raise ConfigurationError("stuck_after must be more than zero")

    def check(self) -> Verdict:
        """Return the verdict; a process whose worker has not started, or has stopped, is alive and
        not ready.
        """
        if (worker := self._worker()) is None:
            return Verdict(
                is_alive=True, is_ready=False, problems=("no worker runs in this process",)
            )
        limit = self._stuck_after or max(2 * worker.settings.lease, SHORTEST)
        stuck = [
            problem
            for loop in worker.loops
            if (problem := _problem(loop, worker, limit.total_seconds()))
        ]
        if stuck:
            return Verdict(is_alive=False, is_ready=False, problems=tuple(stuck))
        unready = _unready(worker)
        return Verdict(
            is_alive=True,
            is_ready=unready is None,
            problems=() if unready is None else (unready,),
        )


def busy_for(loop: Service) -> float:
    """Return for how many seconds the current round of a loop has lasted; 0 while it sleeps."""
    since = loop.busy_since
    return 0.0 if since is None else max(loop.elapsed() - since, 0.0)


def _problem(loop: Service, worker: Worker, limit: float) -> str | None:
    if not loop.has_started:
        return None
    if (busy := busy_for(loop)) > limit:
        return f"the loop {loop.name} is stuck: its round has lasted for {busy:.0f} s"
    if not worker.is_draining and loop.join(timedelta(0)) and not worker.wait_for_stop(0):
        return f"the loop {loop.name} has ended"
    return None


def _unready(worker: Worker) -> str | None:
    if worker.is_draining or worker.wait_for_stop(0):
        return "the worker drains"
    if worker.common.is_away:
        return "the database is away"
    return None if worker.poller.has_started else "the worker is starting"


class AliveFile:
    """Writes a file again every two seconds while the process is alive; it is removed at the end.

    A probe compares the age of the file with its own limit. The content is one JSON object, for
    people.
    """

    def __init__(self, path: Path, check: Callable[[], Verdict]) -> None:
        """Raise ConfigurationError if the file cannot be written."""
        self._path = path
        self._check = check
        self._stopping = threading.Event()
        self._told: tuple[str, ...] = ()
        try:
            self._write(
                Verdict(is_alive=True, is_ready=False, problems=("the worker is starting",))
            )
        except OSError as error:
            raise ConfigurationError(
                f"--alive-file {path}: {error.strerror}; name a file in a folder that exists"
            ) from None
        self._thread = threading.Thread(
            target=self._run, name="slotwise-alive-file", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop writing and remove the file."""
        self._stopping.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink()

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL.total_seconds()):
            verdict = self._check()
            if not verdict.is_alive and verdict.problems != self._told:
                self._told = verdict.problems
                logger.error(
                    "not alive, so %s is not written: %s",
                    self._path,
                    "; ".join(verdict.problems),
                )
            if verdict.is_alive:
                with suppress(
                    OSError
                ):  # no space is left: the file grows old, and the next round tries again
                    self._write(verdict)

    def _write(self, verdict: Verdict) -> None:
        """Race: a probe may read at any time, so the file is replaced as a whole."""
        draft = self._path.with_name(f".{self._path.name}.new")
        draft.write_text(
            json.dumps({"ready": verdict.is_ready, "problems": verdict.problems}) + "\n"
        )
        draft.replace(self._path)


# -- the port -------------------------------------------------------------------------------------

#: How long a client may take to send its request, and how long a child may take to answer, in
#: seconds.
SLOW_CLIENT: Final = 10.0
SLOW_CHILD: Final = 3.0
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})"
)


#: What a child reports, as JSON.
Told: TypeAlias = "dict[str, list[object]]"


class Source(Protocol):
    """What the port shows: a worker, or the children of a supervisor."""

    def check(self) -> Verdict: ...

    def snapshot(self) -> Snapshot: ...


def address_of(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``:PORT`` (all interfaces) or ``[::1]:PORT``. Raise
    ConfigurationError.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ConfigurationError(
            f"--http {text!r:.60}: write :8081, 127.0.0.1:8081 or [::1]:8081"
        )
    return match["six"] or match["host"] or "", int(match["port"])


class Port:
    """Serves a source over HTTP on threads of its own, from its creation to ``close``."""

    def __init__(self, address: str | Path, source: Source) -> None:
        """``address``: as for ``address_of``; a Path is a Unix socket, which serves JSON. Raise
        ConfigurationError.
        """
        handler = _handler(source)
        try:
            if isinstance(address, Path):
                self._server: ThreadingHTTPServer = _UnixServer(address, handler)
            else:
                self._server = _server(address_of(address), handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"--http {address}: {reason}; choose another address"
            ) from None
        threading.Thread(
            target=self._server.serve_forever,
            args=(0.1,),
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


_NOTHING: Final = (
    int(HTTPStatus.NOT_FOUND),
    "text/plain",
    b"see /livez, /readyz and /metrics\n",
)


def _handler(source: Source) -> type[BaseHTTPRequestHandler]:
    pages: dict[str, Callable[[Source], tuple[int, str, bytes]]] = {
        "/livez": _livez,
        "/readyz": _readyz,
        "/metrics": _metrics,
        "/status": _status,
        "/figures": _figures,
    }

    class Handler(BaseHTTPRequestHandler):
        server_version = "slotwise"
        sys_version = ""
        timeout = SLOW_CLIENT

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            try:
                found = (
                    page(source)
                    if page
                    else (
                        HTTPStatus.NOT_FOUND,
                        "text/plain",
                        b"see /livez, /readyz, /metrics\n",
                    )
                )
            except Exception as error:
                logger.exception("%s has failed", self.path)
                found = (
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "text/plain",
                    f"{type(error).__name__}\n".encode(),
                )
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
    return (
        status,
        "text/plain; charset=utf-8",
        "".join(f"{line}\n" for line in problems or ("ok",)).encode(),
    )


def _metrics(source: Source) -> tuple[int, str, bytes]:
    try:
        from slotwise.contrib.metrics.prometheus import CONTENT_TYPE, exposition
    except ConfigurationError as error:
        return (
            HTTPStatus.NOT_IMPLEMENTED,
            "text/plain; charset=utf-8",
            f"{error}\n".encode(),
        )
    return HTTPStatus.OK, CONTENT_TYPE, exposition(source.snapshot())


def _status(source: Source) -> tuple[int, str, bytes]:
    verdict = source.check()
    told = {
        "alive": verdict.is_alive,
        "ready": verdict.is_ready,
        "problems": verdict.problems,
    }
    return HTTPStatus.OK, "application/json", json.dumps(told).encode()


def _figures(source: Source) -> tuple[int, str, bytes]:
    return (
        HTTPStatus.OK,
        "application/json",
        json.dumps(as_plain(source.snapshot())).encode(),
    )


# -- several processes ----------------------------------------------------------------------------


class Children:
    """The worker processes of a supervisor as one source. Each serves on a socket in
    ``directory``.

    A child that has ended is not counted: the supervisor starts another one. One that does not
    answer is not alive. All ``count`` of them must be ready for the whole to be ready.
    """

    def __init__(self, count: int) -> None:
        folder = tempfile.gettempdir()
        # The name of a Unix socket is at most about 100 bytes long.
        self.directory = Path(
            tempfile.mkdtemp(prefix="slotwise-", dir=folder if len(folder) < 60 else "/tmp")
        )
        self._count = count
        self._pool = ThreadPoolExecutor(
            min(max(count, 1), 64), thread_name_prefix="slotwise-child-status"
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def check(self) -> Verdict:
        found = self._ask("/status")
        problems = [
            f"process {pid}: {problem}"
            for pid, one in found.items()
            for problem in _problems(one)
        ]
        if (missing := self._count - len(found)) > 0:
            problems.append(f"{missing} of {self._count} worker processes are not up")
        return Verdict(
            is_alive=all(one is not None and bool(one["alive"]) for one in found.values()),
            is_ready=missing <= 0
            and all(one is not None and bool(one["ready"]) for one in found.values()),
            problems=tuple(problems),
        )

    def snapshot(self) -> Snapshot:
        return combined(
            from_plain(one) for one in self._ask("/figures").values() if one is not None
        )

    def _ask(self, path: str) -> dict[str, Told | None]:
        """Ask all children at once; return the answers by process, None where there is none in
        time.
        """
        places = sorted(self.directory.glob("*.sock"))
        answers = self._pool.map(lambda place: _asked(place, path), places)
        return {
            place.stem: told
            for place, (is_there, told) in zip(places, answers, strict=True)
            if is_there
        }


def _problems(told: Told | None) -> list[str]:
    if told is None:
        return ["does not answer"]
    problems = told["problems"]
    return [str(one) for one in problems] if isinstance(problems, list) else []


def _asked(place: Path, path: str) -> tuple[bool, Told | None]:
    """Return whether a child listens at this place, and its answer.

    Race: a child that was killed leaves its socket behind, and nothing listens there; the next one
    has another name.
    """
    connection = _UnixConnection(place)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        return True, told if answer.status == HTTPStatus.OK and isinstance(
            told, dict
        ) else None
    except (ConnectionRefusedError, FileNotFoundError):
        with suppress(OSError):
            place.unlink()
        return False, None
    except (
        ConnectionResetError,
        BrokenPipeError,
        RemoteDisconnected,
    ):  # it has ended just now
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
    """Return where this process serves, as a child of a supervisor that looks into
    ``directory``.
    """
    return directory / f"{os.getpid()}.sock"
