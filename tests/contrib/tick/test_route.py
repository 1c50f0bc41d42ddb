"""A request for a tick: under real servers, judged by the handlers' own log."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contrib.servers import Server, environment, program, serving
from tests.docs.markdown import ROOT, blocks
from tests.kit.patience import PATIENCE

from slotwise import ConfigurationError, JobRegistry, TaskContext, task
from slotwise.contrib.tick import TickASGI, TickWSGI

SECRET = "a-secret-of-the-clock"
REQUEST = f"POST /tick HTTP/1.0\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode()
NEXT = "the-next-secret-of-the-clock"

APP = """
import asyncio, os, time
from slotwise import JobRegistry, task
from slotwise.contrib.tick import TickASGI, TickWSGI

def marked(word, ctx):
    with open("log.txt", "a") as log:
        log.write(f"{word} {ctx.id} {ctx.attempt}\\n")

@task(name="slow")
def slow(ctx):
    marked("start", ctx)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not os.path.exists("go"):
        time.sleep(0.02)
    marked("end", ctx)

@task(name="quick")
async def quick(ctx):
    marked("start", ctx)
    await asyncio.sleep(0)

registry = JobRegistry(tasks=[slow, quick])

async def site(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b'"site"'})

def wsgi_site(environ, start_response):
    start_response("200 OK", [])
    return [b'"site"']

def make():
    return registry

