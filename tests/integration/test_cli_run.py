"""``slotwise run``: one slot now, in the foreground."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.shell import QUICK, Shell
from tests.kit.store import Store

from slotwise import Settings
from slotwise.cli.shared import exits
from slotwise.inspect import Inspection, SlotInfo
from slotwise.spi import Database

JOBS = """
import asyncio, multiprocessing, os, time
from datetime import timedelta
from contextlib import asynccontextmanager
from slotwise import Disabled, Every, JobRegistry, Retry, job, task

@job(name="good", schedule=Every("1d"))
def good(ctx):
    print("ran", ctx.name, ctx.attempt, ctx.slot.isoformat(), flush=True)

@job(name="off", schedule=Disabled())
def off(ctx):
    print("ran off", flush=True)

@job(name="once", schedule=Every("1d"), on_lost="give_up")
def once(ctx):
    print("ran once", flush=True)

@job(name="bad", schedule=Every("1d"))
def bad(ctx):
    raise ValueError("no way")

@job(name="again", schedule=Every("1d"), retry=Retry.exponential(max_attempts=3, initial=timedelta(hours=1)))
def again(ctx):
    raise ValueError("no way")

@job(name="exits", schedule=Every("1d"))
def exits(ctx):
    raise SystemExit(0)

@job(name="polite", schedule=Every("1d"))
def polite(ctx):
    print("waiting", flush=True)
    ctx.wait("60s")
    ctx.check()

@job(name="deaf", schedule=Every("1d"))
def deaf(ctx):
    print("waiting", flush=True)
    time.sleep(60)
    print("went on", flush=True)

@job(name="long", schedule=Every("1d"))
def long(ctx):
    time.sleep(3)

@job(name="loop", schedule=Every("1d"))
async def loop(ctx):
    print("waiting", ctx.state, flush=True)
    await asyncio.sleep(float(os.environ.get("NAP", "60")))
    print("done", flush=True)

@job(name="forks", schedule=Every("1d"))
def forks(ctx):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    child.start()
    child.terminate()
    child.join()
    print("child ended with", child.exitcode, flush=True)
    ctx.check()

@task(name="mail")
def mail(ctx): ...

@asynccontextmanager
async def lifespan():
    yield "state"
    print("left", flush=True)

