"""``slotwise worker`` as one process: starts, tells what it does, drains, and always ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql
from sqlalchemy import make_url
from tests.databases import Databases
from tests.integration.shell import Process, Shell
from tests.kit.store import Store

from slotwise import Settings
from slotwise.cli.shared import exits
from slotwise.inspect import Inspection, SlotInfo
from slotwise.spi import Database

JOBS = """
import asyncio, concurrent.futures, contextlib, logging, multiprocessing, os, threading, time
from slotwise import Every, JobRegistry, job

@job(name="tick", schedule=Every("1s"))
def tick(ctx): ...

@job(name="nap", schedule=Every("1s"))
def nap(ctx):
    time.sleep(1)

@job(name="polite", schedule=Every("1s"))
def polite(ctx):
    ctx.wait("60s")
    ctx.check()

@job(name="deaf", schedule=Every("1s"))
def deaf(ctx):
    time.sleep(60)

@job(name="stays", schedule=Every("1s"))
def stays(ctx):
    while True:
        with open("seen", "a") as file:
            file.write(f"{ctx.slot.isoformat()} {ctx.attempt} {time.time()}\\n")
        if ctx.attempt > 1:
            return
        time.sleep(0.01)

@contextlib.asynccontextmanager
async def slow_life():
    yield
    await asyncio.sleep(float(os.environ.get("LEAVE", "0")))

@job(name="bad", schedule=Every("1s"))
def bad(ctx):
    ctx.log.warning("about to fail")
    raise ValueError("no way")

@job(name="thread", schedule=Every("1s"))
def thread(ctx):
    threading.Thread(target=time.sleep, args=(3600,), name="forgotten", daemon=False).start()

@job(name="executor", schedule=Every("1s"))
async def executor(ctx):
    await asyncio.to_thread(time.sleep, 3600)

@job(name="pool", schedule=Every("1s"))
def pool(ctx):
    with multiprocessing.get_context("fork").Pool(2) as made:
        made.map(abs, [1, 2])

logging.getLogger("shop").info("imported")
only = os.environ.get("ONLY", "tick")
registry = JobRegistry(jobs=[tick, nap, polite, deaf, bad, thread, executor, pool], only=only, poll_interval="200ms")
living = JobRegistry(jobs=[stays], lifespan=slow_life, poll_interval="200ms")
customized = JobRegistry(jobs=[tick], threads=2, customize=lambda settings: settings.replace(worker_name="last"))
silenced = JobRegistry(jobs=[tick])
if "SILENCE" in os.environ:
    import logging.config
    logging.config.dictConfig({"version": 1, "root": {"level": "INFO", "handlers": ["h"]}, "handlers": {
        "h": {"class": "logging.StreamHandler", "formatter": "f"}}, "formatters": {"f": {"format": "OWN %(message)s"}}})
"""


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    """An application whose jobs behave in many ways, on a fresh PostgreSQL database."""
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


def started(shell: Shell, job: str, *arguments: str, **environment: str) -> Process:
    """A worker in which this job's handler has just started."""
    worker = shell.worker(*arguments, ONLY=job, **environment)
    worker.wait_for("handler_start", job=job)
    return worker


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.extended),
        pytest.param(signal.SIGHUP, id="SIGHUP", marks=pytest.mark.extended),
    ],
)
def test_drain(shell: Shell, pg_url: str, number: int) -> None:
    """Each signal: what runs may finish, then the process ends with 0; nothing of it is left in
    the tables.
    """
    worker = started(shell, "nap", "--threads", "1")
    worker.signal(number)
    assert worker.wait_for("drain_begin")["running"] == 1
    assert worker.wait_for("drain_end")["unfinished"] == 0
    assert worker.end() == exits.OK
    assert {line.outcome for line in ledger(pg_url, "nap")} <= {"succeeded", "skipped"}
    assert shell.ask("workers", "--json").stdout.strip() == "[]"


@pytest.mark.extended
def test_second_signal(shell: Shell, pg_url: str) -> None:
    """The second one does not wait: what runs is told to stop."""
    worker = started(shell, "polite", SLOTWISE_SHUTDOWN_GRACE="1h")
    worker.signal(signal.SIGTERM).wait_for("drain_begin")
    worker.signal_again(signal.SIGTERM)
    assert worker.end() == exits.OK
    assert [line.outcome for line in ledger(pg_url, "polite")] == ["cancelled"]


