"""``slotwise tick``: real processes on a real PostgreSQL, judged by the handlers' own log."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.shell import Process, Shell, wait_until

from slotwise.cli.shared import exits

JOBS = """
import os, time
from slotwise import Cron, JobRegistry, OneTimeTask, Retry, job, task

def marked(word, ctx):
    with open("log", "a") as log:
        log.write(f"{word} {ctx.name} {ctx.attempt} {os.environ.get('POD', '')}\\n")

HOUR = os.environ["HOUR"]

@job(name="daily", schedule=Cron(f"0 {HOUR} * * *"), start_within="1d")
def daily(ctx):
    marked("start", ctx)
    print("began", flush=True)
    deadline = time.monotonic() + float(os.environ.get("TAKES", "0"))
    while time.monotonic() < deadline and not os.path.exists("go"):
        time.sleep(0.02)
        if os.environ.get("POLITE"):
            ctx.check()
    marked("end", ctx)

@task(name="mail", retry=Retry.exponential(max_attempts=1))
def mail(ctx):
    marked("start", ctx)
    if os.environ.get("BAD"):
        raise ValueError("no way")

@task(name="later")
async def later(ctx):
    marked("start", ctx)

registry = JobRegistry(jobs=[daily], tasks=[mail, later])
"""


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    """An application on a fresh database. Leases of 12 s: nobody loses a claim on a slow machine,
    but where a test wants it. The daily slot is hours away.
    """
    made = Shell(tmp_path, pg_url)
    made.environment |= {
        "SLOTWISE_APP": "jobs:registry",
        "SLOTWISE_MISSED_HEARTBEATS_LIMIT": "40",
        "HOUR": str((datetime.now(UTC) - timedelta(hours=6)).hour),
    }
    made.write("jobs.py", JOBS)
    yield made
    made.close()


def lines(shell: Shell, word: str = "start") -> list[str]:
    """What the handlers have written with this word."""
    log = shell.directory / "log"
    told = log.read_text().splitlines() if log.exists() else []
    return [line for line in told if line.startswith(word)]


def answer(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def planned(shell: Shell) -> None:
    """The daily job has its row, and its slot of six hours ago is due."""
    done = shell.run("tick")
    assert done.returncode == exits.OK, done.stderr
    with psycopg.connect(shell.environment["DATABASE_URL"], autocommit=True) as own:
        own.execute(
            "UPDATE scheduled_tasks SET execution_time = now() - interval '1 s', "
            "next_slot = next_slot - interval '1 day', "
            "watermark = next_slot - interval '2 days' WHERE task_name = 'daily'"
        )


def schedule(shell: Shell, name: str, *arguments: str) -> None:
    done = shell.ask("tasks", "schedule", name, *arguments)
    assert done.returncode == exits.OK, done.stderr


def held_by(shell: Shell, name: str) -> str | None:
    with psycopg.connect(shell.environment["DATABASE_URL"], autocommit=True) as own:
        found = own.execute(
            "SELECT picked_by FROM scheduled_tasks WHERE task_name = %s", (name,)
        ).fetchone()
    return None if found is None else found[0]


def holding(shell: Shell, **environment: str) -> Process:
    """A tick whose handler of the daily job runs."""
    tick = shell.start("tick", "--budget", "60s", POD="first", **environment)
    tick.wait_for_output("began")
    return tick


def test_what_is_due_runs_and_the_next_instant_is_told(shell: Shell) -> None:
    """Slots and tasks, sync and async; what comes later is named, and a failed handler is no
    failed tick.
    """
    planned(shell)
    schedule(shell, "mail", "--id", "now")
    schedule(shell, "later", "--id", "now")
    schedule(shell, "later", "--id", "then", "--at", "2h")
    done = shell.run("tick", "--json", BAD="yes")
    assert done.returncode == exits.OK, done.stderr
    told = answer(done.stdout)
    assert told["state"] == "idle"
    assert told["ran"] == {
        "daily": {"succeeded": 1},
        "later": {"succeeded": 1},
        "mail": {"dead": 1},
    }
    until = datetime.fromisoformat(told["until"]) - datetime.now(UTC)
    assert timedelta(minutes=110) < until < timedelta(hours=2)
    assert len(lines(shell)) == 3


def test_a_tick_with_nothing_to_do_ends_at_once(shell: Shell) -> None:
    """Also a second and a third one; each signs out."""
    planned(shell)
    for expected in (["start daily 1 "], ["start daily 1 "]):
        done = shell.run("tick")
        assert done.returncode == exits.OK, done.stderr
        assert lines(shell) == expected
        assert "the next one: " in done.stdout
    with psycopg.connect(shell.environment["DATABASE_URL"]) as own:
        workers = own.execute("SELECT count(*) FROM scheduled_workers").fetchone()
        reasons = own.execute("SELECT DISTINCT reason FROM scheduled_worker_history")
        assert workers == (0,)
        assert reasons.fetchall() == [("tick",)]
    told = shell.ask("workers").stdout
    assert "3 ticks within the last day, the last one at " in told
    assert "signed out" not in told


def test_what_is_about_to_be_due_is_waited_for(shell: Shell) -> None:
    """The caller's clock may be ahead."""
    planned(shell)
    schedule(shell, "mail", "--id", "soon", "--at", "4s")
    done = shell.run("tick", "--early", "10s", "--json")
    assert done.returncode == exits.OK, done.stderr
    assert answer(done.stdout)["ran"]["mail"] == {"succeeded": 1}


