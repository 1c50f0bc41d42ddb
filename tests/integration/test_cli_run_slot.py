"""``slotwise run --slot``: pods of a CronJob, as processes, on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from tests.integration.shell import Process, Shell, wait_until
from tests.kit.store import Store

from slotwise import Settings
from slotwise.cli.shared import exits
from slotwise.inspect import Inspection, SlotInfo
from slotwise.spi import Database

JOBS = """
import os, time
from datetime import timedelta
from slotwise import CatchUp, Cron, Disabled, Every, FixedDelay, JobRegistry, Retry, job

DAILY = os.environ["DAILY"]

def marked(ctx):
    with open("log", "a") as log:
        log.write(f"{ctx.name} {ctx.slot.isoformat()} {ctx.attempt} {os.getpid()} {os.environ.get('POD', '')}\\n")

@job(name="daily", schedule=Cron(os.environ.get("CRON", DAILY)), start_within="1d")
def daily(ctx):
    marked(ctx)
    print("began", flush=True)
    deadline = time.monotonic() + float(os.environ.get("TAKES", "0"))
    while time.monotonic() < deadline and not os.path.exists("go"):
        time.sleep(0.02)
        if os.environ.get("POLITE"):
            ctx.check()

@job(name="once", schedule=Cron(DAILY), start_within="1d", on_lost="give_up")
def once(ctx):
    daily.execute(ctx) if hasattr(daily, "execute") else daily(ctx)

@job(name="bad", schedule=Cron(DAILY), start_within="1d")
def bad(ctx):
    marked(ctx)
    raise ValueError("no way")

@job(name="again", schedule=Cron(DAILY), start_within="1d",
    retry=Retry.exponential(max_attempts=3, initial=timedelta(seconds=0.5)))
def again(ctx):
    marked(ctx)
    if ctx.attempt < 3:
        raise ValueError("no way")

@job(name="each", schedule=Every("2s"))
def each(ctx):
    marked(ctx)

@job(name="delay", schedule=FixedDelay("1h"))
def delay(ctx):
    marked(ctx)

@job(name="gpu", schedule=Cron(DAILY), start_within="1d", runs_on={"gpu"})
def gpu(ctx):
    marked(ctx)

@job(name="off", schedule=Disabled())
def off(ctx):
    marked(ctx)

