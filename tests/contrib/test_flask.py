"""Flask and plain WSGI: the extension, its commands, and the worker of each process."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from flask import Flask
from tests.kit.patience import PATIENCE

from slotwise import Every, JobContext, JobRegistry, SlotwiseError, job, task
from slotwise.contrib.flask import Slotwise, slotwise_of
from slotwise.contrib.wsgi import SlotwiseWSGI

ran = threading.Event()


@task(name="work")
def work(ctx: JobContext) -> None:
    ran.set()


@job(name="tick", schedule=Every("1h"))
def tick(ctx: JobContext) -> None: ...


@pytest.fixture
def registry(pg_url: str) -> Iterator[JobRegistry]:
    ran.clear()
    registry = JobRegistry(
        jobs=[tick], tasks=[work], database_url=pg_url, poll_interval="1s"
    )
    yield registry
    registry.stop()


def application(slotwise: Slotwise) -> Flask:
    app = Flask("shop")
    slotwise.init_app(app)

    @app.post("/jobs")
    def schedule() -> str:
        return slotwise.client.schedule(work).status

    return app


def test_the_client_alone(registry: JobRegistry) -> None:
    """By default a request schedules, and no worker runs in the server's process."""
    app = application(Slotwise(registry))
    assert app.test_client().post("/jobs").text == "scheduled"
    assert registry.worker is None
    assert [found.task for found in registry.inspect.tasks()] == ["work"]


@pytest.mark.parametrize("is_made", [True, False], ids=["function", "registry"])
def test_settings_of_the_application(pg_url: str, is_made: bool) -> None:
    """They count before the registry's own; a wrong one ends the start."""
    made = JobRegistry(tasks=[work], database_url="sqlite://", threads=3)
    app = Flask("shop")
    app.config.from_mapping(
        SLOTWISE_DATABASE_URL=pg_url, SLOTWISE_POLL_INTERVAL="7s", SECRET_KEY="x"
    )
    slotwise = Slotwise((lambda: made) if is_made else made, app)
    settings = slotwise.registry.settings
    assert settings.database_url == pg_url
    assert settings.poll_interval == timedelta(seconds=7)
    assert settings.threads == 3
    assert slotwise.client.schedule(work).status == "scheduled"
    made.stop()
    wrong = Flask("wrong")
    wrong.config["SLOTWISE_POLL_INTERVALL"] = "7s"
    with pytest.raises(SlotwiseError, match="poll_interval"):
        assert Slotwise((lambda: made) if is_made else made, wrong).registry


def test_a_worker_starts_with_the_first_request(registry: JobRegistry) -> None:
    """Not with the application, which a server may build before its fork."""
    slotwise = Slotwise(lambda: registry, worker=True)
    app = application(slotwise)
    assert registry.worker is None
    assert app.test_client().post("/jobs").text == "scheduled"
    assert ran.wait(PATIENCE)
    slotwise.start()  # a second time changes nothing
    assert slotwise.host.stop() == 0
    assert registry.worker is None


def test_an_application_whose_worker_cannot_start_serves(
    pg_empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why; requests that need no jobs are answered."""
    registry = JobRegistry(jobs=[tick], database_url=pg_empty_url)
    slotwise = Slotwise(registry, app := Flask("shop"), worker=True, start_wait="60s")
    app.get("/")(lambda: "served")
    caplog.set_level(logging.ERROR, "slotwise.host")
    assert [app.test_client().get("/").text for _ in range(2)] == ["served"] * 2
    assert [
        record.getMessage().endswith("run: slotwise db upgrade")
        for record in caplog.records
    ] == [True]
    assert slotwise.host.state == "failed"
    slotwise.host.stop()


def test_the_command_group_is_the_command_line(
    registry: JobRegistry,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """``flask slotwise jobs`` needs no --app; options of slotwise are slotwise's, and so is the
    exit status.
    """
    app = application(Slotwise(registry))
    for name in ("SLOTWISE_DATABASE_URL", "SLOTWISE_TABLE_PREFIX", "FLASK_APP"):
        monkeypatch.setenv(name, "")  # restored afterwards
    monkeypatch.delenv("FLASK_APP")
    runner = app.test_cli_runner()
    assert runner.invoke(args=["slotwise", "db", "check", "--json"]).exit_code == 0
    result = runner.invoke(args=["slotwise", "run", "tick", "--json"])
    assert (result.exit_code, json.loads(result.output)["outcome"]) == (0, "succeeded")
    assert (
        runner.invoke(args=["slotwise", "health", "--json"]).exit_code == 1
    )  # no worker is alive
    assert runner.invoke(args=["slotwise", "no-such-command"]).exit_code == 2


def test_an_application_without_the_extension() -> None:
    """The line says what to add."""
    with pytest.raises(
        SlotwiseError, match=r"shop has no slotwise; add Slotwise\(registry, app\)"
    ):
        slotwise_of(Flask("shop"))


def test_plain_wsgi(registry: JobRegistry) -> None:
    """The middleware starts a worker with the first request, and the request finds its Host."""

    def plain(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["slotwise"].client.schedule(work).status.encode()]

    wsgi = SlotwiseWSGI(plain, registry)
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    assert wsgi(environ, lambda status, headers: None) == [b"scheduled"]
    assert ran.wait(PATIENCE)
    assert wsgi.host.stop() == 0
