"""Server-sent events: what open pages receive, and the limits of streams."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest
from tests.contrib.dashboard.site import Site, served
from tests.kit.patience import PATIENCE

from slotwise.contrib.dashboard import Dashboard, Request, Role, Visitor, streams
from slotwise.contrib.dashboard.recent import Recent


@contextmanager
def listening(site: Site, user: str = "ada") -> Iterator[http.client.HTTPResponse]:
    """Open a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)
    connection.request("GET", "/events", headers={"x-user": user})
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def next_event(answer: http.client.HTTPResponse) -> str:
    while line := answer.readline().decode():
        if line.startswith("data: "):
            return line.removeprefix("data: ").strip()
    return ""


def by_header(request: Request) -> Visitor:
    return Visitor(name=request.headers["x-user"], role=Role.VIEWER)


def test_all_streams_share_one_reader(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is read once a beat, however many pages are open."""
    reads = list[int]()
    monkeypatch.setattr(streams, "BEAT", 0.2)
    original = Dashboard.pulse

    def pulse(self: Dashboard) -> str:
        reads.append(1)
        return original(self)

    monkeypatch.setattr(Dashboard, "pulse", pulse)
    with served(Dashboard(cluster, role=by_header)) as site, ExitStack() as stack:
        answers = [
            stack.enter_context(listening(site, f"user-{number}"))
            for number in range(20)
        ]
        assert answers[0].headers["content-type"] == "text/event-stream"
        assert answers[0].headers["cache-control"] == "no-store"
        for answer in answers:
            assert "now" in next_event(answer)
        seen = len(reads)
        next_event(answers[0])
        assert len(reads) - seen < 10


def test_too_many_streams_are_refused(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one visitor, and of all; the page itself is still served, and a place is free again once
    a stream has ended.
    """
    monkeypatch.setattr(streams, "MOST_STREAMS", 8)
    with served(Dashboard(cluster, role=by_header)) as site, ExitStack() as stack:
        for _ in range(5):
            assert stack.enter_context(listening(site)).status == 200
        with listening(site) as sixth:
            assert sixth.status == 503
        for number in range(3):
            assert stack.enter_context(listening(site, f"user-{number}")).status == 200
        with listening(site, "late") as ninth:
            assert ninth.status == 503
        assert site.get("/jobs", {"x-user": "ada"}).status == 200
        stack.close()
        assert any(_status(site) == 200 for _ in range(200))


def _status(site: Site) -> int:
    with listening(site) as answer:
        return answer.status


def test_a_stream_ends_with_the_role(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again at each ping."""
    monkeypatch.setattr(streams, "PING", 0.1)
    monkeypatch.setattr(streams, "BEAT", 60.0)
    allowed = ["viewer"]
    dashboard = Dashboard(
        cluster, role=lambda request: allowed[0] if allowed else None
    )
    with served(dashboard) as site, listening(site) as answer:
        assert "now" in next_event(answer)
        allowed.clear()
        rest = answer.read()
        assert rest.replace(b": ping\n\n", b"").strip() == b""


def test_a_stream_ends_after_a_while(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser opens another one."""
    monkeypatch.setattr(streams, "LONGEST", 0.0)
    with served(Dashboard(cluster, role="viewer")) as site, listening(site) as answer:
        assert answer.read() == b"retry: 5000\n\n"


def test_a_stream_needs_a_role(cluster: str) -> None:
    with served(Dashboard(cluster)) as site, listening(site) as answer:
        assert answer.status == 403


def test_the_database_away_is_an_event() -> None:
    """Pages then say so, and the stream stays open."""
    dashboard = Dashboard("postgresql://localhost:1/none", role="viewer")
    assert dashboard.pulse() == '{"away": true}'


def test_visitors_who_look_at_the_same_page_share_a_read() -> None:
    """For two seconds; an operation ends that."""
    reads = list[int]()
    recent = Recent[int]()

    def read() -> int:
        reads.append(1)
        return len(reads)

    assert [recent.get(key, read) for key in ("a", "a", "b")] == [1, 1, 2]
    recent.clear()
    assert recent.get("a", read) == 3


IDLE = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"


def test_slow_clients_do_not_keep_a_page_from_others(cluster: str) -> None:
    """A hundred ask for a page and do not read it; no transaction is open meanwhile."""
    question = b"GET /timeline HTTP/1.1\r\nHost: 127.0.0.1\r\nX-User: slow\r\n\r\n"
    with served(Dashboard(cluster, role=by_header)) as site, ExitStack() as stack:
        assert site.get("/jobs", {"x-user": "ada"}).status == 200
        for _ in range(100):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            client.connect(("127.0.0.1", site.port))
            stack.enter_context(closing(client)).sendall(question)
        assert site.get("/jobs", {"x-user": "ada"}).status == 200
        with psycopg.connect(cluster, autocommit=True) as connection:
            row = connection.execute(
                f"{IDLE} AND datname = current_database()"
            ).fetchone()
    assert row == (0,)
