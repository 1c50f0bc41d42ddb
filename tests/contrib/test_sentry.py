"""The page's lines for Sentry, with its SDK, against an endpoint on this host."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.docs.markdown import ROOT, blocks
from tests.kit.patience import PATIENCE

#: A job that fails twice, and then no more is tried.
APPLICATION = """
from slotwise import Every, JobCancelled, JobRegistry, Retry, job
from slotwise.testing import ManualWorker

@job(name="report", schedule=Every("1h"), retry=Retry.exponential(max_attempts=2, initial="1s"))
def report(ctx):
    raise OSError("no space left")

@job(name="asked", schedule=Every("1h"))
def asked(ctx):
    if interceptors:
        raise JobCancelled("as ctx.check() does in a drain")

interceptors = [globals()["to_sentry"]] if "to_sentry" in globals() else []
with ManualWorker(JobRegistry(jobs=[report, asked], interceptors=interceptors)) as worker:
    worker.tick("1h")
    worker.run_due()
    worker.tick("5s")
    worker.run_due()
sentry_sdk.flush(30)
"""


class Endpoint(ThreadingHTTPServer):
    """Takes what the SDK sends, as Sentry does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.events: list[dict[str, Any]] = []

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self.server_port}/1"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        """An envelope: a head, and then a head and a body for each item."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        text = (
            gzip.decompress(body)
            if self.headers.get("Content-Encoding") == "gzip"
            else body
        )
        lines = text.split(b"\n")[1:]
        for head, item in zip(lines[::2], lines[1::2], strict=False):
            if json.loads(head)["type"] == "event":
                self.server.events.append(json.loads(item))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """No-op."""


@pytest.fixture
def sentry() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.serve_forever)
    thread.start()
    yield endpoint
    endpoint.shutdown()
    thread.join()
    endpoint.server_close()


@pytest.mark.parametrize(
    ("way", "attempts"),
    [
        pytest.param(0, [2], id="logging", marks=pytest.mark.extended),
        pytest.param(1, [1, 2], id="interceptor"),
    ],
)
def test_failures_reach_sentry(
    sentry: Endpoint, tmp_path: Path, way: int, attempts: list[int]
) -> None:
    """By logging the slot that failed for good, once; by the interceptor each attempt that did;
    with traceback.
    """
    lines = [
        one.code
        for one in blocks(ROOT / "docs" / "monitoring.md", "python")
        if "import sentry_sdk" in one.code
    ]
    (tmp_path / "jobs.py").write_text(lines[way] + APPLICATION)
    environment = {**os.environ, "SENTRY_DSN": sentry.dsn}
    ran = subprocess.run(
        [sys.executable, "jobs.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    seen = []
    for event in sentry.events:
        (raised,) = event["exception"]["values"]
        assert (raised["type"], raised["value"]) == ("OSError", "no space left")
        frame = raised["stacktrace"]["frames"][-1]
        assert (frame["function"], frame["filename"]) == ("report", "jobs.py")
        facts = event["contexts"]["slotwise"] if way else event["extra"]
        assert (event["tags"] if way else facts)["job"] == "report"
        seen.append(facts["attempt"])
    assert seen == attempts
