"""Output that cannot be written, on a full disk or a closed stream, changes neither what runs nor
how the process ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.kit.patience import PATIENCE

from slotwise import JobRegistry, TaskContext, task
from slotwise.cli.shared import exits

APPLICATION = """
import asyncio, os, signal, sys
from slotwise import Every, JobRegistry, job, task

WORKER = os.getpid()

def note(ctx):
    file = os.open("ran", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{ctx.id}\\n".encode())
    os.close(file)

def forked(ctx):
    note(ctx)
    child = os.fork()
    if child == 0:
        if ctx.id == "returns":
            return
        raise ValueError("the child ends here, and says so " * 200)
    _, status = os.waitpid(child, 0)
    with open("statuses", "a") as file:
        file.write(f"{ctx.id} {os.waitstatus_to_exitcode(status)}\\n")

@task(name="fork")
def fork(ctx):
    forked(ctx)

@task(name="fork-async")
async def fork_async(ctx):
    forked(ctx)

@task(name="mail")
def mail(ctx):
    note(ctx)

@task(name="close")
def close(ctx):
    note(ctx)
    for name in ctx.data.split():
        getattr(sys, name).close()

@task(name="end")
def end(ctx):
    note(ctx)
    os.kill(WORKER, signal.SIGTERM)

@job(name="hourly", schedule=Every("1h"))
def hourly(ctx): ...

registry = JobRegistry(jobs=[hourly], tasks=[fork, fork_async, mail, close, end])
"""
#: What a shell does with the streams of a worker.
STREAMS = (
    "> /dev/full",
    "2> /dev/full",
    "> /dev/full 2> /dev/full",
    ">&-",
    "2>&-",
    ">&- 2>&-",
)
pytestmark = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no /dev/full here"
)


def slotwise(
    directory: Path, url: str, command: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command line of a shell with these redirections."""
    return subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m slotwise {command}"],
        cwd=directory,
        env={**os.environ, "DATABASE_URL": url},
        timeout=PATIENCE,
        check=False,
        capture_output=True,
    )


@task(name="fork")
def fork(ctx: TaskContext[None]) -> None: ...


@task(name="fork-async")
def fork_async(ctx: TaskContext[None]) -> None: ...


@task(name="mail")
def mail(ctx: TaskContext[None]) -> None: ...


@task(name="close")
def close(ctx: TaskContext[str]) -> None: ...


@task(name="end")
def end(ctx: TaskContext[None]) -> None: ...


def work(
    directory: Path, url: str, streams: str, *first: tuple[str, str, str | None]
) -> int:
    """Return the exit status of a worker that runs these tasks, twenty more, and one that ends
    it.
    """
    (directory / "app.py").write_text(APPLICATION)
    registry = JobRegistry(
        tasks=[fork, fork_async, mail, close, end], database_url=url
    )
    client = registry.client
    for name, id, data in first:
        client.schedule(name, data, id=id)
    for number in range(20):
        client.schedule(mail, id=f"mail-{number}")
    client.schedule(end, id="end", priority=1)
    registry.stop()
    return slotwise(
        directory, url, f"worker --app app --threads 1 {streams}"
    ).returncode


def ran(directory: Path) -> Counter[str]:
    return Counter((directory / "ran").read_text().split())


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", ["fork", "fork-async"])
def test_a_forked_child_ends_where_it_leaves_the_handler(
    tmp_path: Path, pg_url: str, streams: str, name: str
) -> None:
    """Each handler runs once, in the worker: a child that cannot print its error does not go on."""
    tasks = [(name, "raises", None), (name, "returns", None)]
    assert work(tmp_path, pg_url, streams, *tasks) == exits.OK
    assert set(ran(tmp_path).values()) == {1}
    assert len(ran(tmp_path)) == 23
    assert sorted((tmp_path / "statuses").read_text().splitlines()) == [
        "raises 1",
        "returns 0",
    ]


@pytest.mark.parametrize("streams", ["", "> /dev/full 2> /dev/full", "2>&-"])
@pytest.mark.parametrize("closed", ["stdout", "stderr", "stdout stderr"])
def test_a_handler_that_closes_a_stream(
    tmp_path: Path, pg_url: str, closed: str, streams: str
) -> None:
    """The worker goes on, drains, and ends with 0."""
    assert work(tmp_path, pg_url, streams, ("close", "close", closed)) == exits.OK
    assert set(ran(tmp_path).values()) == {1}
    assert len(ran(tmp_path)) == 22


def test_a_command_that_has_acted_succeeds(tmp_path: Path, pg_url: str) -> None:
    """An operation that was carried out counts, or a script would repeat it; a listing that is
    lost is a failure, and an error keeps its status.
    """
    (tmp_path / "app.py").write_text(APPLICATION)
    for streams in ("> /dev/full 2> /dev/full", ">&- 2>&-"):
        for command in ACTING:
            done = slotwise(tmp_path, pg_url, f"{command} {streams}")
            assert (command, streams, done.returncode) == (command, streams, exits.OK)
        missing = slotwise(tmp_path, pg_url, f"cancel no-such --yes {streams}")
        assert missing.returncode == exits.FAILED
    assert slotwise(tmp_path, pg_url, "workers > /dev/full").returncode == exits.FAILED
    assert (
        slotwise(tmp_path, pg_url, "db upgrade --sql > /dev/full").returncode
        == exits.FAILED
    )


ACTING = (
    "db upgrade",
    "db grants --role reader --to pg_monitor",
    "tasks schedule mail",
    "pause --all --yes",
    "resume --all --yes",
    "run hourly --app app",
)