registry = JobRegistry(
    jobs=[good, off, once, bad, again, exits, polite, deaf, long, forks], tasks=[mail], only="bad", threads=1
)
with_loop = JobRegistry(jobs=[good, loop], lifespan=lifespan)
"""


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    """An application of all kinds of jobs, on a fresh PostgreSQL database."""
    made = Shell(tmp_path, pg_url)
    made.environment["SLOTWISE_APP"] = "jobs:registry"
    made.write("jobs.py", JOBS)
    yield made
    made.close()


def ledger(url: str, job: str) -> list[SlotInfo]:
    """The slots of a job, the newest first."""
    database = Database(Settings.load(environ={}, database_url=url))
    try:
        return Inspection(lambda: Store(database, {})).slots(job, limit=None)
    finally:
        database.close()


def test_succeeded(shell: Shell, pg_url: str) -> None:
    """Its row need not be planned yet; the slot stands in the ledger as triggered; the schedule is
    untouched.
    """
    done = shell.run("run", "good")
    assert (done.returncode, done.stdout.split()[:3]) == (
        exits.OK,
        ["ran", "good", "1"],
    ), done.stderr
    assert "good" in done.stderr
    assert "succeeded in" in done.stderr
    (line,) = ledger(pg_url, "good")
    assert (line.outcome, line.origin, line.attempts) == ("succeeded", "trigger", 1)
    assert done.stdout.split()[3] == line.slot.isoformat()
    assert shell.run("run", "good").returncode == exits.OK
    assert len(ledger(pg_url, "good")) == 2
    listed = json.loads(shell.ask("jobs", "--json").stdout)
    assert [(job["job"], job["state"]) for job in listed] == [("good", "waiting")]


@pytest.mark.parametrize(
    "job", ["off", pytest.param("once", marks=pytest.mark.extended)]
)
def test_any_job(shell: Shell, pg_url: str, job: str) -> None:
    """Also a job that is switched off, and one that starts at most once per slot."""
    done = shell.run("run", job)
    assert (done.returncode, done.stdout) == (exits.OK, f"ran {job}\n")
    assert [line.outcome for line in ledger(pg_url, job)] == ["succeeded"]


@pytest.mark.parametrize(
    ("job", "words", "reason"),
    [
        (
            "bad",
            [
                "jobs.py",
                'raise ValueError("no way")',
                "ValueError: no way",
                "failed in",
            ],
            None,
        ),
        pytest.param(
            "again",
            ["ValueError: no way", "failed (retry) in"],
            "retry",
            marks=pytest.mark.extended,
        ),
        pytest.param(
            "exits", ["SystemExit: 0", "failed in"], None, marks=pytest.mark.extended
        ),
    ],
)
def test_failed(
    shell: Shell, pg_url: str, job: str, words: list[str], reason: str | None
) -> None:
    """The handler's traceback on stderr and a status of 1; a retry is the pool's."""
    done = shell.run("run", job)
    assert done.returncode == exits.FAILED
    for word in words:
        assert done.stderr.count(word) == 1 or not word.startswith("Traceback")
        assert word in done.stderr
    (line,) = ledger(pg_url, job)
    assert (line.outcome, line.reason) == ("failed", reason)


@pytest.mark.extended
def test_json(shell: Shell) -> None:
    """For programs: how it ended, as one object."""
    told = json.loads(shell.run("run", "bad", "--json").stdout)
    assert (told["job"], told["outcome"], told["attempt"], told["left_behind"]) == (
        "bad",
        "failed",
        1,
        False,
    )
    assert told["error"].endswith("ValueError: no way")


@pytest.mark.extended
def test_json_has_stdout_for_itself(shell: Shell) -> None:
    """What the handler prints goes to stderr, so that a program can read the answer."""
    done = shell.run("run", "off", "--json")
    assert json.loads(done.stdout)["outcome"] == "succeeded"
    assert "ran off\n" in done.stderr


@pytest.mark.extended
@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("goood", "no job 'goood' in this registry; did you mean 'good'?"),
        ("zzz", "no job 'zzz' in this registry; known are again, bad,"),
        (
            "mail",
            "'mail' is a one-time task; schedule it: slotwise tasks schedule mail",
        ),
    ],
)
def test_unknown(shell: Shell, job: str, words: str) -> None:
    """One line with the cure."""
    done = shell.run("run", job)
    assert done.returncode == exits.FAILED
    assert done.stderr.startswith(f"error: {words}")


@pytest.mark.parametrize(
    ("job", "number", "status"),
    [
        ("polite", signal.SIGINT, exits.INTERRUPTED),
        pytest.param(
            "polite", signal.SIGTERM, exits.TERMINATED, marks=pytest.mark.extended
        ),
        pytest.param(
            "polite", signal.SIGHUP, exits.HUNG_UP, marks=pytest.mark.extended
        ),
        pytest.param(
            "loop", signal.SIGINT, exits.INTERRUPTED, marks=pytest.mark.extended
        ),
    ],
)
def test_interrupted(
    shell: Shell, pg_url: str, job: str, number: int, status: int
) -> None:
    """Ctrl-C asks the handler to stop; the slot ends as cancelled and does not run again."""
    process = shell.start(
        "run", job, "--app", "jobs:with_loop" if job == "loop" else "jobs:registry"
    )
    process.wait_for_output("waiting")
    assert process.signal(number).end() == status
    (line,) = ledger(pg_url, job)
    assert (line.outcome, line.reason, line.finished is not None) == (
        "cancelled",
        "operator",
        True,
    )
    assert not any("Traceback" in event.get("text", "") for event in process.seen)


@pytest.mark.extended
@pytest.mark.parametrize("times", [1, 2])
def test_deaf(shell: Shell, pg_url: str, times: int) -> None:
    """A handler that does not listen is left behind, after a while or at the second Ctrl-C, and
    the process ends.
    """
    process = shell.start("run", "deaf")
    process.wait_for_output("waiting")
    process.signal(signal.SIGINT)
    process.wait_for(
        "text", text="asked the job to stop; a second signal does not wait for it"
    )
    for _ in range(1, times):
        process.signal_again(signal.SIGINT)
    assert process.end() == exits.INTERRUPTED
    (line,) = ledger(pg_url, "deaf")
    assert (line.outcome, line.reason) == ("cancelled", "operator")
    assert "went on" not in process.out


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_is_not_the_command(shell: Shell) -> None:
    """A signal to a child that the handler forked ends the child, at once, and is no request to
    us.
    """
    done = shell.run("run", "forks")
    assert (done.returncode, done.stdout) == (
        exits.OK,
        f"child ended with {-signal.SIGTERM}\n",
    ), done.stderr


@pytest.mark.extended
def test_async_and_lifespan(shell: Shell) -> None:
    """``async def`` handlers run, within the lifespan, which is left before the process ends."""
    done = shell.run("run", "loop", "--app", "jobs:with_loop", NAP="0.1")
    assert (done.returncode, done.stdout.splitlines()) == (
        exits.OK,
        ["waiting state", "done", "left"],
    )


@pytest.mark.extended
def test_heartbeats(shell: Shell, pg_url: str) -> None:
    """A slot longer than its lease keeps it, beside a running worker whose reaper looks for silent
    claims.
    """
    worker = shell.worker("--only", "good", SLOTWISE_MISSED_HEARTBEATS_LIMIT="3")
    worker.wait_for("worker_start")
    reaping = shell.worker("--only", "long", SLOTWISE_MISSED_HEARTBEATS_LIMIT="3")
    reaping.wait_for("worker_start")
    done = shell.run("run", "long", SLOTWISE_MISSED_HEARTBEATS_LIMIT="3")
    assert done.returncode == exits.OK, done.stderr
    (line,) = ledger(pg_url, "long")
    assert (line.outcome, line.attempts, line.worker != reaping) == (
        "succeeded",
        1,
        True,
    )
    assert not list(reaping.events("reaped"))
    assert not list(reaping.events("claimed"))
    assert (worker.stop(), reaping.stop()) == (exits.OK, exits.OK)


@pytest.mark.extended
def test_without_tables(shell: Shell, pg_empty_url: str) -> None:
    """No tables: one line with the cure."""
    done = shell.run("run", "good", "--database-url", pg_empty_url)
    assert (done.returncode, done.stdout) == (exits.DATABASE, "")
    assert "run: slotwise db upgrade" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.extended
def test_unreachable(shell: Shell) -> None:
    """No database: it does not wait, and says where it looked."""
    done = shell.run(
        "run", "good", "--database-url", "postgresql://a:secret@127.0.0.1:1/c"
    )
    assert done.returncode == exits.DATABASE
    assert (
        "the database 'c' at host 127.0.0.1, port 1 cannot be reached" in done.stderr
    )
    assert "secret" not in done.stderr


@pytest.mark.extended
def test_sqlite(shell: Shell, sqlite_url: str) -> None:
    """On SQLite as well."""
    assert (
        shell.run("run", "good", "--database-url", sqlite_url).returncode == exits.OK
    )


@pytest.mark.extended
def test_as_module_and_as_script(shell: Shell) -> None:
    """The console script is the module; the current directory stands at the end of the path in
    both.
    """
    shell.write(
        "alembic.py", "raise AssertionError('the application hides somebody else')\n"
    )
    module = [sys.executable, "-m", "slotwise", "run", "good"]
    script = [Path(sys.executable).with_name("slotwise"), "run", "good"]
    for command in (module, script):
        done = subprocess.run(
            command,
            cwd=shell.directory,
            env=shell.environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == exits.OK, done.stderr


def test_run_now(pg_url: str) -> None:
    """The same from Python: how it ended is a value."""
    from slotwise import Every, JobContext, JobRegistry, job

    @job(name="sum", schedule=Every("1d"))
    def add(ctx: JobContext) -> None:
        assert ctx.client is not None

    settings: dict[str, Any] = {
        name.removeprefix("SLOTWISE_").lower(): value for name, value in QUICK.items()
    }
    ended = JobRegistry(jobs=[add], database_url=pg_url, **settings).run_now("sum")
    assert (ended.job, ended.outcome, ended.succeeded, ended.left_behind) == (
        "sum",
        "succeeded",
        True,
        False,
    )
