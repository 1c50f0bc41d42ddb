"""A registry in a server's process: who starts it, who stops it, and forks."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from tests.kit.patience import PATIENCE

from slotwise import ConfigurationError, JobContext, JobRegistry, SlotwiseError, task
from slotwise.contrib.asgi import SlotwiseASGI, slotwise_lifespan
from slotwise.contrib.fastapi import health_router, slotwise_client
from slotwise.contrib.flask import Slotwise
from slotwise.contrib.wsgi import SlotwiseWSGI
from slotwise.spi import Host, Worker


@task(name="work")
def work(ctx: JobContext) -> None: ...


@pytest.fixture
def registry(pg_url: str) -> Iterator[JobRegistry]:
    registry = JobRegistry(tasks=[work], database_url=pg_url, poll_interval="1s")
    yield registry
    registry.stop()


def test_a_refused_lifespan_leaves_the_running_worker(registry: JobRegistry) -> None:
    """The worker belongs to the caller that has started it; the line says what to do."""
    registry.start()
    worker = registry.worker
    refused = (
        r"the registry is running already in this process; stop it first, or pass "
        r"worker=False"
    )
    with (
        pytest.raises(SlotwiseError, match=refused),
        TestClient(FastAPI(lifespan=slotwise_lifespan(registry))),
    ):
        pass
    with TestClient(FastAPI(lifespan=slotwise_lifespan(registry, worker=False))):
        pass
    assert registry.worker is worker
    assert registry.inspect.health().live_workers == 1


def test_the_log_of_a_start_and_a_stop(
    registry: JobRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Without LogListener, a server's log at INFO has no line of slotwise, nor of its pools."""
    caplog.set_level(logging.INFO)
    with TestClient(FastAPI(lifespan=slotwise_lifespan(registry, start_wait="60s"))):
        registry.client.schedule(work)
    assert [
        record.name
        for record in caplog.records
        if record.name.startswith(("slotwise", "sqlalchemy"))
    ] == []


def test_two_lifespans_of_one_registry(registry: JobRegistry) -> None:
    """The second is refused, and the first goes on."""
    first, second = (
        FastAPI(lifespan=slotwise_lifespan(registry, start_wait="60s"))
        for _ in range(2)
    )
    first.include_router(health_router())
    with TestClient(first) as http:
        with pytest.raises(SlotwiseError, match="running already"), TestClient(second):
            pass
        assert http.get("/health/ready").json() == {"state": "running", "reason": None}
    assert registry.worker is None


def test_one_lifespan_that_is_entered_twice(registry: JobRegistry) -> None:
    """The worker stays until the block that has started it is left."""
    app = FastAPI(lifespan=slotwise_lifespan(registry, start_wait="60s"))
    with TestClient(app):
        worker = registry.worker
        with TestClient(app):
            assert registry.worker is worker
        assert registry.worker is worker
    assert registry.worker is None


