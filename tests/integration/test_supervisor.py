"""``slotwise worker --processes N``: fresh interpreters that are restarted, stopped, and never
left behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.integration.shell import Process, Shell, alive, wait_until
from tests.kit.store import Store

from slotwise import Settings
from slotwise.cli.shared import exits
from slotwise.engine.process.tuning import ECHO
from slotwise.inspect import Inspection, SlotInfo
from slotwise.spi import Database

JOBS = """
import os, pathlib, sys, time
from slotwise import Every, JobRegistry, job

count = pathlib.Path("starts")
with count.open("a") as file:
    file.write(f"{os.getpid()} {'lifeline' in ' '.join(sys.argv)}\\n")
if os.environ.get("DIE") == "early" and len(count.read_text().splitlines()) > 1:
    os._exit(9)

@job(name="tick", schedule=Every(os.environ.get("EVERY", "1s")), max_lost=2)
def tick(ctx):
    if os.environ.get("DIE") == "late":
        os._exit(9)

@job(name="polite", schedule=Every("1s"))
def polite(ctx):
    ctx.wait("60s")
    ctx.check()

@job(name="deaf", schedule=Every("1s"))
def deaf(ctx):
    time.sleep(60)

@job(name="brief", schedule=Every("1s"))
def brief(ctx):
    ctx.wait("4s")
    ctx.check()