registry = JobRegistry(jobs=[daily, once, bad, again, each, delay, gpu, off])
"""


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    """An application on a fresh PostgreSQL database; leases of 0.9 s.

    Its daily slot is hours away: no test sees two of them, at whatever time of day it runs.
    """
    made = Shell(tmp_path, pg_url)
    hour = (datetime.now(UTC) - timedelta(hours=6)).hour
    made.environment |= {
        "SLOTWISE_APP": "jobs:registry",
        "SLOTWISE_MISSED_HEARTBEATS_LIMIT": "3",
        "DAILY": f"0 {hour} * * *",
    }
    made.write("jobs.py", JOBS)
    yield made
    made.close()


def pod(
    shell: Shell, job: str, *arguments: str, name: str = "", **environment: str
) -> Process:
    return shell.start(
        "run", job, "--slot", "due", *arguments, POD=name, **environment
    )


def runs(shell: Shell) -> list[str]:
    """The starts of handlers, as the handlers wrote them."""
    log = shell.directory / "log"
    return log.read_text().splitlines() if log.exists() else []


def told(process: Process) -> str:
    return "\n".join(event["text"] for event in process.events("text"))


def ledger(url: str, job: str) -> list[SlotInfo]:
    """The slots of a job, the newest first."""
    database = Database(Settings.load(environ={}, database_url=url))
    try:
        return Inspection(lambda: Store(database, {})).slots(job, limit=None)
    finally:
        database.close()


def daily_slot(shell: Shell) -> datetime:
    """The newest slot of the daily jobs."""
    now = datetime.now(UTC)
    found = now.replace(
        hour=int(shell.environment["DAILY"].split()[1]),
        minute=0,
        second=0,
        microsecond=0,
    )
    return found if found <= now else found - timedelta(days=1)


# -- one slot, once -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job", ["daily", pytest.param("once", marks=pytest.mark.extended)]
)
def test_two_pods_at_once(shell: Shell, pg_url: str, job: str) -> None:
    """Of two pods that start at once, also for a job without a row, one runs the slot; the other
    waits for its end.
    """
    pods = [pod(shell, job, name=name, TAKES="60") for name in ("a", "b")]
    wait_until(
        lambda: any("is held by" in told(each) for each in pods), "one pod waits"
    )
    (shell.directory / "go").touch()
    assert [each.end() for each in pods] == [exits.OK, exits.OK], [
        told(each) for each in pods
    ]
    assert len(runs(shell)) == 1
    assert sorted("elsewhere" in told(each) for each in pods) == [False, True]
    (line,) = ledger(pg_url, job)
    assert (line.slot, line.outcome, line.origin, line.attempts) == (
        daily_slot(shell),
        "succeeded",
        "schedule",
        1,
    )


@pytest.mark.extended
def test_done_elsewhere(shell: Shell) -> None:
    """The second pod ends with 0 and a line, without running anything; programs read it as
    JSON.
    """
    assert pod(shell, "daily").end() == exits.OK
    second = shell.run("run", "daily", "--slot", "due", "--json")
    assert (second.returncode, len(runs(shell))) == (exits.OK, 1), second.stderr
    said = json.loads(second.stdout)
    assert (said["outcome"], said["ran_here"], said["left"]) == ("succeeded", 0, None)


@pytest.mark.extended
def test_an_instant(shell: Shell, pg_url: str) -> None:
    """A slot is named by its instant, in any offset."""
    assert pod(shell, "off").end() == exits.OK
    local = daily_slot(shell).astimezone(tz=None).isoformat()
    done = shell.run("run", "daily", "--slot", "due")
    again = shell.run("run", "daily", "--slot", local)
    assert (done.returncode, again.returncode) == (exits.OK, exits.OK)
    assert "succeeded, elsewhere" in again.stderr
    assert len(ledger(pg_url, "daily")) == 1


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.extended
def test_failed(shell: Shell) -> None:
    """A failed slot is 1, for the pod that ran it and for the one that the restart policy starts
    after it.
    """
    first, second = (shell.run("run", "bad", "--slot", "due") for _ in range(2))
    assert (first.returncode, second.returncode) == (exits.FAILED, exits.FAILED)
    assert "ValueError: no way" in first.stderr
    assert "failed, elsewhere" in second.stderr
    assert len(runs(shell)) == 1


@pytest.mark.extended
def test_retries_in_the_pod(shell: Shell, pg_url: str) -> None:
    """Where no worker is live, the pod itself makes the retries that the job declares."""
    done = shell.run("run", "again", "--slot", "due")
    assert done.returncode == exits.OK, done.stderr
    assert [line.split()[2] for line in runs(shell)] == ["1", "2", "3"]
    assert [line.attempts for line in ledger(pg_url, "again")] == [3]


@pytest.mark.extended
def test_retry_is_left_without_waiting(shell: Shell) -> None:
    """With --no-wait, the pod that failed ends with 1; another one that finds the slot waiting
    ends with 0.
    """
    shell.write("jobs.py", JOBS.replace("seconds=0.5", "hours=1"))
    failed, found = (
        shell.run("run", "again", "--slot", "due", "--no-wait") for _ in range(2)
    )
    assert (failed.returncode, found.returncode) == (exits.FAILED, exits.OK), (
        failed.stderr + found.stderr
    )
    assert "attempt 2 is due at" in found.stderr
    assert len(runs(shell)) == 1


def test_a_killed_holder(shell: Shell, pg_url: str) -> None:
    """The pod that waits takes the slot over when the holder was killed: as the next attempt,
    after the lease.
    """
    first = pod(shell, "daily", name="a", TAKES="60")
    first.wait_for_output("began")
    second = pod(shell, "daily", name="b", TAKES="0")
    wait_until(lambda: "is held by" in told(second), "the second pod waits")
    os.kill(first.pid, signal.SIGKILL)
    assert second.end() == exits.OK, told(second)
    assert [(line.split()[2], line.split()[4]) for line in runs(shell)] == [
        ("1", "a"),
        ("2", "b"),
    ]
    (line,) = ledger(pg_url, "daily")
    assert (line.outcome, line.attempts) == ("succeeded", 2)


@pytest.mark.extended
def test_a_killed_holder_that_gives_up(shell: Shell, pg_url: str) -> None:
    """With give_up, the slot does not start again: it ends as lost, and the pod that waits ends
    with 1.
    """
    first = pod(shell, "once", name="a", TAKES="60")
    first.wait_for_output("began")
    second = pod(shell, "once", name="b")
    wait_until(lambda: "is held by" in told(second), "the second pod waits")
    os.kill(first.pid, signal.SIGKILL)
    assert second.end() == exits.FAILED, told(second)
    assert len(runs(shell)) == 1
    assert [line.outcome for line in ledger(pg_url, "once")] == ["lost"]


@pytest.mark.extended
def test_a_paused_holder(shell: Shell, pg_url: str) -> None:
    """A holder that was stopped for longer than its lease: the other completes the slot, and the
    late one settles nothing.
    """
    first = pod(shell, "daily", name="a", TAKES="60")
    first.wait_for_output("began")
    second = pod(shell, "daily", name="b", TAKES="0")
    wait_until(lambda: "is held by" in told(second), "the second pod waits")
    os.kill(first.pid, signal.SIGSTOP)
    assert second.end() == exits.OK, told(second)
    (shell.directory / "go").touch()
    os.kill(first.pid, signal.SIGCONT)
    assert first.end() == exits.OK, told(first)
    (line,) = ledger(pg_url, "daily")
    assert (line.outcome, line.attempts) == ("succeeded", 2)
    assert f":{second.pid}:" in str(line.worker)
    assert f"succeeded, elsewhere: {line.worker}" in told(first)


@pytest.mark.extended
def test_cut_connections(shell: Shell, pg_url: str) -> None:
    """The server ends all sessions while one pod runs the slot and the other waits: both go on,
    and it ran once.
    """
    first = pod(shell, "daily", TAKES="60")
    first.wait_for_output("began")
    second = pod(shell, "daily")
    wait_until(lambda: "is held by" in told(second), "the second pod waits")
    with psycopg.connect(pg_url, autocommit=True) as database:
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    (shell.directory / "go").touch()
    assert (first.end(), second.end()) == (exits.OK, exits.OK), told(first) + told(
        second
    )
    assert len(runs(shell)) == 1
    assert [(line.outcome, line.attempts) for line in ledger(pg_url, "daily")] == [
        ("succeeded", 1)
    ]


@pytest.mark.extended
def test_no_wait(shell: Shell) -> None:
    """With --no-wait, a slot in other hands is left there, with 0 and a line."""
    first = pod(shell, "daily", TAKES="60")
    first.wait_for_output("began")
    second = shell.run("run", "daily", "--slot", "due", "--no-wait")
    assert second.returncode == exits.OK
    assert re.search(
        r"daily .*: running; it is held by \S+; not waiting", second.stderr
    ), second.stderr
    (shell.directory / "go").touch()
    assert first.end() == exits.OK
    coming = (daily_slot(shell) + timedelta(days=1)).isoformat()
    third = shell.run("run", "daily", "--slot", coming, "--no-wait")
    assert third.returncode == exits.OK, third.stderr
    assert "daily" in third.stderr
    assert re.search(
        r": waiting; it has not come, it is \S+Z in the database; not waiting",
        third.stderr,
    ), third.stderr
    assert len(runs(shell)) == 1


@pytest.mark.extended
def test_no_old_slot_for_a_new_job(shell: Shell, pg_url: str) -> None:
    """The first pod of a job runs no slot that came longer ago than an hour: 0, and the command
    that would run it.
    """
    old = (datetime.now(UTC) - timedelta(hours=2)).replace(
        minute=0, second=0, microsecond=0
    )
    shell.write("jobs.py", JOBS.replace(', start_within="1d"', ""))
    done = shell.run("run", "daily", "--slot", "due", CRON=f"0 {old.hour} * * *")
    assert (done.returncode, runs(shell), ledger(pg_url, "daily")) == (
        exits.OK,
        [],
        [],
    ), done.stderr
    at = old.isoformat().replace("+00:00", "Z")
    assert f"to run it: slotwise backfill daily --from {at} --to {at}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


AGE = """
    INSERT INTO scheduled_slots SELECT (jsonb_populate_record(s, jsonb_build_object(
        'slot', s.slot - n * interval '1 day', 'started', s.started - n * interval '1 day',
        'finished', s.finished - n * interval '1 day'))).*
    FROM scheduled_slots s, generate_series(400, 1600) n WHERE s.task_name = 'daily'"""


@pytest.mark.extended
def test_old_history_is_pruned(shell: Shell, pg_url: str) -> None:
    """Where no worker runs, a pod deletes old history after its slot, once an hour, and never the
    newest slot.
    """
    next_slot = ("run", "each", "--slot", "due", "--early", "2s")
    assert pod(shell, "daily").end() == exits.OK
    with psycopg.connect(pg_url, autocommit=True) as database:
        database.execute(AGE)
        assert shell.run(*next_slot).returncode == exits.OK
        assert len(ledger(pg_url, "daily")) > 1_000, (
            "less than an hour ago, the first pod has looked"
        )
        database.execute(
            "UPDATE scheduled_meta SET value = '2020-01-01T00:00:00.000000+00:00' "
            "WHERE key = 'pruning'"
        )
        assert shell.run(*next_slot).returncode == exits.OK
    assert [line.outcome for line in ledger(pg_url, "daily")] == ["succeeded"]


@pytest.mark.extended
def test_history_that_cannot_be_pruned(shell: Shell, pg_url: str) -> None:
    """The slot has succeeded, and so has the pod."""
    with psycopg.connect(pg_url, autocommit=True) as database:
        database.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
            "RAISE 'not today'; END$$;"
            "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON scheduled_meta FOR EACH ROW"
            " WHEN (new.key = 'pruning') EXECUTE FUNCTION refuse()"
        )
    done = shell.run("run", "daily", "--slot", "due")
    assert done.returncode == exits.OK, done.stderr
    assert "the ledger was not pruned, a later run continues: " in done.stderr
    assert "not today" in done.stderr
    assert [line.outcome for line in ledger(pg_url, "daily")] == ["succeeded"]


# -- catch-up runs another slot -------------------------------------------------------------------


def miss(shell: Shell, url: str, job: str, policy: str = "") -> list[datetime]:
    """Plan the job, and move its row into the past: return the three slots that were missed, the
    newest first.
    """
    shell.write(
        "jobs.py", JOBS.replace('start_within="1d"', f'start_within="9d"{policy}')
    )
    newest = daily_slot(shell)
    coming = (newest + timedelta(days=1)).isoformat()
    assert shell.run("run", job, "--slot", coming, "--no-wait").returncode == exits.OK
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(
            "UPDATE scheduled_tasks SET slot = slot - interval '3 days', "
            "watermark = watermark - interval '3 days',"
            " next_slot = next_slot - interval '3 days', execution_time = "
            "execution_time - interval '3 days'"
        )
    return [newest - timedelta(days=days) for days in range(3)]


def at(slot: datetime) -> str:
    return slot.isoformat().replace("+00:00", "Z")


@pytest.mark.extended
def test_another_slot_fails(shell: Shell, pg_url: str) -> None:
    """Catch-up runs the newest missed slot for the one that was named: both are reported, and its
    failure is 1.
    """
    newest, previous, _ = miss(shell, pg_url, "bad")
    done = shell.run("run", "bad", "--slot", "previous")
    assert [line.split()[1] for line in runs(shell)] == [newest.isoformat()]
    assert done.returncode == exits.FAILED, done.stderr
    assert (
        f"bad {at(previous)}: skipped (collapsed); slot {at(newest)} ran for it\n"
        in done.stderr
    )
    assert re.search(rf"bad {at(newest)}: failed in \d+m?s\n", done.stderr), (
        done.stderr
    )
    assert "ValueError: no way" in done.stderr


@pytest.mark.extended
def test_another_slot_is_retried(shell: Shell, pg_url: str) -> None:
    """The pod makes the retries of the slot that ran instead; an instant is treated as
    ``previous`` is.
    """
    newest, _, oldest = miss(shell, pg_url, "again")
    done = shell.run("run", "again", "--slot", at(oldest), "--json")
    assert done.returncode == exits.OK, done.stderr
    assert [tuple(line.split()[1:3]) for line in runs(shell)] == [
        (newest.isoformat(), str(n)) for n in (1, 2, 3)
    ]
    said = json.loads(done.stdout)
    assert (said["slot"], said["outcome"], said["reason"], said["ran_here"]) == (
        at(oldest),
        "skipped",
        "collapsed",
        0,
    )
    (other,) = said["others"]
    assert (other["slot"], other["outcome"], other["ran_here"], other["attempts"]) == (
        at(newest),
        "succeeded",
        3,
        3,
    )


@pytest.mark.extended
def test_another_slot_fails_as_json(shell: Shell, pg_url: str) -> None:
    """Programs read the failure of the other slot in ``others``."""
    newest, _, _ = miss(shell, pg_url, "bad")
    done = shell.run("run", "bad", "--slot", "previous", "--json")
    assert done.returncode == exits.FAILED, done.stderr
    (other,) = json.loads(done.stdout)["others"]
    assert (other["slot"], other["outcome"]) == (at(newest), "failed")
    assert "ValueError: no way" in other["error"]


@pytest.mark.extended
def test_older_slots_fail(shell: Shell, pg_url: str) -> None:
    """With ``CatchUp.all`` the older slots run first: each is reported, the oldest first."""
    slots = miss(shell, pg_url, "bad", policy=", catch_up=CatchUp.all()")
    done = shell.run("run", "bad", "--slot", "due")
    assert done.returncode == exits.FAILED
    assert re.findall(r"^bad (\S+): failed in", done.stderr, re.MULTILINE) == [
        at(slot) for slot in reversed(slots)
    ]


@pytest.mark.extended
def test_another_slot_is_drained(shell: Shell, pg_url: str) -> None:
    """A stop while another slot runs hands it back, and the status is that of the signal."""
    newest, _, _ = miss(shell, pg_url, "daily")
    first = shell.start(
        "run",
        "daily",
        "--slot",
        "previous",
        TAKES="60",
        POLITE="1",
        SLOTWISE_SHUTDOWN_GRACE="0s",
    )
    first.wait_for_output("began")
    assert first.stop() == exits.TERMINATED, told(first)
    assert f"daily {at(newest)}: waiting; this process was stopped" in told(first)


# -- stops ----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_drained_pod(shell: Shell, pg_url: str) -> None:
    """SIGTERM drains like a worker: the slot is handed back for another attempt, and the status is
    not 0.
    """
    first = pod(
        shell, "daily", name="a", TAKES="60", POLITE="1", SLOTWISE_SHUTDOWN_GRACE="0s"
    )
    first.wait_for_output("began")
    assert first.stop() == exits.TERMINATED, told(first)
    (line,) = ledger(pg_url, "daily")
    assert (line.outcome, line.reason, line.finished) == (
        "cancelled",
        "shutdown",
        None,
    )
    assert pod(shell, "daily", name="b").end() == exits.OK
    assert [line.split()[4] for line in runs(shell)] == ["a", "b"]


@pytest.mark.extended
def test_a_drained_pod_that_gives_up(shell: Shell, pg_url: str) -> None:
    """With give_up, no other attempt follows: the slot ends as cancelled, and the pod with 1."""
    first = pod(shell, "once", TAKES="60", POLITE="1", SLOTWISE_SHUTDOWN_GRACE="0s")
    first.wait_for_output("began")
    assert first.stop() == exits.FAILED, told(first)
    (line,) = ledger(pg_url, "once")
    assert (line.outcome, line.reason, line.finished is None) == (
        "cancelled",
        "shutdown",
        False,
    )


@pytest.mark.extended
def test_a_pod_that_may_finish(shell: Shell, pg_url: str) -> None:
    """Within shutdown_grace the handler finishes, and the status is that of the slot."""
    first = pod(shell, "daily", TAKES="60")
    first.wait_for_output("began")
    first.signal(signal.SIGTERM)
    wait_until(lambda: "draining" in told(first), "the drain")
    (shell.directory / "go").touch()
    assert first.end() == exits.OK, told(first)
    assert [line.outcome for line in ledger(pg_url, "daily")] == ["succeeded"]


@pytest.mark.extended
def test_a_deaf_handler(shell: Shell, pg_url: str) -> None:
    """A handler that does not stop: its slot is handed back as the last write, and the process
    ends.
    """
    first = pod(shell, "daily", TAKES="60", SLOTWISE_SHUTDOWN_GRACE="0s")
    first.wait_for_output("began")
    assert first.stop() == exits.TERMINATED, told(first)
    (line,) = ledger(pg_url, "daily")
    assert (line.outcome, line.reason, line.finished) == (
        "cancelled",
        "shutdown",
        None,
    )


@pytest.mark.extended
def test_a_stop_while_waiting(shell: Shell) -> None:
    """A pod that holds nothing ends at once."""
    first = pod(shell, "daily", TAKES="60")
    first.wait_for_output("began")
    second = pod(shell, "daily")
    wait_until(lambda: "is held by" in told(second), "the second pod waits")
    assert second.stop() == exits.TERMINATED
    assert "this process holds nothing" in told(second)


# -- beside workers -------------------------------------------------------------------------------


@pytest.mark.extended
def test_beside_a_pool(shell: Shell, pg_url: str) -> None:
    """Beside live workers the pod competes for a due slot, and does not wait for one that a worker
    holds.
    """
    worker = shell.worker("--only", "each,daily")
    worker.wait_for("worker_start")
    for _ in range(4):
        done = shell.run("run", "each", "--slot", "due", "--early", "2s")
        assert done.returncode == exits.OK, done.stderr
    assert worker.stop() == exits.OK
    starts = [tuple(line.split()[:2]) for line in runs(shell)]
    assert len(starts) == len(set(starts)), "no slot started twice"
    lines = [line for line in ledger(pg_url, "each") if line.attempts]
    assert {line.outcome for line in lines} == {"succeeded"}
    assert len(lines) == len(starts)


@pytest.mark.extended
def test_a_live_worker_holds_the_slot(shell: Shell, pg_url: str) -> None:
    """The worker finishes the slot, and others of its pool would take it over: the pod ends
    with 0.
    """
    shell.environment["CRON"] = "* * * * * *"
    worker = shell.worker("--only", "daily", TAKES="60")
    worker.wait_for_output("began")
    (slot,) = [
        line.slot for line in ledger(pg_url, "daily") if line.outcome == "running"
    ]
    done = shell.run("run", "daily", "--slot", slot.isoformat())
    assert done.returncode == exits.OK
    assert "and a live worker can finish it" in done.stderr
    (shell.directory / "go").touch()
    assert worker.stop() == exits.OK


@pytest.mark.extended
def test_a_worker_takes_over(shell: Shell, pg_url: str) -> None:
    """A worker of the pool takes over the slot of a killed pod: it is the same row and the same
    ledger.
    """
    first = pod(shell, "daily", name="a", TAKES="60")
    first.wait_for_output("began")
    worker = shell.worker("--only", "daily", POD="worker", TAKES="0")
    worker.wait_for("worker_start")
    os.kill(first.pid, signal.SIGKILL)
    worker.wait_for("settled", job="daily")
    assert worker.stop() == exits.OK
    assert [(line.split()[2], line.split()[4]) for line in runs(shell)] == [
        ("1", "a"),
        ("2", "worker"),
    ]


# -- clocks ---------------------------------------------------------------------------------------


@pytest.mark.extended
def test_an_early_clock(shell: Shell, pg_url: str) -> None:
    """The pod starts before its slot has come by the database's clock: it waits for that, and runs
    no older one.
    """
    coming = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=15)
    shell.environment["CRON"] = f"{coming.second} {coming.minute} {coming.hour} * * *"
    early = pod(shell, "daily", "--early", "60s")
    assert early.end() == exits.OK, told(early)
    assert "has not come yet: waiting" in told(early)
    assert [line.split()[1] for line in runs(shell)] == [coming.isoformat()]
    (line,) = ledger(pg_url, "daily")
    assert line.started is not None
    assert line.slot == coming <= line.started


@pytest.mark.extended
def test_an_early_clock_with_an_older_slot(shell: Shell) -> None:
    """If the slot before the coming one is still to start, both run: no later process is one slot
    behind.
    """
    shell.environment["CRON"] = "*/10 * * * * *"
    assert pod(shell, "daily").end() == exits.OK
    first = datetime.fromisoformat(runs(shell)[0].split()[1])
    wait_until(
        lambda: datetime.now(UTC) > first + timedelta(seconds=10),
        "the next slot passes without a pod",
    )
    assert pod(shell, "daily", "--early", "10s").end() == exits.OK
    slots = [
        (datetime.fromisoformat(line.split()[1]) - first).total_seconds()
        for line in runs(shell)
    ]
    assert slots == [0, 10, 20]


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (
            ["daily", "--slot", "2026-01-01T00:00:01Z"],
            1,
            "2026-01-01T00:00:01Z is no slot of job 'daily'; its nearest slots "
            "are 2026-01-01T00:00:00Z and "
            "2026-01-02T00:00:00Z",
        ),
        (
            ["off", "--slot", "2026-01-01T00:00:01Z"],
            1,
            "is no slot of job 'off'; its schedule, -, has no slots",
        ),
        (["daily", "--slot", "2999-01-01T00:00:00Z"], 1, "has not come, it is 20"),
        (
            ["daily", "--slot", "2020-01-01T00:00:00Z"],
            1,
            "to run it: slotwise backfill daily --from 2020-01-01T00:00:00Z --to "
            "2020-01-01T00:00:00Z",
        ),
        (
            ["delay", "--slot", "due"],
            1,
            "has no slots of its own; leave out --slot to run it now",
        ),
        (
            ["gpu", "--slot", "due"],
            1,
            "job 'gpu' runs on gpu, which this process does not offer; set SLOTWISE_TAGS=",
        ),
        (
            ["daily", "--slot", "soon"],
            2,
            "'soon' is neither due, nor previous, nor an instant",
        ),
        (["daily", "--early", "3s"], 2, "add --slot due"),
        (["daily", "--no-wait"], 2, "add --slot due"),
        (["nobody", "--slot", "due"], 1, "no job 'nobody' in this registry"),
    ],
)
def test_refusals(shell: Shell, arguments: list[str], status: int, words: str) -> None:
    """One line with value, place and cure; nothing ran."""
    done = shell.run("run", *arguments, DAILY="0 0 * * *")
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert runs(shell) == []


@pytest.mark.extended
@pytest.mark.parametrize("pause", [["pause", "daily"], ["pause", "--all", "--yes"]])
def test_paused(shell: Shell, pg_url: str, pause: list[str]) -> None:
    """A paused job starts no slot that is due, and the pod ends with 0 and says so; the same if
    all is paused.
    """
    miss(shell, pg_url, "daily")
    assert shell.ask(*pause).returncode == exits.OK
    done = shell.run("run", "daily", "--slot", "due")
    assert (done.returncode, runs(shell)) == (exits.OK, [])
    assert "paused" in done.stderr
    assert "it starts no slot" in done.stderr


@pytest.mark.extended
def test_nothing_is_due(shell: Shell) -> None:
    """A job without any slot so far: 0, and a line."""
    done = shell.run("run", "off", "--slot", "due")
    assert (done.returncode, done.stderr) == (
        exits.OK,
        "off: no_slot; no slot has come yet\n",
    )
