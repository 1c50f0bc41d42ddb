"""A registry in a server's process: who starts it, who stops it, and forks."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from slotwise import JobContext, JobRegistry, SlotwiseError, task
from slotwise.contrib.asgi import slotwise_lifespan
from slotwise.contrib.fastapi import health_router
from slotwise.contrib.hosting import Host, unhealthy
from slotwise.contrib.wsgi import SlotwiseWSGI

PATIENCE = 30


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
    refused = r"the registry is running already in this process; stop it first, or pass worker=False"
    with pytest.raises(SlotwiseError, match=refused), TestClient(FastAPI(lifespan=slotwise_lifespan(registry))):
        pass
    with TestClient(FastAPI(lifespan=slotwise_lifespan(registry, worker=False))):
        pass
    assert registry.worker is worker
    assert registry.inspect.health().live_workers == 1


def test_two_lifespans_of_one_registry(registry: JobRegistry) -> None:
    """The second is refused, and the first goes on."""
    first, second = (FastAPI(lifespan=slotwise_lifespan(registry, start_wait="60s")) for _ in range(2))
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
        "the worker cannot start: the registry is running already in this process; stop it first, or pass worker=False"
    ]
    assert "running already" in str(unhealthy(wsgi.host))
    assert wsgi.host.stop() == 0
    assert registry.worker is not None


def test_a_stop_while_another_caller_starts_the_registry(registry: JobRegistry) -> None:
    """Race: a caller starts the registry after the host's check; the host's stop leaves that worker alone."""
    gate = threading.Event()

    class Late(JobRegistry):
        def start(self, **options: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                assert gate.wait(PATIENCE)
            super().start(**options)

    late = Late(tasks=[work], database_url=registry.settings.database_url)
    host = Host(late, start_wait="1ms")
    host.start()
    late.start()
    stopping = threading.Thread(target=host.stop)
    stopping.start()
    stopping.join(0.2)
    assert late.worker is not None
    gate.set()
    stopping.join(PATIENCE)
    assert late.worker is not None
    late.stop()


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


def test_a_start_before_the_fork_is_refused_in_the_child(registry: JobRegistry) -> None:
    """Threads stay in the parent; the line names both processes and the hook."""
    host = Host(registry, start_wait="60s")
    host.start()
    child, lines = in_child(lambda: host.client, host.start, lambda: host.state, host.stop)
    assert lines == [
        f"the worker was started in process {os.getpid()} before the server forked process {child}, which has none; "
        "start it in gunicorn's post_worker_init hook, or without --preload"
    ] * 3 + ["not refused: 0"]  # fmt: skip
    assert host.state == "running"
    host.stop()


def test_a_registrys_start_before_the_fork_is_refused_in_the_child(registry: JobRegistry) -> None:
    """The same for ``registry.start()``, with a lifespan in the child, too. The child's client works."""
    registry.start()
    host = Host(registry)
    child, lines = in_child(
        registry.start, host.start, lambda: registry.worker, registry.stop, registry.start,
        lambda: registry.client.schedule(work).status,
    )  # fmt: skip
    refusal = (
        f"the worker was started in process {os.getpid()} before process {child} was forked, which has none; start it "
        "after the fork, e.g. in gunicorn's post_worker_init hook, or without --preload"
    )
    assert lines == [refusal] * 2 + ["not refused: None", "not refused: 0", refusal, "not refused: scheduled"]
    assert registry.worker is not None


def test_a_fork_after_the_stop(registry: JobRegistry) -> None:
    """A worker that was stopped before the fork does not count."""
    registry.start()
    registry.stop()
    assert in_child(registry.start, registry.stop)[1] == ["not refused: None", "not refused: 0"]


@pytest.mark.parametrize("wrong", [None, 7, JobRegistry, lambda: 7])
def test_what_is_no_registry_is_refused(wrong: Any) -> None:
    """A registry, or a function that makes one."""
    with pytest.raises(SlotwiseError, match=r"is no registry; pass a JobRegistry|it must return a JobRegistry"):
        Host(wrong).start()


def test_a_stop_before_the_start_has_reached_the_registry(registry: JobRegistry) -> None:
    """Race: the starting thread comes to the registry only after the stop; no worker is left behind."""
    gate = threading.Event()

    class Late(JobRegistry):
        def start(self, **options: Any) -> None:
            assert gate.wait(PATIENCE)
            super().start(**options)

    late = Late(tasks=[work], database_url=registry.settings.database_url)
    host = Host(late, start_wait="1ms")
    host.start()
    stopping = threading.Thread(target=host.stop)
    stopping.start()
    stopping.join(0.2)
    gate.set()
    stopping.join(PATIENCE)
    assert late.worker is None
    assert not [thread for thread in threading.enumerate() if thread.name == "slotwise-start"]
