"""Crontabs on a cluster: real worker processes, a real PostgreSQL, and stand-ins that write down
what ran.
"""

from __future__ import annotations

import itertools
import json
import os
import pwd
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from tests.integration.shell import Process, Shell, alive, wait_until
from tests.kit.store import Store
from tests.unit.test_crontab import SYSTEM

from slotwise import Settings
from slotwise.cli.shared import exits
from slotwise.contrib.crontab import read_crontabs
from slotwise.inspect import Inspection, SlotInfo
from slotwise.spi import Database

ME = pwd.getpwuid(os.geteuid()).pw_name

#: A shell that runs nothing: it writes down for whom, for which slot, and what it was told to run.
STAND_IN = """#!/bin/sh
printf "%s\\n" "$SLOTWISE_JOB $SLOTWISE_SLOT $(id -un) $2" >> {record}
"""


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    """A directory, a database with tables, and no application."""
    made = Shell(tmp_path, pg_url)
    made.environment.pop("SLOTWISE_THREADS", None)
    yield made
    made.close()


def crontab(shell: Shell, text: str) -> Path:
    """A file that only its owner can write: root runs no other."""
    file = shell.write("crontab", text)
    file.chmod(0o644)
    return file


def record_all(shell: Shell, text: str) -> tuple[Path, Path]:
    """A system crontab whose lines are written down instead of run; and where."""
    record = shell.write("record", "")
    stand_in = shell.write("stand-in", STAND_IN.format(record=record))
    stand_in.chmod(0o755)
    text = (
        text.replace("SHELL=/bin/sh", f"SHELL={stand_in}")
        .replace("\troot", f"\t{ME}")
        .replace(" root", f" {ME}")
    )
    return crontab(shell, text), record


def worker(shell: Shell, *arguments: str) -> Process:
    """One that works by now."""
    process = shell.worker("--crontab", "crontab", *arguments)
    process.wait_for("worker_start")
    return process


def make_due(url: str, file: Path, *, system: bool = False) -> dict[str, datetime]:
    """Put each waiting line back to its latest slot before now, as if nobody had worked since; the
    slots.
    """
    now = datetime.now(UTC)
    slots: dict[str, datetime] = {}
    with psycopg.connect(url) as connection:
        for entry in read_crontabs(
            file, format="system" if system else "user"
        ).entries:
            slot = entry.schedule.latest_before(now)
            assert slot is not None
            done = connection.execute(
                "UPDATE scheduled_tasks SET execution_time = %s, slot = %s, next_slot = %s"
                " WHERE task_name = %s AND NOT picked",
                (slot, slot, entry.schedule.next_after(slot), entry.name),
            )
            assert done.rowcount == 1
            slots[entry.name] = slot
    return slots


def ledger(url: str, job: str) -> list[SlotInfo]:
    database = Database(Settings.load(environ={}, database_url=url))
    try:
        return Inspection(lambda: Store(database, {})).slots(job, limit=None)
    finally:
        database.close()


def runs(record: Path) -> Counter[tuple[str, str]]:
    """How often each job ran in each slot."""
    return Counter(
        (line.split(" ")[0], line.split(" ")[1])
        for line in record.read_text().splitlines()
    )


