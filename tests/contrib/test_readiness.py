"""The readiness of a web server's process: one look at the database for all who ask."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from tests.kit.patience import PATIENCE

from slotwise import JobContext, JobRegistry, task
from slotwise.contrib import fastapi as integration
from slotwise.contrib import readiness
from slotwise.contrib.fastapi import health_router, slotwise_lifespan
from slotwise.contrib.readiness import Readiness
from slotwise.spi import Host

REFUSED = (
    "the database 'sales' at host db7.internal refused the login of role 'r_worker'"
)


class Looked(Host):
    """A host whose database answers when the test says so."""

    def __init__(self, registry: JobRegistry) -> None:
        super().__init__(registry, worker=False)
        self.answers = threading.Event()
        self.looks = 0
        self.reason: str | None = None

    def problem(self) -> str | None:
        self.looks += 1
        assert self.answers.wait(PATIENCE)
        return self.reason


@pytest.fixture
def host(pg_url: str) -> Any:
    @task(name="mail")
    def mail(ctx: JobContext) -> None: ...

    host = Looked(JobRegistry(tasks=[mail], database_url=pg_url))
    yield host
    host.answers.set()
    host.registry.database.close()


def application(host: Host, monkeypatch: pytest.MonkeyPatch, **named: bool) -> FastAPI:
    app = FastAPI(lifespan=slotwise_lifespan(host.registry, worker=False))
    app.include_router(health_router(**named))
    monkeypatch.setattr(integration, "host_of", lambda connection: host)

    @app.get("/hello")
    def hello() -> str:
        return "hello"

    return app


def test_all_who_ask_share_one_look(host: Looked) -> None:
    ready = Readiness(host)
    first = ready.ask()
    assert all(ready.ask() is first for _ in range(100))
    host.answers.set()
    assert first.result(30) is None
    assert ready.ask() is first
    assert host.looks == 1


def test_an_answer_is_kept_for_a_second(
    host: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.answers.set()
    ready = Readiness(host)
    assert ready.ask().result(30) is None
    host.reason = REFUSED
    assert ready.ask().result(30) is None
    monkeypatch.setattr(readiness, "KEPT", 0.0)
    assert ready.ask().result(30) == REFUSED


def test_a_look_that_does_not_end_holds_up_no_other_route(
    host: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 clients wait for a frozen database; the application's own routes answer meanwhile."""
    monkeypatch.setattr(integration, "LIMIT", PATIENCE)
    monkeypatch.setattr(readiness, "KEPT", PATIENCE)
    host.reason = REFUSED
    with (
        TestClient(application(host, monkeypatch)) as http,
        ThreadPoolExecutor(150) as clients,
    ):
        waiting = [clients.submit(http.get, "/health/ready") for _ in range(150)]
        while not host.looks:
            time.sleep(0.01)
        assert http.get("/hello").json() == "hello"
        assert not any(one.done() for one in waiting)
        host.answers.set()
        answers = {one.result(PATIENCE).status_code for one in waiting}
    assert answers == {503}
    assert host.looks == 1


def test_nobody_waits_longer_than_the_limit(
    host: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integration, "LIMIT", 0.1)
    with TestClient(application(host, monkeypatch, details=True)) as http:
        answers = [http.get("/health/ready") for _ in range(2)]
    told = "the database has not answered for 0.1 s"
    assert [(one.status_code, one.json()["reason"]) for one in answers] == [
        (503, told)
    ] * 2
    assert host.looks == 1


@pytest.mark.parametrize("details", [False, True])
def test_no_address_is_shown_unless_asked_for(
    host: Looked,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    details: bool,
) -> None:
    caplog.set_level(logging.WARNING, "slotwise.health")
    host.reason = REFUSED
    host.answers.set()
    with TestClient(application(host, monkeypatch, details=details)) as http:
        answer = http.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["reason"] == (REFUSED if details else "the log says why")
    assert f"not ready: {REFUSED}" in caplog.text
