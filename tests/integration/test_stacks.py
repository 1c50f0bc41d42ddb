"""Where a handler is: asked through the database, answered by its worker."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from tests.kit.patience import PATIENCE

from slotwise import JobRegistry, TaskContext, task
from slotwise.cli.entry import status
from slotwise.cli.shared import exits

ENTERED = threading.Event()
RELEASED = threading.Event()


def wait_for_the_partner() -> None:
    secret = "hunter2"
    ENTERED.set()
    RELEASED.wait(60 if secret else 0)


@task(name="send")
def send(ctx: TaskContext[None]) -> None:
    wait_for_the_partner()


async def sleep_until_the_partner_answers() -> None:
    ENTERED.set()
    while not RELEASED.is_set():
        await asyncio.sleep(0.05)


@task(name="fetch")
async def fetch(ctx: TaskContext[None]) -> None:
    await sleep_until_the_partner_answers()


@task(name="block")
async def block(ctx: TaskContext[None]) -> None:
    wait_for_the_partner()


@pytest.fixture
def registry(url: str) -> Iterator[JobRegistry]:
    ENTERED.clear()
    RELEASED.clear()
    made = JobRegistry(
        tasks=[send, fetch, block],
        database_url=url,
        heartbeat_interval="500ms",
        poll_interval="100ms",
        threads=2,
    )
    made.start(timeout="30s")
    try:
        yield made
    finally:
        RELEASED.set()
        made.stop()


@pytest.fixture(params=["pg_url", "sqlite_url"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def run(registry: JobRegistry, name: str) -> None:
    registry.client.schedule(name, id="1")
    assert ENTERED.wait(30)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("send", "wait_for_the_partner"),
        ("fetch", "sleep_until_the_partner_answers"),
        ("block", "wait_for_the_partner"),
    ],
)
def test_the_lines_that_a_handler_is_in(
    registry: JobRegistry, name: str, function: str
) -> None:
    """Of a thread, of a coroutine that waits, and of one that blocks the event loop; from the
    handler on, without values.
    """
    run(registry, name)
    (found,) = registry.operations.stacks(name, timeout="30s")
    assert (found.name, found.id, found.attempt) == (name, "1", 1)
    assert found.stack is not None
    first, *_ = found.stack.strip().splitlines()
    assert first.endswith(f"in {name}")
    assert f"in {function}" in found.stack
    assert "hunter2" not in found.stack.replace('secret = "hunter2"', "")
    assert "runner.py" not in found.stack
    receipts = sa.text(
        "SELECT count(*) FROM scheduled_receipts WHERE receipt LIKE 'stack%'"
    )
    with registry.database.main.connect() as connection:
        assert connection.scalar(receipts) == 0


def test_the_command(
    registry: JobRegistry, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the task, its id, or the worker; what does not run has no stack, an unknown name is
    refused.
    """
    run(registry, "send")
    (worker,) = registry.inspect.workers()
    for words in (["send"], ["send", "--id", "1"], [worker.host], [worker.worker]):
        arguments = ["workers", "stack", *words, "--database-url", url]
        assert status([*arguments, "--timeout", "30s"]) == exits.OK, words
        out = capsys.readouterr().out
        assert out.startswith("send 1, attempt 1, for "), words
        assert "in wait_for_the_partner" in out
    ask = ["--database-url", url, "workers", "stack"]
    assert status([*ask, "send", "--json"]) == exits.OK
    (line,) = json.loads(capsys.readouterr().out)
    assert "wait_for_the_partner" in line["stack"]
    assert status([*ask, "fetch"]) == exits.FAILED
    assert "nothing of fetch runs now" in capsys.readouterr().err
    assert status([*ask, "snd"]) == exits.FAILED
    assert "no worker, job or task 'snd'" in capsys.readouterr().err
    assert status([*ask, "send", "--timeout", "0s"]) == exits.USAGE
    assert "leaves no time for an answer" in capsys.readouterr().err


def test_a_frozen_worker_is_named(
    registry: JobRegistry,
    url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After its timeout, with what to do; the question does not stay behind."""
    run(registry, "send")
    worker = registry.worker
    assert worker is not None
    monkeypatch.setattr(worker.heartbeat, "_answer", lambda: None)
    arguments = [
        "--database-url",
        url,
        "workers",
        "stack",
        "send",
        "--timeout",
        "300ms",
    ]
    assert status(arguments) == exits.FAILED
    told = capsys.readouterr()
    assert told.out.startswith("send 1, attempt 1, for ")
    assert "no answer within 300ms: this worker is frozen" in told.err
    receipts = sa.text(
        "SELECT count(*) FROM scheduled_receipts WHERE receipt LIKE 'stack%'"
    )
    with registry.database.main.connect() as connection:
        assert connection.scalar(receipts) == 0


def test_a_heartbeat_asks_for_questions_only_when_told(
    registry: JobRegistry, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a notification; where none arrives, each time."""
    run(registry, "send")
    worker = registry.worker
    assert worker is not None
    worker.heartbeat.run_once()
    looks = list[None]()
    monkeypatch.setattr(worker.heartbeat, "_answer", lambda: looks.append(None))
    worker.heartbeat.stop()
    worker.heartbeat.join()
    looks.clear()
    for _ in range(3):
        worker.heartbeat.run_once()
    assert len(looks) == (0 if worker.wake_up.is_listening else 3)
    worker.heartbeat.heed()
    worker.heartbeat.run_once()
    assert len(looks) == (1 if worker.wake_up.is_listening else 4)


def test_an_answer_that_cannot_be_written_stops_nothing(
    registry: JobRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler and the heartbeats go on; one line is logged, with the count."""
    run(registry, "send")
    with registry.database.main.begin() as connection:
        connection.exec_driver_sql(
            "ALTER TABLE scheduled_receipts RENAME TO elsewhere"
        )
    worker = registry.worker
    assert worker is not None

    def lines() -> list[str]:
        told = (one.getMessage() for one in caplog.records)
        return [one for one in told if "stacks are not answered (1)" in one]

    deadline = time.monotonic() + PATIENCE
    while not lines():
        assert time.monotonic() < deadline
        worker.heartbeat.heed()
        time.sleep(0.05)
    for _ in range(3):
        worker.heartbeat.heed()
        time.sleep(0.2)
    assert len(lines()) == 1
    assert registry.inspect.workers()[0].live
