"""A worker with a loop that hangs is not alive; one without its database is. With real
processes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contrib.metrics.ports import JOBS, ask, port_of, wait_for_status
from tests.integration.shell import Process, Shell, wait_until

from slotwise.cli.shared import exits

LOOPS = (
    "heartbeat",
    "lease_watch",
    "settler",
    "reaper",
    "poller",
    "wake_up",
    "pruner",
    "counter",
    "pause_ends",
)


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    made = Shell(tmp_path, pg_url)
    made.environment["SLOTWISE_APP"] = "jobs:registry"
    made.write("jobs.py", JOBS)
    yield made
    made.close()


def test_a_healthy_worker(shell: Shell) -> None:
    """It is alive before it is ready, ready while it runs, and not ready while it drains; the file
    goes with it.

    All its loops are among ``LOOPS``, of which each is made to hang below.
    """
    file = shell.directory / "alive"
    worker = shell.worker(
        "--http",
        "127.0.0.1:0",
        ONLY="slow",
        SLOTWISE_ALIVE_FILE="alive",
        SLOTWISE_STUCK_AFTER="20s",
    )
    port = port_of(worker)
    assert ask(port, "/livez") == (200, "ok\n")
    worker.wait_for("handler_start")
    wait_for_status(port, "/readyz", 200)
    wait_until(lambda: json.loads(file.read_text())["ready"], "a file that says ready")
    assert ask(port, "/nothing")[0] == 404
    text = ask(port, "/metrics")[1]
    assert {
        line.split('"')[1]
        for line in text.splitlines()
        if line.startswith("slotwise_loop_busy")
    } == set(LOOPS)
    worker.signal(signal.SIGTERM)
    worker.wait_for("drain_begin")
    assert ask(port, "/readyz") == (503, "the worker drains\n")
    assert ask(port, "/livez") == (200, "ok\n")
    worker.signal_again(signal.SIGTERM)
    assert worker.end() == exits.OK
    assert not file.exists()


@pytest.mark.parametrize(
    "loop",
    [
        one if one == "heartbeat" else pytest.param(one, marks=pytest.mark.extended)
        for one in LOOPS
    ],
)
def test_a_worker_whose_loop_hangs_is_not_alive(shell: Shell, loop: str) -> None:
    """Each loop by itself: the port says which one, and the file is not written any more."""
    file = shell.directory / "alive"
    worker = shell.worker(
        "--http",
        "127.0.0.1:0",
        HANG=loop,
        SLOTWISE_ALIVE_FILE="alive",
        SLOTWISE_STUCK_AFTER="2s",
    )
    port = port_of(worker)
    assert ask(port, "/livez")[0] == 200
    told = wait_for_status(port, "/livez", 503)
    assert told.startswith(f"the loop {loop} is stuck: its round has lasted for ")
    assert told.count("\n") == 1
    assert ask(port, "/readyz")[0] == 503
    wait_until(
        lambda: any("not alive" in str(event.get("message")) for event in worker.seen),
        "a line in the log",
    )
    written = file.stat().st_mtime_ns
    time.sleep(3)
    assert file.stat().st_mtime_ns == written


@pytest.mark.extended
def test_without_its_database_a_worker_is_alive(shell: Shell) -> None:
    """From the start on: a restart would not help. It is not ready."""
    shell.environment["DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/nothing"
    worker = shell.worker("--http", "127.0.0.1:0", SLOTWISE_STUCK_AFTER="1s")
    port = port_of(worker)
    worker.wait_for("database_lost")
    time.sleep(2)
    assert ask(port, "/livez") == (200, "ok\n")
    assert ask(port, "/readyz")[0] == 503
    assert "slotwise_database_up 0.0" in ask(port, "/metrics")[1]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("STUCK_AFTER", "soon", "a duration"),
        ("METRICS_MAX_NAMES", "0", "'0' is not a whole number of 1 to 100,000"),
        ("ALIVE_FILE", "none/alive", "name a file in a folder that exists"),
    ],
)
def test_a_variable_that_cannot_be_right(
    shell: Shell, name: str, text: str, words: str
) -> None:
    """It is named, with its value and what to write."""
    shell.environment[f"SLOTWISE_{name}"] = text
    told = shell.run("worker")
    assert told.returncode == exits.FAILED
    assert f"error: SLOTWISE_{name}: " in told.stderr
    assert words in told.stderr


def test_a_port_that_is_taken(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = shell.run("worker", "--http", f"127.0.0.1:{taken.getsockname()[1]}")
    assert told.returncode == exits.FAILED
    assert "Address already in use; choose another address" in told.stderr


@pytest.mark.parametrize("text", ["8081", "host", ":99999", "[::1", "::1:80"])
def test_an_address_that_is_none(shell: Shell, text: str) -> None:
    told = shell.ask("worker", "--http", text)
    assert told.returncode == exits.FAILED
    assert f"--http {text!r}: write :8081 for this host alone" in told.stderr


# -- several processes ----------------------------------------------------------------------------


def up(pool: Process, count: int) -> list[int]:
    return [
        int(pool.wait_for("worker_start")["worker"].split(":")[1])
        for _ in range(count)
    ]


@pytest.mark.extended
def test_a_supervisor_is_as_alive_as_its_worst_child(shell: Shell) -> None:
    """A frozen child makes the whole not alive; one that was killed is started again, and all is
    well.
    """
    file = shell.directory / "alive"
    pool = shell.worker(
        "--processes", "2", "--http", "127.0.0.1:0", SLOTWISE_ALIVE_FILE="alive"
    )
    port = port_of(pool)
    first, second = up(pool, 2)
    wait_for_status(port, "/readyz", 200)
    wait_until(file.exists, "the file")
    os.kill(first, signal.SIGSTOP)
    try:
        wait_for_status(port, "/livez", 503, f"process {first}: does not answer\n")
    finally:
        os.kill(first, signal.SIGCONT)
    wait_for_status(port, "/livez", 200)
    os.kill(second, signal.SIGKILL)
    wait_for_status(port, "/readyz", 503, "1 of 2 worker processes are not up")
    wait_for_status(port, "/readyz", 200)
    assert pool.stop() == exits.OK
    assert not file.exists()


@pytest.mark.extended
def test_one_child_whose_loop_hangs(shell: Shell) -> None:
    pool = shell.worker(
        "--processes",
        "2",
        "--http",
        "127.0.0.1:0",
        HANG="poller",
        SLOTWISE_STUCK_AFTER="2s",
    )
    wait_for_status(port_of(pool), "/livez", 503, "the loop poller is stuck")


# -- by the database ------------------------------------------------------------------------------


def test_health_of_one_worker(shell: Shell) -> None:
    """By its name: live while it sends heartbeats, and not when it is frozen for longer than its
    lease.
    """
    assert shell.ask("health", "--worker", "left").returncode == exits.FAILED
    worker = shell.worker(
        SLOTWISE_WORKER_NAME="left", SLOTWISE_MISSED_HEARTBEATS_LIMIT="3"
    )
    worker.wait_for("worker_start")
    told = shell.ask("health", "--worker", "left")
    assert told.returncode == exits.OK
    assert re.fullmatch(r"healthy: worker left: running, [0-4] of 4\n", told.stdout)
    other = shell.ask("health", "--worker", "right", "--json")
    assert (other.returncode, json.loads(other.stdout)["problems"]) == (
        exits.FAILED,
        ["no worker right has signed in"],
    )
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: shell.ask("health", "--worker", "left").returncode == exits.FAILED,
            "an unhealthy worker",
        )
        assert shell.ask("health", "--worker", "left").stderr.startswith(
            "unhealthy: worker left was last seen at 2"
        )
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    shell.environment["SLOTWISE_WORKER_NAME"] = "left"
    wait_until(
        lambda: shell.ask("health", "--worker").returncode == exits.OK,
        "a healthy worker",
    )


# -- by systemd -----------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("processes", ["1", "2"])
def test_systemd_hears_of_a_worker(
    shell: Shell, tmp_path: Path, processes: str
) -> None:
    """It is ready when it runs, alive meanwhile, and stops; of several processes, the
    supervisor.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        worker = shell.worker(
            "--processes", processes, NOTIFY_SOCKET=str(tmp_path / "notify")
        )
        told = ""
        while "READY=1" not in told:
            told = manager.recv(1000).decode()
        assert "WATCHDOG=1" in told
        assert worker.stop() == exits.OK
        while told != "STOPPING=1":
            told = manager.recv(1000).decode()