@pytest.mark.extended
@pytest.mark.parametrize("processes", ["1", "2"])
def test_under_timeout(shell: Shell, pg_url: str, processes: str) -> None:
    """`timeout` signals its child and then the group that the child is in: one request, what runs
    may finish.
    """
    shell.environment["ONLY"] = "nap"
    arguments = (
        "worker",
        "--log-format",
        "json",
        "--threads",
        "1",
        "--processes",
        processes,
    )
    wrapped = shell.start_under("timeout", "-s", "TERM", "1h", arguments=arguments)
    wrapped.wait_for("handler_start")
    wrapped.signal(signal.SIGTERM)  # it does then what it does when its time is up
    wrapped.wait_for("drain_begin", running=1)
    wrapped.wait_for("drain_end")
    wrapped.end()
    assert "cancelling running handlers" not in str(wrapped.seen)
    assert {line.outcome for line in ledger(pg_url, "nap")} <= {"succeeded", "skipped"}


@pytest.mark.extended
def test_third_signal(shell: Shell, pg_url: str) -> None:
    """The third one ends the process at once; the claim stays for a reaper."""
    worker = started(shell, "deaf")
    worker.signal(signal.SIGINT).wait_for("drain_begin")
    worker.signal_again(signal.SIGINT)
    worker.wait_for("log", message="SIGINT: cancelling running handlers")
    worker.signal_again(signal.SIGINT)
    assert worker.end() == exits.UNFINISHED
    assert [line.outcome for line in ledger(pg_url, "deaf")] == ["running"]


@pytest.mark.extended
def test_deaf_handler(shell: Shell, pg_url: str) -> None:
    """A handler that does not listen is handed back when its time is up, and the process ends all
    the same.
    """
    worker = started(shell, "deaf", SLOTWISE_SHUTDOWN_GRACE="0s")
    assert worker.stop() == exits.UNFINISHED
    (line,) = ledger(pg_url, "deaf")
    assert (line.outcome, line.reason) == ("cancelled", "shutdown")
    assert next(worker.events("drain_end"))["unfinished"] == 1


@pytest.mark.extended
def test_what_does_not_stop_runs_nowhere_else(shell: Shell) -> None:
    """Its slot is handed back by the last write before the process ends, after the lifespan; it
    starts elsewhere then.

    The handler itself writes down that it runs. The lifespan takes longer to be left than a lease.
    """
    worker = shell.worker(
        "--app", "jobs:living", SLOTWISE_SHUTDOWN_GRACE="0s", LEAVE="2.5"
    )
    worker.wait_for("handler_start", job="stays")
    other = shell.worker("--app", "jobs:living")
    other.wait_for("worker_start")
    assert worker.stop() == exits.UNFINISHED
    again = other.wait_for("handler_start", job="stays")
    assert again["attempt"] == 2
    assert other.stop() == exits.OK
    lines = [
        line.split() for line in (shell.directory / "seen").read_text().splitlines()
    ]
    of_slot = [
        (attempt, float(at))
        for slot, attempt, at in lines
        if slot[:19] == again["slot"][:19]
    ]
    last_of_first = max(at for attempt, at in of_slot if attempt == "1")
    assert min(at for attempt, at in of_slot if attempt == "2") > last_of_first - 0.5


@pytest.mark.extended
def test_a_lifespan_that_is_never_left(shell: Shell) -> None:
    """It cannot keep the process: what is left to it is bounded."""
    worker = shell.worker(
        "--app", "jobs:living", SLOTWISE_SHUTDOWN_GRACE="0s", LEAVE="3600"
    )
    worker.wait_for("handler_start", job="stays")
    assert worker.stop() == exits.UNFINISHED
    assert any(
        "its lifespan was not left" in event["message"]
        for event in worker.events("log")
    )


@pytest.mark.extended
@pytest.mark.parametrize("job", ["thread", "executor"])
def test_forgotten_threads(shell: Shell, job: str) -> None:
    """Threads that the application forgot do not keep the process."""
    worker = started(shell, job, SLOTWISE_SHUTDOWN_GRACE="100ms")
    assert worker.stop() == exits.OK
    assert any(
        "still running" in event.get("message", "") for event in worker.events("log")
    )


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_is_not_the_worker(shell: Shell) -> None:
    """A pool that a handler makes and ends, by SIGTERM to its processes, ends; the worker goes
    on.
    """
    worker = shell.worker(ONLY="pool")
    for _ in range(3):
        assert worker.wait_for("settled", job="pool")["outcome"] == "succeeded"
    assert not list(worker.events("drain_begin"))
    assert worker.stop() == exits.OK


