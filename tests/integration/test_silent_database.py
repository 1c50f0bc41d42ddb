"""The database answers nothing: it is frozen, or something in between holds everything. Signals
work all the same.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from tests.connections import Open
from tests.faults.proxy import Proxy
from tests.integration.shell import Process, Shell
from tests.kit.connections import is_transient

from slotwise.cli.shared import exits
from slotwise.spi import describe_error, elapsed

JOBS = """
import os, pathlib, time
from slotwise import Every, JobRegistry, job

@job(name="polite", schedule=Every("1s"))
def polite(ctx):
    ctx.wait("1m")
    ctx.check()

@job(name="deaf", schedule=Every("1s"))
def deaf(ctx):
    time.sleep(60)

@job(name="rare", schedule=Every("1d"))
def rare(ctx):
    pass

registry = JobRegistry(jobs=[polite, deaf, rare], only=os.environ["ONLY"])
"""

#: Far longer than a test: only what does not wait for the database ends in time.
SLOW = {"SLOTWISE_HEARTBEAT_INTERVAL": "60s", "SLOTWISE_POLL_INTERVAL": "300ms"}
#: How long, in seconds, a worker may take to end after its grace.
BOUND = 35.0


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    with Proxy(pg_url) as proxy:
        yield proxy


@pytest.fixture
def shell(tmp_path: Path, proxy: Proxy) -> Iterator[Shell]:
    shell = Shell(tmp_path, proxy.url)
    shell.write("app.py", JOBS)
    shell.environment |= {"SLOTWISE_APP": "app", **SLOW}
    yield shell
    shell.close()


def ended(worker: Process, since: float) -> int:
    status = worker.end()
    assert elapsed() - since < BOUND, f"it took {elapsed() - since:.0f} s"
    return status


def test_a_reply_that_does_not_come_ends_as_an_outage(
    database: Open, proxy: Proxy
) -> None:
    """A statement has a deadline on the client's side; its connection is closed, and the next one
    connects anew.
    """
    opened = database(proxy.url, heartbeat_interval="300ms")
    with opened.main.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        proxy.stall()
        with pytest.raises(OperationalError) as caught:
            connection.exec_driver_sql("SELECT 2")
    assert is_transient(caught.value)
    assert "the server has not answered" in describe_error(caught.value)
    proxy.heal()
    with opened.main.connect() as connection:
        assert connection.exec_driver_sql("SELECT 3").scalar_one() == 3


def test_a_lower_limit_ends_waits_that_have_begun(
    database: Open, proxy: Proxy
) -> None:
    """What a stop does: the usual limit is far away."""
    opened = database(proxy.url, heartbeat_interval="60s")
    with opened.main.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        proxy.stall()
        opened.limit_replies(timedelta(milliseconds=200))
        with pytest.raises(OperationalError, match="has not answered"):
            connection.exec_driver_sql("SELECT 2")
    proxy.heal()
    opened.limit_replies(None)
    with opened.main.connect() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(0.5)")  # the usual limit again


@pytest.mark.extended
def test_an_idle_worker_ends(shell: Shell, proxy: Proxy) -> None:
    """SIGTERM: the drain begins at once, and the process ends though it cannot sign out."""
    worker = shell.worker(ONLY="rare")
    worker.wait_for("poll_begin")
    proxy.stall()
    since = elapsed()
    worker.signal(signal.SIGTERM).wait_for("drain_begin")
    assert elapsed() - since < 5
    ended(worker, since)


@pytest.mark.extended
def test_a_second_signal_cancels(shell: Shell, proxy: Proxy) -> None:
    """However long the grace is; the outcome cannot be written, and the exit status says so."""
    worker = shell.worker(SLOTWISE_SHUTDOWN_GRACE="1h", ONLY="polite")
    worker.wait_for("handler_start", job="polite")
    proxy.stall()
    worker.signal(signal.SIGTERM).wait_for("drain_begin")
    since = elapsed()
    worker.signal_again(signal.SIGTERM)
    worker.wait_for("handler_end", job="polite")
    assert ended(worker, since) == exits.UNFINISHED


@pytest.mark.extended
def test_a_third_signal_ends_at_once(shell: Shell, proxy: Proxy) -> None:
    """Whatever waits for the database."""
    worker = shell.worker(SLOTWISE_SHUTDOWN_GRACE="1h", ONLY="deaf")
    worker.wait_for("handler_start", job="deaf")
    proxy.stall()
    worker.signal(signal.SIGTERM).wait_for("drain_begin")
    worker.signal_again(signal.SIGTERM)
    worker.wait_for("log", message="SIGTERM: cancelling running handlers")
    since = elapsed()
    worker.signal_again(signal.SIGTERM)
    assert worker.end() == exits.UNFINISHED
    assert elapsed() - since < 5


@pytest.mark.extended
@pytest.mark.parametrize(
    "statement", [None, b"scheduled_tasks"], ids=["connect", "plan"]
)
def test_a_worker_that_starts_ends(
    shell: Shell, proxy: Proxy, statement: bytes | None
) -> None:
    """Nothing is claimed yet: one signal is enough."""
    if statement is None:
        proxy.stall()
    else:
        proxy.hold(statement)
    worker = shell.worker(ONLY="rare")
    if statement is None:
        worker.wait_for("database_lost")
    else:
        assert proxy.holding.wait(60)
    since = elapsed()
    worker.signal(signal.SIGTERM)
    assert ended(worker, since) == exits.OK


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="text"),
        pytest.param(["--json"], id="json", marks=pytest.mark.extended),
    ],
)
def test_health_answers(shell: Shell, proxy: Proxy, options: list[str]) -> None:
    """A probe must not hang: it has a timeout, for connecting and for all its queries together."""
    proxy.stall()
    ran = shell.ask("health", "--timeout", "1s", *options)
    assert ran.returncode == exits.DATABASE
    assert "the database has not answered within 1s" in ran.stderr
    assert ("has not answered" in ran.stdout) == bool(options)
