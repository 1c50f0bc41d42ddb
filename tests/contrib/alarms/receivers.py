"""Real receivers on the loopback: of HTTP, and of SMTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message as Letter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from tests.contrib.metrics.ports import free_port
from tests.kit.patience import PATIENCE


@dataclass(frozen=True)
class Request:
    """What was received, as sent."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver(ThreadingHTTPServer):
    """Takes POSTs. ``statuses`` are the next answers, then 200; while ``gate`` is closed, it
    answers nothing.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Request] = []
        self.statuses: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """Event, kind and name of each message, in order."""
        return [
            (one.json["event"], one.json["kind"], one.json["name"])
            for one in list(self.requests)
        ]

    def wait_for(self, count: int) -> None:
        """Wait until so many further requests have arrived."""
        for _ in range(count):
            assert self.arrived.acquire(timeout=PATIENCE), self.told


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Request(self.path, headers, body))
        self.server.arrived.release()
        self.server.gate.wait(PATIENCE)
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.requests.append(Request(self.path, {}, b"{}"))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """No-op."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Mailbox:
    """Takes letters, or refuses them."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.refuses = False

    async def handle_DATA(  # noqa: N802  # the library's name
        self, server: object, session: object, envelope: Any
    ) -> str:
        if self.refuses:
            return "451 try again later"
        self.letters.append(message_from_bytes(envelope.content))
        return "250 OK"


@contextmanager
def mail_server() -> Iterator[tuple[Mailbox, int]]:
    """A server of SMTP on this host, and its port."""
    mailbox = Mailbox()
    port = free_port()
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield mailbox, port
    finally:
        controller.stop()
