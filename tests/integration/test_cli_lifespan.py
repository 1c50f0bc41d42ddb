"""The application's lifespan under the commands: its mistakes are its own, and it cannot keep a
process.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.shell import Shell

from slotwise.cli.shared import exits

pytestmark = pytest.mark.extended

JOBS = """
import asyncio, contextlib, os, time
from slotwise import Every, JobRegistry, job

@job(name="tick", schedule=Every("1s"))
def tick(ctx): ...

async def do(word):
    print(word, flush=True)
    if word == os.environ.get("FAILS"):
        raise LookupError(f"no {word} today")
    if word == os.environ.get("SLEEPS"):
        await asyncio.sleep(3600)
    if word == os.environ.get("BLOCKS"):
        time.sleep(3600)

@contextlib.asynccontextmanager
async def pool_of_shop():
    try:
        await do("enter")
        yield
        await do("leave")
    finally:
        print("closed", flush=True)

registry = JobRegistry(jobs=[tick], lifespan=pool_of_shop)
"""


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    """An application whose lifespan does what the environment says, on a fresh PostgreSQL
    database.
    """
    made = Shell(tmp_path, pg_url)
    made.environment |= {
        "SLOTWISE_APP": "jobs:registry",
        "SLOTWISE_SHUTDOWN_GRACE": "1s",
    }
    made.write("jobs.py", JOBS)
    yield made
    made.close()


def check_told(text: str, word: str) -> None:
    """Its own lines, and one that names it; nothing of ours."""
    assert f"LookupError: no {word} today" in text
    assert f'await do("{word}")' in text
    assert [line for line in text.splitlines() if "error: " in line] == [
        "error: the lifespan pool_of_shop failed"
    ]
    assert "eventloop.py" not in text
    assert "contextlib" not in text


@pytest.mark.parametrize("word", ["enter", "leave"])
def test_a_mistake_in_run(shell: Shell, word: str) -> None:
    """Before or after its yield, it is a mistake in the application."""
    done = shell.run("run", "tick", FAILS=word)
    assert done.returncode == exits.FAILED, done.stderr
    check_told(done.stderr, word)


def test_a_pod_whose_lifespan_fails_has_changed_no_schedule(shell: Shell) -> None:
    """Neither of a new job nor of one that an earlier deploy has planned."""
    done = shell.run("run", "tick", "--slot", "due", FAILS="enter")
    assert done.returncode == exits.FAILED, done.stderr
    check_told(done.stderr, "enter")
    assert shell.ask("jobs", "--json").stdout.strip() in ("", "[]")
    assert shell.run("run", "tick", "--slot", "due").returncode == exits.OK
    before = shell.ask("jobs", "--json").stdout
    assert "EVERY|1s" in before
    text = (shell.directory / "jobs.py").read_text()
    shell.write("jobs.py", text.replace('Every("1s")', 'Every("1m")'))
    assert shell.run("run", "tick", "--slot", "due", FAILS="enter").returncode
    assert "EVERY|1s" in shell.ask("jobs", "--json").stdout
    assert shell.run("run", "tick", "--slot", "due").returncode == exits.OK
    assert "EVERY|1m" in shell.ask("jobs", "--json").stdout


@pytest.mark.parametrize("word", ["enter", "leave"])
def test_a_mistake_in_a_worker(shell: Shell, word: str) -> None:
    """So it is in a worker, which ends with it."""
    worker = shell.worker(FAILS=word)
    if word == "leave":
        worker.wait_for("worker_start")
        worker.signal(signal.SIGTERM)
    assert worker.end() == exits.FAILED
    check_told("\n".join(event["text"] for event in worker.events("text")), word)


@pytest.mark.parametrize(
    ("how", "status", "left", "within"),
    [
        pytest.param("SLEEPS", exits.OK, 0, 20, id="sleeps"),
        pytest.param("BLOCKS", exits.UNFINISHED, 1, 60, id="blocks"),
    ],
)
def test_stopped_while_it_is_entered(
    shell: Shell, how: str, status: int, left: int, within: float
) -> None:
    """It is cancelled; one that does not hear that is left behind, when its time is up."""
    worker = shell.worker(**{how: "enter"})
    worker.wait_for_output("enter")
    begun = time.monotonic()
    assert worker.stop() == status
    assert time.monotonic() - begun < within
    assert next(worker.events("drain_end"))["unfinished"] == left
    assert ("closed" in worker.out) is (left == 0)


@pytest.mark.parametrize(("how", "within"), [("SLEEPS", 20), ("BLOCKS", 60)])
def test_run_stopped_while_it_is_entered(
    shell: Shell, how: str, within: float
) -> None:
    """The first signal ends a single run, too: nothing is claimed, and the status says which
    signal it was.
    """
    process = shell.start("run", "tick", **{how: "enter"})
    process.wait_for_output("enter")
    begun = time.monotonic()
    assert process.signal(signal.SIGINT).end() == exits.INTERRUPTED
    assert time.monotonic() - begun < within
    assert ("closed" in process.out) is (how == "SLEEPS")
    process.wait_until_text(
        "job 'tick' was asked to stop before it had started: nothing was claimed"
    )
    assert (
        shell.ask("slots", "list", "tick", "--json").returncode != exits.OK
    )  # not even planned


@pytest.mark.parametrize("how", ["SLEEPS", "BLOCKS"])
def test_never_left(shell: Shell, how: str) -> None:
    """It is told and counted as left behind, and the exit status says so."""
    worker = shell.worker(**{how: "leave"})
    worker.wait_for("worker_start")
    assert worker.stop() == exits.UNFINISHED
    assert next(worker.events("drain_end"))["unfinished"] == 1
    assert any(
        "its lifespan was not left" in event["message"]
        for event in worker.events("log")
    )