@pytest.mark.extended
def test_events(shell: Shell) -> None:
    """Each phase is told when it happens, with job, slot, attempt, token and worker."""
    worker = shell.worker(ONLY="bad")
    planned = worker.wait_for("planned")
    assert (planned["job"], planned["change"]) == ("bad", "added")
    for name in (
        "worker_start",
        "poll_begin",
        "claimed",
        "handler_start",
        "handler_end",
        "settle_sent",
        "settled",
    ):
        event = worker.wait_for(name)
        assert event["worker"] == planned["worker"]
        if "job" in event:
            assert (
                event["job"],
                event["attempt"],
                event["token"] > 1,
                event["slot"][-1],
            ) == ("bad", 1, True, "Z")
    assert (event["outcome"], event["error"]) == ("failed", "ValueError: no way")
    worker.wait_for("heartbeat")
    assert worker.stop() == exits.OK
    (imported,) = (line for line in worker.events("log") if line["logger"] == "shop")
    assert (imported["message"], imported["level"]) == ("imported", "INFO")
    own = next(
        line for line in worker.events("log") if line["logger"] == "slotwise.job"
    )
    assert (own["message"], own["job"], own["worker"]) == (
        "about to fail",
        "bad",
        planned["worker"],
    )
    assert not list(worker.events("text")), "a line that is not JSON"


@pytest.mark.extended
def test_human(shell: Shell) -> None:
    """For people: readable lines, and at the usual level only what matters."""
    worker = shell.start("worker")
    worker.wait_until_text("settled job=tick")
    assert worker.stop() == exits.OK
    text = "\n".join(event["text"] for event in worker.events("text"))
    assert "poll_begin" not in text
    assert "SIGTERM: draining" in text
    assert "\x1b" not in text


@pytest.mark.extended
@pytest.mark.parametrize(
    "format", [["--json"], ["--log-format", "json"]], ids=" ".join
)
def test_json(shell: Shell, format: list[str]) -> None:
    """For programs, in both spellings."""
    worker = shell.start("worker", *format)
    worker.wait_for("settled", job="tick")
    assert worker.stop() == exits.OK


@pytest.mark.extended
def test_own_logging(shell: Shell) -> None:
    """An application that configures logging keeps its own; our events come out through it."""
    worker = shell.start("worker", "--app", "jobs:silenced", SILENCE="1")
    worker.wait_until_text("OWN settled job=tick")
    assert worker.stop() == exits.OK


@pytest.mark.extended
def test_command_line_wins(shell: Shell) -> None:
    """Options outrank what the code says."""
    worker = shell.worker(
        "--only", "bad", "--threads", "3", ONLY="tick", SLOTWISE_THREADS="5"
    )
    begun = worker.wait_for("worker_start")
    assert (begun["jobs"], begun["capacity"]) == (1, 3)
    assert worker.stop() == exits.OK


@pytest.mark.extended
def test_customize_wins(shell: Shell) -> None:
    """What the application's own function says last outranks the command line."""
    worker = shell.worker(
        "--app", "jobs:customized", "--threads", "3", SLOTWISE_WORKER_NAME="one"
    )
    begun = worker.wait_for("worker_start")
    assert (begun["capacity"], begun["worker"].split(":")[0]) == (3, "last")
    assert worker.stop() == exits.OK


@pytest.mark.extended
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (
            ["--only", "tock"],
            exits.FAILED,
            "only names 'tock', which is not registered",
        ),
        (["--app", "jobz"], exits.FAILED, "there is no module jobz"),
        (
            ["--database-url", "sqlite:///new.db"],
            exits.DATABASE,
            "slotwise db upgrade",
        ),
        (["--threads", "0"], exits.USAGE, "--threads must be a whole number from 1"),
    ],
    ids=["only", "app", "tables", "setting"],
)
@pytest.mark.parametrize("processes", ["1", "3"])
def test_cannot_start(
    shell: Shell, arguments: list[str], status: int, words: str, processes: str
) -> None:
    """What cannot work ends at once, is told once, and has its status: alone and under a
    supervisor.
    """
    done = shell.run("worker", *arguments, "--processes", processes)
    assert done.returncode == status, done.stderr
    assert done.stderr.count("error: ") == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