def test_a_wsgi_application_whose_registry_runs_already(
    registry: JobRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once; requests are served, and the worker goes on."""
    registry.start()
    caplog.set_level(logging.ERROR, "slotwise.host")
    wsgi = SlotwiseWSGI(lambda environ, start: [b""], registry)
    for _ in range(2):
        assert wsgi({}, lambda status, headers: None) == [b""]
    assert [record.getMessage() for record in caplog.records] == [
        "the worker cannot start: the registry is running already in this "
        "process; stop it first, or pass worker=False"
    ]
    assert "running already" in str(wsgi.host.problem())
    assert wsgi.host.stop() == 0
    assert registry.worker is not None


class Late(JobRegistry):
    """Its workers start when the gate opens."""

    gate: threading.Event

    def make_worker(self, **options: Any) -> Worker:
        worker = super().make_worker(**options)
        start = worker.start

        def late() -> None:
            assert self.gate.wait(PATIENCE)
            start()

        worker.start = late  # type: ignore[method-assign]
        return worker


@pytest.fixture
def late(registry: JobRegistry) -> Late:
    made = Late(tasks=[work], database_url=registry.settings.database_url)
    made.gate = threading.Event()
    return made


def test_another_caller_while_the_worker_starts(late: Late) -> None:
    """The host's worker is the registry's from its start on, so a second start is refused."""
    host = Host(late, start_wait="1ms")
    host.start()
    with pytest.raises(ConfigurationError, match="running already"):
        late.start()
    late.gate.set()
    assert host.stop() == 0
    assert late.worker is None


def test_a_host_leaves_the_worker_of_another_caller_alone(
    registry: JobRegistry,
) -> None:
    """Its stop ends only what it has started."""
    host = Host(registry)
    registry.start()
    with pytest.raises(ConfigurationError, match="running already"):
        host.start()
    assert host.stop() == 0
    assert registry.worker is not None
    registry.stop()


def in_child(*uses: Callable[[], object]) -> tuple[int, list[str]]:
    """Do these in a forked process; return its pid and the refusals."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for use in uses:
                try:
                    os.write(writer, f"not refused: {use()}\n".encode())
                except SlotwiseError as error:
                    os.write(writer, f"{error}\n".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        return child, said.read().splitlines()


def test_a_start_before_the_fork_is_refused_in_the_child(
    registry: JobRegistry,
) -> None:
    """Threads stay in the parent; the line names both processes and the hook."""
    host = Host(registry, start_wait="60s")
    host.start()
    child, lines = in_child(
        lambda: host.client, host.start, lambda: host.state, host.stop
    )
    assert lines == [
        f"the worker was started in process {os.getpid()} before the server forked "
        f"process {child}, which has none; "
        "start it in gunicorn's post_worker_init hook, or without --preload"
    ] * 3 + ["not refused: 0"]
    assert host.state == "running"
    host.stop()


def test_a_registrys_start_before_the_fork_is_refused_in_the_child(
    registry: JobRegistry,
) -> None:
    """The same for ``registry.start()``, with a lifespan in the child, too. The child's client
    works.
    """
    registry.start()
    host = Host(registry)
    child, lines = in_child(
        registry.start,
        host.start,
        lambda: registry.worker,
        registry.stop,
        registry.start,
        lambda: registry.client.schedule(work).status,
    )
    refusal = (
        f"the worker was started in process {os.getpid()} before process {child} "
        "was forked, which has none; start it "
        "after the fork, e.g. in gunicorn's post_worker_init hook, or without --preload"
    )
    assert lines == [refusal] * 2 + [
        "not refused: None",
        "not refused: 0",
        refusal,
        "not refused: scheduled",
    ]
    assert registry.worker is not None


def test_a_fork_after_the_stop(registry: JobRegistry) -> None:
    """A worker that was stopped before the fork does not count."""
    registry.start()
    registry.stop()
    assert in_child(registry.start, registry.stop)[1] == [
        "not refused: None",
        "not refused: 0",
    ]


def raising() -> JobRegistry:
    raise OSError("no\nroute")


async def generator(app: object) -> AsyncIterator[None]:
    yield


SOME = JobRegistry(tasks=[work], database_url="sqlite://")
OTHERS_APP = Flask("others")
Slotwise(SOME, OTHERS_APP)
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no registry": (
        lambda: slotwise_lifespan(7),
        "slotwise_lifespan: 7 is no registry; pass a JobRegistry, or a fun",
    ),  # type: ignore[arg-type]
    "none": (
        lambda: Host(None),
        "Host: None is no registry; pass a JobRegistry, or a function without arguments",
    ),  # type: ignore[arg-type]
    "a class": (
        lambda: SlotwiseWSGI(print, JobRegistry),
        "SlotwiseWSGI: <class .* is no registry; pass a JobRegistry",
    ),
    "an application": (
        lambda: slotwise_lifespan(FastAPI()),  # type: ignore[arg-type]
        r"slotwise_lifespan: <fastapi.* is no registry; pass a JobRegistry, or a "
        r"function without arguments",
    ),
    "a function of something": (
        lambda: Host(lambda a: SOME),
        "<function .* is no registry; .* without arguments",
    ),  # type: ignore[arg-type,misc]
    "a function that fails": (
        lambda: Host(raising).start(),
        "raising.* raised OSError: no route; it must return a Jo",
    ),
    "a function of nothing": (
        lambda: Host(lambda: 7).start(),
        "returned 7; it must return a JobRegistry",
    ),  # type: ignore[arg-type,return-value]
    "start_wait": (
        lambda: slotwise_lifespan(SOME, start_wait="x"),
        "slotwise_lifespan: start_wait: 'x' is not a dura",
    ),
    "start_wait None": (
        lambda: Host(SOME, start_wait=None),
        "Host: start_wait: None has no unit; write a timedelta",
    ),  # type: ignore[arg-type]
    "start_wait below zero": (
        lambda: SlotwiseASGI(print, SOME, start_wait="-5s"),
        "ASGI: start_wait: '-5s': a dur",
    ),  # type: ignore[arg-type]
    "worker": (
        lambda: Slotwise(SOME, worker="no"),
        "Slotwise: worker is 'no'; write True or False",
    ),  # type: ignore[arg-type]
    "lifespan": (
        lambda: slotwise_lifespan(SOME, lifespan=7),
        "lifespan is 7; pass the function, without calling it",
    ),  # type: ignore[arg-type]
    "a generator": (
        lambda: slotwise_lifespan(SOME, lifespan=generator),
        "lifespan generator is not a context mana",
    ),  # type: ignore[arg-type]
    "prefix": (
        lambda: health_router(7),
        r"health_router\(7\): the prefix must be a path, e\.g\. '/health'",
    ),  # type: ignore[arg-type]
    "a prefix without a slash": (
        lambda: health_router("x"),
        r"health_router\('x'\): the prefix must be a path, e\.g",
    ),
    "a prefix with a slash": (
        lambda: health_router("/x/"),
        r"health_router\('/x/'\): the prefix must be a path, e\.g",
    ),
    "no application": (
        lambda: SlotwiseASGI(7, SOME),
        r"SlotwiseASGI: 7 is no application; write SlotwiseASGI\(applica",
    ),  # type: ignore[arg-type]
    "swapped": (
        lambda: SlotwiseASGI(SOME, print),
        "SlotwiseASGI: .*JobRegistry.* is no application; write SlotwiseAS",
    ),  # type: ignore[arg-type]
    "no WSGI application": (
        lambda: SlotwiseWSGI(None, SOME),
        "SlotwiseWSGI: None is no application; write SlotwiseWS",
    ),  # type: ignore[arg-type]
    "no Flask": (
        lambda: Slotwise(SOME).init_app(None),
        r"init_app\(None\): pass the Flask application",
    ),  # type: ignore[arg-type]
    "swapped for Flask": (
        lambda: Slotwise(Flask("x"), SOME),
        "Slotwise: <Flask 'x'> is no registry; pass a JobRegis",
    ),  # type: ignore[arg-type]
    "another extension": (
        lambda: Slotwise(SOME, OTHERS_APP),
        "the application others has another Slotwise; create on",
    ),
    "no request": (
        lambda: slotwise_client(7),
        r"this application runs without slotwise; pass lifespan=slotwise_lif",
    ),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("use", "line"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_one_line(use: Callable[[], object], line: str) -> None:
    """It has the value, the place and the cure; nothing is raised raw."""
    with pytest.raises(SlotwiseError, match=line) as raised:
        use()
    assert "\n" not in str(raised.value)


def test_the_same_extension_twice() -> None:
    """A second init_app of one application changes nothing."""
    app = Flask("twice")
    slotwise = Slotwise(SOME, app)
    slotwise.init_app(app)
    assert len(app.before_request_funcs[None]) == 1


def test_a_stop_while_the_worker_starts(late: Late) -> None:
    """Race: the starting thread begins only after the stop; no worker is left behind."""
    host = Host(late, start_wait="1ms")
    host.start()
    stopping = threading.Thread(target=host.stop)
    stopping.start()
    stopping.join(0.2)
    late.gate.set()
    stopping.join(PATIENCE)
    assert late.worker is None
    until = time.monotonic() + PATIENCE
    while "slotwise-start" in [one.name for one in threading.enumerate()]:
        assert time.monotonic() < until
        time.sleep(0.01)