@pytest.mark.extended
def test_three_workers_run_each_line_once_per_slot(shell: Shell, pg_url: str) -> None:
    """The lines of packages: each runs once, on one of three, as its user, with the command that
    stands there.
    """
    file, record = record_all(shell, SYSTEM)
    options = ["--crontab-format", "system"]
    workers = [worker(shell, *options) for _ in range(3)]
    slots = make_due(pg_url, file, system=True)
    wait_until(lambda: len(runs(record)) >= len(slots), "a run of each line")
    assert [process.stop() for process in workers] == [exits.OK] * 3
    ran = runs(record)
    assert set(ran.values()) == {1}
    assert set(ran) >= {
        (name, slot.isoformat().replace("+00:00", "Z")) for name, slot in slots.items()
    }
    entries = {
        entry.name: entry for entry in read_crontabs(file, format="system").entries
    }
    written = [line.split(" ", 3) for line in record.read_text().splitlines()]
    assert {(name, user, command) for name, _, user, command in written} == {
        (entry.name, ME, entry.command) for entry in entries.values()
    }
    for name in entries:
        assert Counter(
            line.outcome for line in ledger(pg_url, name) if line.slot == slots[name]
        ) == {"succeeded": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_workers_share_every_minute(shell: Shell) -> None:
    """By the clock, not by hand: a dozen lines for every minute, three minutes long, none twice,
    none left out.
    """
    text = "SHELL=/bin/sh\n" + "".join(
        f"* * * * * /bin/line-{number}\n" for number in range(12)
    )
    _, record = record_all(shell, text)
    workers = [worker(shell) for _ in range(3)]
    minutes: set[str] = set()

    def three_minutes_are_over() -> bool:
        ran = runs(record)
        minutes.update(slot for _, slot in ran)
        return len(minutes) >= 3 and len(ran) >= 36

    for _ in range(10):
        try:
            wait_until(three_minutes_are_over, "three minutes")
            break
        except AssertionError:
            continue
    assert [process.stop() for process in workers] == [exits.OK] * 3
    ran = runs(record)
    assert set(ran.values()) == {1}
    seen = sorted({datetime.fromisoformat(slot) for _, slot in ran})
    assert [slot.second for slot in seen] == [0] * len(seen)
    assert {after - before for before, after in itertools.pairwise(seen)} == {
        timedelta(minutes=1)
    }
    assert len(ran) == 12 * len(seen) >= 36


@pytest.mark.extended
def test_a_worker_of_several_processes(shell: Shell, pg_url: str) -> None:
    """Its children read the crontab themselves, as it was named to their parent."""
    file, record = record_all(
        shell, "SHELL=/bin/sh\nSLOTWISE_TIMEOUT=1m\n@hourly root a\n@daily root b\n"
    )
    process = shell.worker(
        "--crontab", "crontab", "--crontab-format=system", "--processes", "2"
    )
    for _ in range(2):
        process.wait_for("worker_start")
    slots = make_due(pg_url, file, system=True)
    wait_until(lambda: len(runs(record)) >= 2, "a run of each line")
    assert process.stop() == exits.OK
    assert set(runs(record)) == {
        (name, slot.isoformat().replace("+00:00", "Z")) for name, slot in slots.items()
    }


@pytest.mark.extended
def test_one_line_in_the_foreground(shell: Shell, pg_url: str) -> None:
    """`slotwise run` takes a crontab as a worker does."""
    file = crontab(shell, "@hourly echo ran; exit 3\n")
    (entry,) = read_crontabs(file).entries
    done = shell.run("run", entry.name, "--crontab", "crontab")
    assert done.returncode == exits.FAILED
    assert "exit status 3; its last line: ran" in done.stderr


@pytest.mark.extended
def test_application_and_crontab_together(shell: Shell, pg_url: str) -> None:
    """One worker can run both; what commands get of its environment is named."""
    shell.write(
        "jobs.py",
        "from slotwise import Disabled, JobRegistry, job\n"
        "@job(name='tick', schedule=Disabled())\n"
        "def tick(ctx): ...\n"
        "registry = JobRegistry(jobs=[tick])\n",
    )
    file = crontab(shell, "@hourly echo ${SECRET-none} ${GIVEN-none} $HOME\n")
    process = shell.worker(
        "--app",
        "jobs",
        "--crontab",
        "crontab",
        "--crontab-env",
        "GIVEN",
        SECRET="1",
        GIVEN="2",
        HOME="/nowhere",
    )
    process.wait_for("worker_start", jobs=2)
    make_due(pg_url, file)
    told = process.wait_for("log", logger="slotwise.job")
    assert told["message"] == f"none 2 {pwd.getpwuid(os.geteuid()).pw_dir}"
    assert process.stop() == exits.OK


def test_output_exit_status_and_input(shell: Shell, pg_url: str) -> None:
    """Lines go to the log with job and slot while the command runs; the ledger has the end of a
    failed one's.
    """
    file = crontab(
        shell, "@hourly tr a-z A-Z; echo oops >&2; exit 7%hello%50\\% off\n"
    )
    process = worker(shell)
    ((name, slot),) = make_due(pg_url, file).items()
    facts = {
        "logger": "slotwise.job",
        "job": name,
        "slot": slot.isoformat().replace("+00:00", "Z"),
        "attempt": 1,
    }
    for text in ("HELLO", "50% OFF", "oops"):
        process.wait_for("log", message=text, **facts)
    process.wait_for("settled", job=name)
    assert process.stop() == exits.OK
    (line,) = [line for line in ledger(pg_url, name) if line.slot == slot]
    assert line.outcome == "failed"
    assert line.error is not None
    assert line.error.splitlines()[-3:] == ["  HELLO", "  50% OFF", "  oops"]
    shown = shell.ask("slots", name)
    assert "exit status 7; its last line: oops" in shown.stdout


@pytest.mark.extended
def test_a_timeout_of_the_crontab(shell: Shell, pg_url: str) -> None:
    """A variable above the lines; the whole group is gone when the attempt ends."""
    file = crontab(
        shell, "SLOTWISE_TIMEOUT=500ms\n@hourly sleep 300 & echo $!; wait\n"
    )
    process = worker(shell)
    ((name, slot),) = make_due(pg_url, file).items()
    child = int(process.wait_for("log", logger="slotwise.job")["message"])
    process.wait_for("settled", job=name, outcome="failed")
    assert not alive(child)
    assert process.stop() == exits.OK
    (line,) = [line for line in ledger(pg_url, name) if line.slot == slot]
    assert "timed out after 500ms" in str(line.error)


@pytest.mark.extended
def test_shutdown_ends_commands(shell: Shell, pg_url: str) -> None:
    """At a second SIGTERM commands are asked to end; the worker ends well, and the slot runs again
    on the next one.
    """
    file = crontab(shell, "@hourly echo $$; exec sleep 300\n")
    process = worker(shell)
    ((name, slot),) = make_due(pg_url, file).items()
    pid = int(process.wait_for("log", logger="slotwise.job")["message"])
    process.signal(signal.SIGTERM).wait_for("drain_begin")
    assert alive(pid)
    assert process.signal_again(signal.SIGTERM).end() == exits.OK
    assert not alive(pid)
    (line,) = [line for line in ledger(pg_url, name) if line.slot == slot]
    assert (line.outcome, line.reason) == ("cancelled", "shutdown")
    after = worker(shell)
    again = after.wait_for("log", logger="slotwise.job", job=name)
    assert (again["slot"], again["attempt"]) == (
        slot.isoformat().replace("+00:00", "Z"),
        2,
    )
    after.signal(signal.SIGTERM).wait_for("drain_begin")
    after.signal_again(signal.SIGTERM).end()


@pytest.mark.extended
def test_a_killed_workers_commands_end_and_run_elsewhere(
    shell: Shell, pg_url: str
) -> None:
    """SIGKILL: the command ends with its worker, and the slot runs again on the other one."""
    file = crontab(shell, "@hourly echo $$; exec sleep 300\n")
    workers = [worker(shell), worker(shell)]
    ((name, slot),) = make_due(pg_url, file).items()

    def holders() -> list[Process]:
        return [
            process for process in workers if list(process.events("handler_start"))
        ]

    wait_until(holders, "the command to start")
    (first,) = holders()
    (second,) = [process for process in workers if process is not first]
    pid = int(first.wait_for("log", logger="slotwise.job")["message"])
    first.signal(signal.SIGKILL).end()
    wait_until(lambda: not alive(pid), "the end of the command")
    again = second.wait_for("log", logger="slotwise.job", job=name)
    assert (again["slot"], again["attempt"]) == (
        slot.isoformat().replace("+00:00", "Z"),
        2,
    )
    second.signal(signal.SIGTERM).wait_for("drain_begin")
    second.signal_again(signal.SIGTERM).end()


@pytest.mark.extended
def test_lines_that_cannot_run(shell: Shell) -> None:
    """A worker says all of them, with place and cure, and does not start; or runs the others, and
    says it.
    """
    crontab(shell, "CRON_TZ=UTC\n@reboot a\n61 * * * * b\n@daily c\n")
    done = shell.run("worker", "--crontab", "crontab")
    assert done.returncode == exits.FAILED
    assert [line.split(" ")[0] for line in done.stderr.splitlines()] == [
        "crontab:2:",
        "crontab:3:",
        "error:",
    ]
    process = worker(shell, "--skip-bad-lines")
    told = [
        event["message"].split(" ")[0]
        for event in process.seen
        if event.get("logger") == "slotwise.crontab" and event["level"] == "WARNING"
    ]
    assert told == ["crontab:2:", "crontab:3:"]
    (listed,) = json.loads(shell.ask("jobs", "--json").stdout)
    assert listed["job"].startswith("c-")
    assert process.stop() == exits.OK


def test_neither_application_nor_crontab(shell: Shell) -> None:
    """A worker without either has nothing to run."""
    done = shell.run("worker")
    assert (done.returncode, "no application was named" in done.stderr) == (
        exits.FAILED,
        True,
    )
