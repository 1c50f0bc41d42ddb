"""The port of probes: it answers while others keep as many half-sent requests as they like."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contrib.metrics.ports import ask

from slotwise.contrib.metrics import Port, ProbeResult
from slotwise.contrib.metrics import port as the_port
from slotwise.contrib.metrics.alive_file import AliveFile
from slotwise.contrib.metrics.figures import Snapshot

WELL = ProbeResult(is_alive=True, is_ready=True)
HALF = b"GET /livez HTTP/1.0\r\nX-"


class Healthy:
    def check(self) -> ProbeResult:
        return WELL

    def snapshot(self) -> Snapshot:
        raise NotImplementedError


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port("127.0.0.1:0", Healthy())
    yield made
    made.close()


def half_sent(port: Port) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port.number), timeout=20)
    client.sendall(HALF)
    return client


def test_one_connection_too_many_closes_the_oldest(port: Port) -> None:
    clients = [half_sent(port) for _ in range(the_port.CONNECTIONS)]
    assert ask(port.number, "/livez") == (200, "ok\n")
    oldest, *others = clients
    assert not oldest.recv(100)
    others[-1].sendall(b"Y: 1\r\n\r\n")
    assert others[-1].recv(15).startswith(b"HTTP/1.0 200")
    for client in clients:
        client.close()


def test_a_flood_of_half_sent_requests_holds_few_threads(port: Port) -> None:
    before = threading.active_count()
    clients = [half_sent(port) for _ in range(10 * the_port.CONNECTIONS)]
    assert ask(port.number, "/readyz") == (200, "ok\n")
    deadline = time.monotonic() + 20
    while threading.active_count() > before + the_port.CONNECTIONS + 1:
        assert time.monotonic() < deadline
    for client in clients:
        client.close()


def test_a_request_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline is for the whole request: more bytes do not extend it."""
    monkeypatch.setattr(the_port, "REQUEST_LIMIT", 0.3)
    port = Port("127.0.0.1:0", Healthy())
    try:
        assert is_cut(half_sent(port))
    finally:
        port.close()


def is_cut(client: socket.socket) -> bool:
    """Send a byte now and then, until the port ends the connection; False after 20 seconds."""
    deadline = time.monotonic() + 20
    client.settimeout(0.05)
    with client:
        while time.monotonic() < deadline:
            try:
                client.sendall(b"x")
                if not client.recv(1):
                    return True
            except TimeoutError:
                pass
            except OSError:
                return True
    return False


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (":8081", ("127.0.0.1", 8081)),
        ("*:8081", ("*", 8081)),
        ("0.0.0.0:8081", ("0.0.0.0", 8081)),
        ("[::1]:8081", ("::1", 8081)),
        ("probe.example:0", ("probe.example", 0)),
    ],
)
def test_where_an_address_listens(address: str, expected: tuple[str, int]) -> None:
    assert the_port.address_of(address) == expected


def test_all_interfaces() -> None:
    port = Port("*:0", Healthy())
    try:
        assert ask(port.number, "/livez") == (200, "ok\n")
    finally:
        port.close()


@pytest.mark.parametrize("path", ["/status", "/figures"])
def test_what_the_supervisor_asks_for_is_not_served_to_others(
    port: Port, path: str
) -> None:
    assert ask(port.number, path)[0] == 404


def test_the_alive_file_never_writes_through_a_link(tmp_path: Path) -> None:
    """Whoever may write to the directory can plant links, and cannot guess the draft's name."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    alive = tmp_path / "alive"
    alive.symlink_to(victim)
    (tmp_path / ".alive.new").symlink_to(victim)
    file = AliveFile(alive, lambda: WELL)
    assert not alive.is_symlink()
    file.close()
    assert victim.read_text() == "mine"