asgi = TickASGI(make, site, budget="20s")
wsgi = TickWSGI(make, wsgi_site, budget="20s")
"""

SERVERS = {
    "uvicorn": [program("uvicorn"), "shop:asgi", "--port", "{port}"],
    "gunicorn": [
        program("gunicorn"),
        *("--threads", "4", "--bind", "127.0.0.1:{port}", "shop:wsgi"),
    ],
}


class Shop:
    """An application under a server, and what its handlers have written."""

    def __init__(self, directory: Path, server: Server) -> None:
        self.directory = directory
        self.server = server
        self.place = ("127.0.0.1", server.port)
        self.url = f"http://127.0.0.1:{server.port}/tick"

    def lines(self) -> list[str]:
        log = self.directory / "log.txt"
        return log.read_text().splitlines() if log.exists() else []

    def let_go(self) -> None:
        (self.directory / "go").touch()

    def tick(
        self, secret: str | None = SECRET, method: str = "POST"
    ) -> tuple[int, Any, Any]:
        """Return the status, the document and the headers of the answer."""
        call = urllib.request.Request(self.url, method=method)
        if secret is not None:
            call.add_header("Authorization", f"Bearer {secret}")
        try:
            with urllib.request.urlopen(call, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read()), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), error.headers

    def until(self, line: str) -> None:
        self.server.until(lambda: line in self.lines())


@pytest.fixture(
    params=["uvicorn", pytest.param("gunicorn", marks=pytest.mark.extended)]
)
def shop(
    request: pytest.FixtureRequest, pg_url: str, tmp_path: Path
) -> Iterator[Shop]:
    """The application under each server, with leases of 3 s."""
    (tmp_path / "shop.py").write_text(APP)
    env = environment(
        pg_url,
        SLOTWISE_HEARTBEAT_INTERVAL="300ms",
        SLOTWISE_MISSED_HEARTBEATS_LIMIT="10",
        SLOTWISE_TICK_SECRET=f"{NEXT} {SECRET}",
        PYTHONPATH=str(tmp_path),
    )
    command = SERVERS[request.param]
    with serving(command, tmp_path, tmp_path / "server.log", env) as server:
        yield Shop(tmp_path, server)


@task(name="slow")
def slow(ctx: TaskContext) -> None: ...


@task(name="quick")
def quick(ctx: TaskContext) -> None: ...


@pytest.fixture
def registry(pg_url: str) -> Iterator[JobRegistry]:
    made = JobRegistry(tasks=[slow, quick], database_url=pg_url)
    yield made
    made.database.close()


def test_requests_and_their_answers(shop: Shop, registry: JobRegistry) -> None:
    """Who has no secret starts nothing; both secrets tick; what is due has run when it answers."""
    registry.client.schedule("quick", id="one")
    for secret in (None, "", "wrong", SECRET[:-1]):
        status, document, headers = shop.tick(secret)
        assert status == 401
        assert headers["WWW-Authenticate"] == "Bearer"
        assert "\n" not in document["error"]
    status, document, headers = shop.tick(method="GET")
    assert (status, headers["Allow"]) == (405, "POST")
    assert shop.lines() == []
    for secret, ran in ((SECRET, {"quick": {"succeeded": 1}}), (NEXT, {})):
        status, document, headers = shop.tick(secret)
        assert status == 200, shop.server.log
        assert (document["state"], document["ran"], document["until"]) == (
            "idle",
            ran,
            None,
        )
        assert headers["Content-Type"] == "application/json"
    assert shop.lines() == ["start one 1"]
    assert shop.server.get("/other") == (200, "site")
    if shutil.which("curl"):
        assert asked_as_on_the_page(shop)["state"] == "idle"


def asked_as_on_the_page(shop: Shop) -> Any:
    """The answer to the page's own request."""
    (line,) = [
        line
        for block in blocks(ROOT / "docs" / "ticks.md", "sh")
        for line in block.code.splitlines()
        if line.startswith("curl ")
    ]
    line = line.replace("https://shop.example.com/tick", shop.url)
    line = line.replace("$SLOTWISE_TICK_SECRET", SECRET)
    done = subprocess.run(shlex.split(line), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_client_that_goes_away_ends_nothing(
    shop: Shop, registry: JobRegistry
) -> None:
    """The handler goes on to its end; meanwhile another request is answered at once."""
    registry.client.schedule("slow", id="one")
    with socket.create_connection(shop.place) as client:
        client.sendall(REQUEST)
        shop.until("start one 1")
    status, document, headers = shop.tick()
    assert (status, document["state"], headers["Retry-After"]) == (200, "busy", "5")
    shop.let_go()
    shop.until("end one 1")

    def is_free() -> bool:
        return bool(shop.tick()[1]["state"] == "idle")

    shop.server.until(is_free)
    assert shop.lines() == ["start one 1", "end one 1"]


def test_a_server_that_is_killed_in_a_tick(
    shop: Shop, registry: JobRegistry, pg_url: str
) -> None:
    """The next tick, in another process, takes the task over."""
    registry.client.schedule("slow", id="one")
    with socket.create_connection(shop.place) as client:
        client.sendall(REQUEST)
        shop.until("start one 1")
        children = subprocess.run(
            ["pgrep", "-P", str(shop.server.process.pid)],
            capture_output=True,
            text=True,
        ).stdout.split()
        for pid in (shop.server.process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
    shop.let_go()
    command = ["-m", "slotwise", "tick", "--app", "shop:registry", "--json"]
    env = environment(
        pg_url,
        SLOTWISE_HEARTBEAT_INTERVAL="300ms",
        SLOTWISE_MISSED_HEARTBEATS_LIMIT="3",
        SLOTWISE_TICK_SECRET=SECRET,
    )
    end = time.monotonic() + PATIENCE
    while "end one 2" not in shop.lines() and time.monotonic() < end:
        subprocess.run(
            [program("python"), *command], cwd=shop.directory, env=env, check=True
        )
    assert shop.lines() == ["start one 1", "start one 2", "end one 2"]


def test_a_database_that_is_away(tmp_path: Path) -> None:
    """503 in one line, and no password in it."""
    app = TickWSGI(
        JobRegistry(
            tasks=[quick],
            database_url="postgresql://me:geheim@127.0.0.1:1/none",
            heartbeat_interval="200ms",
        ),
        secret=SECRET,
        budget="1s",
    )
    told: list[tuple[str, list[tuple[str, str]]]] = []
    given = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/tick",
        "HTTP_AUTHORIZATION": f"Bearer {SECRET}",
    }
    body = b"".join(app(given, lambda status, headers: told.append((status, headers))))  # type: ignore[arg-type,return-value]
    assert told[0][0] == "503 Service Unavailable"
    assert "geheim" not in body.decode()
    assert "the tick could not start within 1s" in json.loads(body)["error"]


@pytest.mark.parametrize("kind", [TickASGI, TickWSGI])
def test_what_is_refused(
    kind: type[TickASGI] | type[TickWSGI], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route that anybody could use, and a budget in which nothing could be taken over."""
    monkeypatch.delenv("SLOTWISE_TICK_SECRET", raising=False)
    registry = JobRegistry(tasks=[quick], database_url="sqlite://")
    with pytest.raises(ConfigurationError, match="anybody could start ticks"):
        kind(registry)
    with pytest.raises(ConfigurationError, match="at least 3 heartbeat intervals"):
        kind(registry, secret=SECRET, budget="10s")
    with pytest.raises(ConfigurationError, match="path"):
        kind(registry, secret=SECRET, path="tick")
    with pytest.raises(ConfigurationError, match="is no application"):
        kind(registry, 7, secret=SECRET)  # type: ignore[arg-type]