registry = JobRegistry(jobs=[tick, polite, deaf, brief], only=os.environ.get("ONLY", "tick"))
two = JobRegistry(jobs=[tick], processes=2)
"""


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    """An application that counts its starts, on a fresh PostgreSQL database."""
    made = Shell(tmp_path, pg_url)
    made.environment["SLOTWISE_APP"] = "jobs:registry"
    made.write("jobs.py", JOBS)
    yield made
    made.close()


@pytest.fixture
def store(pg_url: str) -> Iterator[Store]:
    """The same tables, from here."""
    database = Database(Settings.load(environ={}, database_url=pg_url))
    yield Store(database, {})
    database.close()


def ledger(store: Store, job: str) -> list[SlotInfo]:
    return Inspection(lambda: store).slots(job, limit=None)


def up(pool: Process, count: int) -> list[int]:
    """The processes of this many workers, once all have started."""
    return [
        int(pool.wait_for("worker_start")["worker"].split(":")[1])
        for _ in range(count)
    ]


@pytest.mark.extended
def test_pool(shell: Shell) -> None:
    """As many children as wanted, each an interpreter of its own; SIGTERM drains all, and all have
    ended.
    """
    pool = shell.worker("--processes", "3")
    pids = up(pool, 3)
    assert sorted(pool.children()) == sorted(pids)
    starts = (shell.directory / "starts").read_text().split("\n")[:-1]
    assert sorted(int(line.split()[0]) for line in starts) == sorted(pids), (
        "the supervisor imports nothing"
    )
    assert pool.stop() == exits.OK
    assert not any(map(alive, pids))
    assert len(list(pool.events("drain_end"))) == 3


@pytest.mark.extended
def test_processes_in_code(shell: Shell) -> None:
    """The number of processes may stand in the code, too."""
    pool = shell.worker("--app", "jobs:two")
    assert len(set(up(pool, 2))) == 2
    assert pool.stop() == exits.OK


@pytest.mark.extended
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(
            pytest.param(one, marks=pytest.mark.extended)
            for one in (signal.SIGTERM, signal.SIGSEGV)
        ),
    ],
    ids=lambda number: number.name,
)
def test_restart(shell: Shell, number: signal.Signals) -> None:
    """A child that ends, however, is started again, soon and as the same place."""
    pool = shell.worker("--processes", "2")
    first, _ = up(pool, 2)
    os.kill(first, number)
    ended = pool.wait_for("child_exit", pid=first)
    assert ("status 0" if number == signal.SIGTERM else number.name) in ended[
        "message"
    ]
    assert ended["pause"] < 1
    (again,) = up(pool, 1)
    assert again != first
    assert pool.stop() == exits.OK


@pytest.mark.extended
def test_dying_at_once(shell: Shell) -> None:
    """Children that keep dying are started again after pauses that grow; the others work on."""
    pool = shell.worker("--processes", "2", DIE="early")
    up(pool, 1)
    pauses = [pool.wait_for("child_exit")["pause"] for _ in range(4)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 2 * pauses[0]
    assert len(pool.children()) <= 2
    pool.wait_for("settled", job="tick")
    assert pool.stop() == exits.OK


@pytest.mark.extended
def test_poison(shell: Shell, store: Store) -> None:
    """A handler that takes its process down: started again, and the slot is given up in the
    end.
    """
    pool = shell.worker(
        "--processes",
        "2",
        DIE="late",
        EVERY="1d",
        SLOTWISE_MISSED_HEARTBEATS_LIMIT="3",
    )
    up(pool, 2)
    with store.transaction() as connection:
        tasks = store.tables.tasks
        connection.execute(
            tasks.update().values(execution_time=datetime.now(UTC), next_slot=None)
        )
    pool.wait_for("reaped", job="tick", outcome="dead")
    (line,) = ledger(store, "tick")
    assert (line.outcome, line.attempts) == ("dead", 2)
    assert pool.stop() == exits.OK


@pytest.mark.extended
def test_second_signal(shell: Shell, store: Store) -> None:
    """The second one is passed on, too: what runs is told to stop."""
    pool = shell.worker(
        "--processes", "2", SLOTWISE_SHUTDOWN_GRACE="1h", ONLY="polite"
    )
    pool.wait_until_seen("worker_start", 2)
    pool.wait_until_seen("handler_start", job="polite")
    pool.signal(signal.SIGINT).wait_for("drain_begin", running=1)
    assert pool.signal_again(signal.SIGINT).end() == exits.OK
    assert "cancelled" in {line.outcome for line in ledger(store, "polite")}


@pytest.mark.extended
def test_a_stop_of_the_whole_group_drains(shell: Shell, store: Store) -> None:
    """systemd signals the supervisor and its children at once: one request for each, and what runs
    may finish.
    """
    pool = shell.worker("--processes", "2", ONLY="brief")
    pids = up(pool, 2)
    pool.wait_until_seen("handler_start", job="brief")
    for pid in (*pids, pool.pid):
        os.kill(pid, signal.SIGTERM)
    assert pool.end() == exits.OK
    assert {line.outcome for line in ledger(store, "brief")} <= {
        "succeeded",
        "skipped",
    }
    assert "succeeded" in {line.outcome for line in ledger(store, "brief")}


@pytest.mark.extended
def test_a_second_stop_of_the_whole_group_cancels(shell: Shell, store: Store) -> None:
    """Later than a second it is another request, for the supervisor as for its children."""
    pool = shell.worker(
        "--processes", "2", SLOTWISE_SHUTDOWN_GRACE="60s", ONLY="polite"
    )
    pids = up(pool, 2)
    pool.wait_until_seen("handler_start", job="polite")
    for pid in (*pids, pool.pid):
        os.kill(pid, signal.SIGTERM)
    pool.wait_until_seen("drain_begin", 2)
    time.sleep(ECHO.total_seconds() + 0.1)
    for pid in [pid for pid in (*pids, pool.pid) if alive(pid)]:
        os.kill(pid, signal.SIGTERM)
    assert pool.end() == exits.OK
    assert "cancelled" in {line.outcome for line in ledger(store, "polite")}


@pytest.mark.extended
def test_many_signals(shell: Shell) -> None:
    """Signals that reach children which have drained, and are ending, do not count as their
    death.
    """
    pool = shell.worker("--processes", "3")
    up(pool, 3)
    pool.signal(signal.SIGTERM).wait_for("drain_end")
    assert pool.signal(signal.SIGTERM).end() == exits.OK


@pytest.mark.extended
def test_unfinished(shell: Shell) -> None:
    """A handler that does not listen: the status says that something was handed back."""
    pool = shell.worker("--processes", "2", SLOTWISE_SHUTDOWN_GRACE="0s", ONLY="deaf")
    pool.wait_until_seen("worker_start", 2)
    pool.wait_until_seen("handler_start", job="deaf")
    assert pool.stop() == exits.UNFINISHED


@pytest.mark.extended
def test_frozen_child(shell: Shell) -> None:
    """A child that cannot react is killed at the third signal."""
    pool = shell.worker("--processes", "2")
    pids = up(pool, 2)
    os.kill(pids[0], signal.SIGSTOP)
    pool.signal(signal.SIGTERM)
    pool.wait_for("drain_end")
    assert alive(pids[0])
    pool.signal_again(signal.SIGTERM)
    pool.wait_for("supervisor_stop")
    pool.signal_again(signal.SIGTERM)
    assert pool.end() == exits.UNFINISHED
    assert not any(map(alive, pids))


@pytest.mark.extended
def test_supervisor_dies(shell: Shell, store: Store) -> None:
    """Without their supervisor the children drain: what runs may finish, and nobody is left
    behind.
    """
    pool = shell.worker(
        "--processes", "2", SLOTWISE_SHUTDOWN_GRACE="1s", ONLY="polite"
    )
    pids = up(pool, 2)
    pool.wait_until_seen("handler_start", job="polite")
    pool.signal(signal.SIGKILL)
    wait_until(lambda: not any(map(alive, pids)), "the children have ended")
    assert pool.end() == -signal.SIGKILL
    assert len(list(pool.events("drain_end"))) == 2
    assert not Inspection(lambda: store).workers()


@pytest.mark.extended
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name
)
def test_terminal(shell: Shell, number: int) -> None:
    """A terminal's signal reaches the whole group; each child still gets it once: nothing is
    cancelled.
    """
    pool = shell.worker("--processes", "2")
    up(pool, 2)
    os.killpg(pool.pid, number)
    assert pool.end() == exits.OK
    assert not any("cancelling" in event.get("message", "") for event in pool.seen)


@pytest.mark.extended
def test_stop_while_starting(shell: Shell) -> None:
    """Stopped before any child is up: it ends in order all the same."""
    pool = shell.worker("--processes", "3")
    pool.wait_for("child_start")
    assert pool.stop() == exits.OK
    assert not pool.children()


@pytest.mark.extended
def test_revision(shell: Shell, store: Store) -> None:
    """A child that is started again after a newer deploy has planned does not put the old schedule
    back.
    """
    old = shell.worker("--processes", "1", "--processes", "2", EVERY="1d")
    first, _ = up(old, 2)
    new = shell.worker("--processes", "2", EVERY="2d")
    changed = new.wait_for("planned", change="changed")
    up(new, 2)
    os.kill(first, signal.SIGKILL)
    old.wait_for("child_exit", pid=first)
    assert old.wait_for("planned")["change"] == "outdated"
    up(old, 1)
    assert text_of(store) == changed["schedule"]
    assert old.stop() == new.stop() == exits.OK


def text_of(store: Store) -> str | None:
    with store.transaction() as connection:
        return connection.scalar(sa.select(store.tables.tasks.c.schedule))


@pytest.mark.extended
def test_given_revision(shell: Shell, store: Store) -> None:
    """A revision that is given is the one of all children."""
    pool = shell.worker("--processes", "2", "--revision", "42")
    up(pool, 2)
    with store.transaction() as connection:
        assert (
            connection.scalar(sa.select(store.tables.tasks.c.plan))["revision"] == "42"
        )
    assert pool.stop() == exits.OK


@pytest.mark.extended
def test_clean_lifetime(shell: Shell, store: Store) -> None:
    """A pool of two runs each slot once; a drain in the middle loses none. One that is busy may be
    late for some.
    """
    pool = shell.worker("--processes", "2")
    up(pool, 2)
    for _ in range(3):
        pool.wait_for("settled", job="tick")
    assert pool.stop() == exits.OK
    lines = ledger(store, "tick")
    ended = {
        (line.outcome, line.attempts)
        for line in lines
        if line.reason not in ("collapsed", "overlap")
    }
    assert ended == {("succeeded", 1)}
    assert all(
        after.slot - before.place == timedelta(seconds=1)
        for after, before in pairwise(lines)
    )
