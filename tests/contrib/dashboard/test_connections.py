"""Half-sent requests hold nothing of ``slotwise dashboard``."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import uvicorn
from tests.contrib.dashboard.site import Site

from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.contrib.dashboard import Dashboard, connections, faces
from slotwise.contrib.dashboard.command import config_of

HALF = b"GET /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
#: A form whose body does not come.
FORM = b"POST /operate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\noperation="


@pytest.fixture
def served(cluster: str) -> Iterator[Site]:
    """The dashboard as the command serves it."""
    dashboard = Dashboard(cluster, role="viewer")
    listening = socket.create_server(("127.0.0.1", 0))
    config = config_of(dashboard)
    config.timeout_keep_alive = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Site(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
        dashboard.close()


def opened(stack: ExitStack, site: Site, sent: bytes) -> socket.socket:
    client = stack.enter_context(
        closing(socket.create_connection(("127.0.0.1", site.port), timeout=30))
    )
    client.sendall(sent)
    return client


def is_closed(client: socket.socket) -> bool:
    """Whether the server has closed the connection within the socket's timeout."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_head_that_does_not_come_is_not_waited_for(
    served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the second one of a connection; a whole request is answered meanwhile."""
    monkeypatch.setattr(connections, "HEAD", 0.5)
    with ExitStack() as stack:
        silent = opened(stack, served, b"")
        half = opened(stack, served, HALF)
        second = opened(
            stack, served, b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + HALF
        )
        assert served.get("/jobs").status == 200
        assert is_closed(silent)
        assert is_closed(half)
        answer = second.recv(65_536)
        while found := second.recv(65_536):
            answer += found
        assert b"404" in answer.splitlines()[0]


def test_the_oldest_of_too_many_is_closed(
    served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a file descriptor is left for a visitor."""
    monkeypatch.setattr(connections, "MOST", 5)
    with ExitStack() as stack:
        clients = [opened(stack, served, HALF) for _ in range(12)]
        assert served.get("/jobs").status == 200
        assert all(is_closed(one) for one in clients[:7])


def test_a_form_that_does_not_come_is_not_waited_for(
    served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faces, "LONGEST_ARRIVAL", 0.3)
    with ExitStack() as stack:
        answer = opened(stack, served, FORM).recv(65_536)
        assert b"408" in answer.splitlines()[0]


def test_the_address_of_a_replica_is_validated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the dashboard starts."""
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    words = ["dashboard", "--port", "0", "--database-url", "sqlite:///jobs.db"]
    assert status([*words, "--read-url", "foo://"]) == exits.FAILED
    said = capsys.readouterr()
    assert said.out == ""
    assert "the database address is not understood" in said.err