def test_two_ticks_at_once_run_each_slot_once(shell: Shell) -> None:
    """The second finds the row held, and says when its lease would end; each task starts once."""
    planned(shell)
    for number in range(4):
        schedule(shell, "mail", "--id", f"{number}")
    first = shell.start("tick", "--json", TAKES="1", POD="first")
    second = shell.start("tick", "--json", TAKES="1", POD="second")
    assert (first.end(), second.end()) == (exits.OK, exits.OK)
    assert sorted(line.split()[1] for line in lines(shell)) == ["daily", *4 * ["mail"]]


def test_beside_a_handler_that_runs_the_end_of_its_lease_is_told(shell: Shell) -> None:
    """The next tick comes when it would be dead, and not before."""
    planned(shell)
    first = holding(shell, TAKES="60")
    done = shell.run("tick", "--json", POD="second")
    told = answer(done.stdout)
    assert (done.returncode, told["state"], told["ran"]) == (exits.OK, "idle", {})
    until = datetime.fromisoformat(told["until"]) - datetime.now(UTC)
    assert until < timedelta(seconds=12)
    (shell.directory / "go").touch()
    assert first.end() == exits.OK
    assert lines(shell) == ["start daily 1 first"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_tick_that_dies_is_taken_over_by_the_next_one(
    shell: Shell, number: int
) -> None:
    """Once its lease has expired, within one tick; a frozen one that thaws settles nothing."""
    planned(shell)
    shell.environment["SLOTWISE_MISSED_HEARTBEATS_LIMIT"] = "3"
    first = holding(shell, TAKES="60", SLOTWISE_SHUTDOWN_GRACE="0s", POLITE="yes")
    first.signal(number)
    done = shell.run("tick", "--json", POD="second")
    while not answer(done.stdout)["ran"]:  # its lease had not expired
        done = shell.run("tick", "--json", POD="second")
    assert answer(done.stdout)["ran"] == {"daily": {"succeeded": 1}}
    assert lines(shell) == ["start daily 1 first", "start daily 2 second"]
    if number == signal.SIGSTOP:
        first.signal(signal.SIGCONT)
        assert first.end() == exits.OK
    assert lines(shell, "end") == ["end daily 2 second"]
    assert [line["outcome"] for line in ledger(shell)] == ["succeeded"]


def ledger(shell: Shell) -> list[dict[str, Any]]:
    """The slots of the daily job that have come."""
    found = json.loads(shell.ask("slots", "daily", "--json").stdout)
    assert isinstance(found, list)
    return [one for one in found if one["outcome"] != "waiting"]


def test_after_the_budget_nothing_starts_and_what_runs_may_end(shell: Shell) -> None:
    """The handler finishes within the grace, and the answer says that more may be due."""
    planned(shell)
    options = ("--budget", "5s", "--json", "--log-format", "json")
    tick = shell.start("tick", *options, TAKES="60")
    tick.wait_for("handler_start")
    tick.wait_for("drain_begin")
    schedule(shell, "mail", "--id", "too-late")
    (shell.directory / "go").touch()
    assert tick.end() == exits.OK
    told = answer(tick.out[-1])
    assert told["state"] == "more"
    assert told["ran"] == {"daily": {"succeeded": 1}}
    assert datetime.fromisoformat(told["until"]) <= datetime.now(UTC)
    assert lines(shell) == ["start daily 1 "]
    assert lines(shell, "end") == ["end daily 1 "]


def test_a_signal_drains(shell: Shell) -> None:
    """The slot is handed back at once, and the next tick runs it."""
    planned(shell)
    tick = holding(shell, TAKES="60", POLITE="yes", SLOTWISE_SHUTDOWN_GRACE="0s")
    tick.signal(signal.SIGTERM)
    assert tick.end() == exits.TERMINATED
    assert held_by(shell, "daily") is None
    assert shell.run("tick", POD="second").returncode == exits.OK
    assert lines(shell, "end") == ["end daily 2 second"]


def test_a_database_that_is_away(shell: Shell) -> None:
    """The tick waits for it no longer than its budget."""
    away = "postgresql://127.0.0.1:1/none"
    done = shell.run("tick", "--budget", "1s", DATABASE_URL=away)
    assert done.returncode == exits.DATABASE
    assert "the tick could not start within 1s" in done.stderr


def test_a_budget_in_which_nothing_could_be_taken_over(shell: Shell) -> None:
    done = shell.ask("tick", "--budget", "2s", "--app-dir", str(shell.directory))
    assert done.returncode == exits.FAILED
    assert "at least 3 heartbeat intervals, 15s" in done.stderr


def test_a_lost_connection_in_the_middle(shell: Shell) -> None:
    """The tick's sessions are ended by the server; the handler goes on, and its outcome is
    written.
    """
    planned(shell)
    tick = holding(shell, TAKES="60")
    with psycopg.connect(shell.environment["DATABASE_URL"], autocommit=True) as own:
        own.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    (shell.directory / "go").touch()
    wait_until(lambda: lines(shell, "end"), "the end of the handler")
    assert tick.end() == exits.OK
    assert lines(shell) == ["start daily 1 first"]
    assert [line["outcome"] for line in ledger(shell)] == ["succeeded"]


EVENTS = """
import os, sys
import sqlalchemy as sa
from slotwise import JobRegistry
from slotwise.contrib.events import Events

events = Events()

@events.on("paid", name="receipt")
def receipt(number: int) -> None:
    with open("log", "a") as log:
        log.write(f"start receipt {number}\\n")

registry = events.attach(JobRegistry(tasks=events.tasks))

if __name__ == "__main__":
    url = sa.make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")
    with sa.create_engine(url).begin() as connection:
        for number in range(5):
            events.publish(connection, "paid", {"number": number}, key="one")
"""


def test_published_events_are_handled(shell: Shell) -> None:
    """A tick stays until all are given out, and their handlers have run, in order."""
    file = shell.write("shop.py", EVENTS)
    shell.environment["SLOTWISE_APP"] = "shop:registry"
    assert shell.run("tick").returncode == exits.OK
    subprocess.run(
        [sys.executable, str(file)],
        cwd=shell.directory,
        env=shell.environment,
        check=True,
    )
    done = shell.run("tick", "--json")
    assert answer(done.stdout)["ran"] == {"receipt": {"succeeded": 5}}, done.stderr
    assert lines(shell) == [f"start receipt {number}" for number in range(5)]


# -- rests ----------------------------------------------------------------------------------------

SESSIONS = """
SELECT count(*), count(*) FILTER (WHERE query LIKE 'LISTEN%') FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def resting(shell: Shell, *options: str, **environment: str) -> Process:
    """A process that ticks, once it rests."""
    words = ("--every", "1h", "--log-format", "json", *options)
    process = shell.start("tick", *words, **environment)
    process.wait_for_output("nothing is due")
    return process


def sessions(shell: Shell) -> tuple[int, int]:
    """How many other sessions the database has, and how many of them have sent LISTEN last."""
    with psycopg.connect(shell.environment["DATABASE_URL"]) as own:
        found = own.execute(SESSIONS).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


def test_a_rest_without_a_connection(shell: Shell) -> None:
    """Nothing is connected until the next known instant; then the task runs, and it rests
    again.
    """
    planned(shell)
    schedule(shell, "mail", "--id", "soon", "--at", "15s")
    process = resting(shell)
    wait_until(lambda: sessions(shell) == (0, 0), "no session")
    wait_until(lambda: "start mail 1 " in lines(shell), "the task")
    wait_until(lambda: sessions(shell) == (0, 0), "no session")
    assert process.signal(signal.SIGTERM).end() == exits.OK
    assert lines(shell) == ["start daily 1 ", "start mail 1 "]


def test_a_rest_that_a_notification_ends(shell: Shell) -> None:
    """Two processes rest on one connection each, and send nothing; a task that is scheduled then
    starts at once, and once.
    """
    planned(shell)
    processes = [resting(shell, "--listen", POD=name) for name in ("a", "b")]
    wait_until(lambda: sessions(shell) == (2, 2), "two sessions that listen")
    schedule(shell, "mail", "--id", "now")
    wait_until(lambda: lines(shell, "start mail"), "the task")
    wait_until(lambda: sessions(shell) == (2, 2), "two sessions that listen")
    ends = [process.signal(signal.SIGTERM).end() for process in processes]
    assert ends == [exits.OK, exits.OK]
    assert len(lines(shell, "start mail")) == 1


def test_a_death_while_another_one_rests(shell: Shell) -> None:
    """It has seen the lease, rests until that ends, and takes over; nobody notifies it."""
    shell.environment["SLOTWISE_MISSED_HEARTBEATS_LIMIT"] = "20"
    planned(shell)
    words = ("--every", "1h", "--listen")
    first = shell.start("tick", *words, TAKES="60", POD="first")
    first.wait_for_output("began")
    second = resting(shell, "--listen", POD="second")
    first.signal(signal.SIGKILL)
    wait_until(lambda: lines(shell, "end"), "the second attempt")
    assert second.signal(signal.SIGTERM).end() == exits.OK
    assert lines(shell) == ["start daily 1 first", "start daily 2 second"]