class TestDatabaseAway:
    """A database that is not there is waited for."""

    def test_at_start(self, shell: Shell, databases: Databases) -> None:
        """It waits, says so once and with the place, and starts when the database lets it in."""
        with databases.provisioned() as url:
            name = url.rpartition("/")[2].partition("?")[0]
            databases._execute(_let_in(name, "false"))
            worker = shell.worker("--app", "jobs:silenced", "--database-url", url)
            lost = worker.wait_for("database_lost")
            assert f"'{name}'" in lost["error"]
            databases._execute(_let_in(name, "true"))
            worker.wait_for("database_back")
            worker.wait_for("worker_start")
            assert len(list(worker.events("database_lost"))) == 1
            assert worker.stop() == exits.OK

    @pytest.mark.extended
    def test_stopped_while_waiting(self, shell: Shell) -> None:
        """A signal ends the wait."""
        worker = shell.worker("--database-url", "postgresql://a:secret@127.0.0.1:1/c")
        worker.wait_for("database_lost")
        assert worker.stop() == exits.OK
        assert "secret" not in str(worker.seen)

    @pytest.mark.extended
    def test_it_is_said_again(self, shell: Shell) -> None:
        """A minute later, for whoever looks then; here a minute is shorter."""
        shell.write(
            "impatient.py",
            "from datetime import timedelta\n"
            "from slotwise.engine.loops import service\n"
            "from jobs import registry\n"
            "service.REMINDER = timedelta(seconds=1)\n",
        )
        worker = shell.worker(
            "--app",
            "impatient",
            "--database-url",
            "postgresql://a:secret@127.0.0.1:1/c",
        )
        worker.wait_for("database_lost")
        again = worker.wait_for("log", logger="slotwise.engine.loops.service")
        assert again["message"].startswith("the database still cannot be used, after ")
        assert "127.0.0.1" in again["message"]
        assert worker.stop() == exits.OK
        assert "secret" not in str(worker.seen)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            {"password": "s3cr%t/@"}, "correct the user or the password", id="password"
        ),
        pytest.param(
            {"username": "nobody_here", "password": "s3cr%t/@"},
            "nobody_here",
            id="role",
        ),
        pytest.param(
            {"database": "no_such_database"},
            "createdb no_such_database",
            id="database",
        ),
    ],
)
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_database_that_refuses(
    shell: Shell, pg_url: str, change: dict[str, str], words: str, processes: str
) -> None:
    """A wrong password or name at the start does not become right by waiting: one line with the
    cure, status 3.
    """
    url = make_url(pg_url).set(**change).render_as_string(hide_password=False)  # type: ignore[arg-type]
    done = shell.run("worker", "--database-url", url, "--processes", processes)
    assert done.returncode == exits.DATABASE, done.stderr
    assert done.stderr.count("error: ") == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "s3cr" not in done.stderr


@pytest.mark.extended
def test_a_database_that_refuses_later(shell: Shell, databases: Databases) -> None:
    """After a good start the same words may come from a server that is being replaced: the worker
    waits.
    """
    with databases.provisioned() as url:
        name = url.rpartition("/")[2].partition("?")[0]
        worker = shell.worker("--app", "jobs:silenced", "--database-url", url)
        worker.wait_for("settled")
        databases._execute(_let_in(name, "false"))
        databases._execute(
            sql.SQL(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = {}"
            ).format(sql.Literal(name))
        )
        databases._execute(_rename(name, f"{name}_away"))
        worker.wait_for("database_lost")
        databases._execute(_rename(f"{name}_away", name))
        databases._execute(_let_in(name, "true"))
        worker.wait_for("database_back")
        worker.wait_for("settled")
        assert worker.stop() == exits.OK


@pytest.mark.extended
def test_an_outcome_that_cannot_be_written(shell: Shell, databases: Databases) -> None:
    """It is left to others, counted, and the exit status says so."""
    with databases.provisioned() as url:
        name = url.rpartition("/")[2].partition("?")[0]
        worker = started(
            shell,
            "nap",
            "--threads",
            "1",
            "--database-url",
            url,
            SLOTWISE_SHUTDOWN_GRACE="100ms",
        )
        databases._execute(_let_in(name, "false"))
        databases._execute(
            sql.SQL(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = {}"
            ).format(sql.Literal(name))
        )
        worker.wait_for("handler_end")
        assert worker.stop() == exits.UNFINISHED
        assert next(worker.events("drain_end"))["unfinished"] == 1


def _let_in(name: str, value: str) -> sql.Composed:
    return sql.SQL("alter database {} allow_connections {}").format(
        sql.Identifier(name), sql.SQL(value)
    )


def _rename(before: str, after: str) -> sql.Composed:
    return sql.SQL("alter database {} rename to {}").format(
        sql.Identifier(before), sql.Identifier(after)
    )
