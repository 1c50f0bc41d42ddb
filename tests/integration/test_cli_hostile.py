"""Rows that somebody else has written: no name moves the cursor or forges a line, and no bad row
hides the others.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.databases import provision
from tests.integration.test_cli_listings import add
from tests.kit.store import Store

from slotwise import Calendar, Cron, JobContext, Settings, TaskContext, job, task
from slotwise.cli.entry import COMMANDS, status
from slotwise.cli.shared import exits
from slotwise.spi import Database
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
#: Clears the screen, forges a line, turns the direction of what follows, rings, moves up, ends a
#: line as Unicode does.
HOSTILE = "job\x1b[2J\nerror: forged\r\u202egnp.exe\u2066\x07\x1b]0;title\x07\u2028\x9b1A\u200b"
#: What our own colours and rich's are made of.
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def hostile_rows(store: Store) -> None:
    """A job, a task, their ends, a gap, a worker and an operation, with hostile texts wherever a
    text can be.
    """
    now = store.now()
    plan = {"runs_on": [HOSTILE], "revision": HOSTILE}
    row = {
        "task_name": HOSTILE,
        "last_error": f"ValueError: {HOSTILE}",
        "picked_by": None,
    }
    add(
        store,
        "tasks",
        row
        | {"schedule": "EVERY|1h|1970-01-01T00:00:00Z", "slot": NOON, "plan": plan},
    )
    add(
        store,
        "tasks",
        row
        | {
            "task_instance": HOSTILE,
            "schedule": f"EVERY|{HOSTILE}",
            "slot": NOON,
            "plan": plan,
        },
    )
    task = {
        "task_name": f"task {HOSTILE}",
        "task_instance": HOSTILE,
        "last_error": HOSTILE,
        "last_failure": now,
    }
    dead = task | {"state": "dead", "task_data": json.dumps(HOSTILE).encode()}
    add(
        store,
        "tasks",
        dead,
        dead | {"task_instance": "x", "last_error": "ValueError: no"},
    )
    ended = {
        "task_name": HOSTILE,
        "worker": HOSTILE,
        "error": HOSTILE,
        "started": now,
        "finished": now,
    }
    add(
        store, "slots", ended | {"slot": now - timedelta(hours=1), "outcome": "failed"}
    )
    add(
        store,
        "slots",
        ended
        | {
            "slot": now - timedelta(hours=2),
            "outcome": "dead",
            "task_instance": HOSTILE,
        },
    )
    add(
        store,
        "slots",
        ended
        | {"slot": now - timedelta(hours=3), "outcome": "running", "finished": None},
    )
    names = json.dumps([HOSTILE])
    add(
        store,
        "workers",
        {
            "worker": HOSTILE,
            "last_seen": now,
            "tags": names,
            "tasks": names,
            "version": HOSTILE,
            "revision": HOSTILE,
            "refused": names,
            "passed_over": json.dumps({HOSTILE: [HOSTILE]}),
        },
    )
    with store.transaction() as connection:
        connection.execute(
            sa.insert(store.tables.controls).values(
                at=now,
                author=HOSTILE,
                command="pause",
                task_name=HOSTILE,
                note=HOSTILE,
                arguments=json.dumps({HOSTILE: HOSTILE}),
            )
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with hostile rows."""
    file = tmp_path_factory.mktemp("hostile") / "jobs.db"
    url = f"sqlite:///{file}"
    provision(url)
    database = Database(Settings.load(environ={}, database_url=url))
    hostile_rows(Store(database, {}))
    database.close()
    return file


NAME, TASK = shlex.quote(HOSTILE), shlex.quote(f"task {HOSTILE}")
LINES = [
    "jobs",
    f"jobs {NAME}",
    f"jobs {NAME} --id {NAME}",
    f"jobs {NAME} --instances",
    f"jobs x{NAME}",
    "slots",
    f"slots {NAME}",
    f"slots {NAME} --id {NAME}",
    f"slots x{NAME}",
    f"slots {TASK}",
    "shards",
    "failures",
    f"failures {NAME}",
    f"explain {NAME}",
    f"explain {NAME} --id {NAME}",
    f"explain {TASK} --id {NAME}",
    f"explain {NAME} {NOON.isoformat()}",
    f"explain x{NAME}",
    f"explain {NAME} {NAME}",
    "slots --until 1h",
    f"slots {NAME} --until 1h",
    "audit",
    f"audit {NAME}",
    "workers",
    f"workers stack {NAME} --timeout 10ms",
    f"workers stack x{NAME}",
    "top",
    "top --json",
    "health",
    "health --allow-orphans",
    "tasks",
    "tasks list",
    f"tasks list {TASK}",
    f"tasks list {TASK} {NAME}",
    f"tasks list {TASK} x",
    f"tasks retry {TASK} --dry-run",
    f"tasks cancel {TASK} {NAME} --dry-run",
    f"tasks cancel {TASK} --all",
    f"tasks reschedule x{TASK} {NAME}",
    f"tasks schedule x --data {NAME}",
    f"tasks schedule x --id {NAME}\x01",
    f"pause {NAME} --note {NAME} --dry-run",
    f"pause x{NAME}",
    f"resume {NAME} --dry-run",
    f"trigger {NAME} --dry-run",
    f"trigger x{NAME}",
    f"skip-next {NAME} --dry-run",
    f"cancel {NAME} --dry-run",
    f"retry {NAME} now",
    f"delete {NAME}",
    f"delete {NAME} --dry-run",
    f"backfill {NAME} --from 2026-01-01T00:00Z --to 2026-01-01T02:00Z --dry-run",
    f"schedule explain {NAME}",
    f"schedule next {NAME}",
    f"schedule diff {NAME} x",
    f"schedule next {NAME} --month this",
    f"export kubernetes --app {NAME}",
    "schedule next --month this",
    "schedule",
    f"calendar show {NAME}",
    f"calendar remove {NAME}",
    f"calendar add {NAME} {NAME}",
    f"calendar import {NAME}.ics",
    "calendar show",
    f"crontab {NAME}",
    f"crontab -o - {NAME}",
    f"lock-keys --registry {NAME}",
    f"cron-jobs --service {NAME}",
    f"plan --app {NAME}",
    f"run {NAME} --app {NAME}",
    f"worker --app {NAME}",
    f"tick --app {NAME}",
    f"simulate --app {NAME}",
    f"bench --cells {NAME}",
    f"db check --schema {NAME}",
    f"db settle-until {NAME}",
    f"db restored --at {NAME}",
    f"db restored --at now --note {NAME} --dry-run",
    "db check",
    "db upgrade --sql",
    f"completion {NAME}",
    NAME,
    f"demo {NAME}",
    f"init {NAME}",
    f"init /dev/null/{NAME}",
]


def test_every_command_is_tried() -> None:
    """Each has a line above."""
    assert COMMANDS.keys() - {shlex.split(line)[0] for line in LINES} == set(), (
        "add a line to LINES"
    )


def harmless(text: str, line: str) -> None:
    """No character but those of lines and colours obeys to a terminal, and no forged line
    begins one.
    """
    left = COLOURS.sub("", text).replace("\r\n", "\n")
    found = {char for char in left if not char.isprintable() and char != "\n"}
    assert not found, (line, found, left)
    assert not any(part.startswith("error: forged") for part in left.split("\n")), (
        line,
        left,
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    "json_",
    [
        pytest.param(False, id="text", marks=pytest.mark.extended),
        pytest.param(True, id="json"),
    ],
)
def test_through_a_pipe(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    json_: bool,
) -> None:
    """Whatever the command does with the name, it prints nothing that a terminal obeys, and ends
    with a status.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{place}")
    monkeypatch.setenv("COLUMNS", "100")
    for line in LINES:
        arguments = shlex.split(line)
        found = status(
            [*arguments, *["--json"] * (json_ and arguments[0] != "completion")]
        )
        told = capsys.readouterr()
        assert found != exits.BUG, (line, told.err)
        if line == "db upgrade --sql":
            continue
        harmless(told.out, line)
        harmless(told.err, line)
        if json_ and told.out.strip() and arguments[:2] != ["calendar", "add"]:
            json.loads(told.out)


PROGRAM = """
import json, shlex, sys
from slotwise.cli.entry import status
for line in json.loads(sys.stdin.readline()):
    print("\\n=====", flush=True)
    status(shlex.split(line))
    sys.stdout.flush()
"""


def on_a_terminal(
    place: Path, directory: Path, lines: list[str], *, notes: bool
) -> list[str]:
    """What each command prints on a pseudo-terminal of 80 columns; ``notes``: with what goes to
    stderr.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLOTWISE_") and name != "COLUMNS"
    }
    environment = {
        **kept,
        "DATABASE_URL": f"sqlite:///{place}",
        "TERM": "xterm",
        "PYTHONUTF8": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs if notes else subprocess.DEVNULL,
        env=environment,
        text=True,
    ) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(json.dumps(lines) + "\n")
        process.stdin.close()
        text = "".join(_read(ours))
        os.close(ours)
    assert process.returncode == 0
    return text.split("=====")[1:]


@pytest.mark.extended
def test_on_a_terminal(place: Path, tmp_path: Path) -> None:
    """The same on a pseudo-terminal, with colours."""
    told = on_a_terminal(place, tmp_path, LINES, notes=True)
    assert len(told) == len(LINES)
    for line, text in zip(LINES, told, strict=True):
        harmless(text, line)
    assert len(COLOURS.findall("".join(told))) > 20


WIDE = """
from slotwise import AnyOf, Cron, Daily, JobRegistry, job

@job(name="settlement of all accounts and of what belongs to them", schedule=AnyOf(
    Cron("0 2 * * *", "Europe/Vienna"), Cron("17,19,23,29 1-23/7 1-15 JAN,MAR,MAY,JUL,SEP,NOV MON-FRI", "Asia/Tokyo")))
def settle(ctx): ...

@job(name="month", schedule=Daily("18:00", tz="America/Argentina/ComodRivadavia").last_business_day("AT"))
def month(ctx): ...

registry = JobRegistry(jobs=[settle, month])
"""


@pytest.mark.extended
def test_no_listing_is_wider_than_the_terminal(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that there is, whatever is in its cells."""
    (tmp_path / "wide.py").write_text(WIDE)
    (tmp_path / "crontab").write_text(
        f"17 2 * * MON-FRI {'/usr/bin/backup --of everything ' * 5}\n"
    )
    (tmp_path / "keys.toml").write_text(
        f"size = 50\n[services]\n{'credit-' * 12}service = 5101\n"
    )
    monkeypatch.setenv(
        "CRON_JOBS",
        json.dumps({"clean-up-" * 9: {"schedule": "0 */5 * * * *", "lockKey": 5101}}),
    )
    listings = [
        "jobs",
        f"jobs {NAME} --instances",
        f"jobs {NAME}",
        "slots",
        f"slots {NAME}",
        "failures",
        "audit",
        "workers",
        "tasks list",
        "tasks",
        "failures --all",
        f"slots {NAME} --id {NAME}",
        f"tasks list {TASK} x",
        "jobs --app wide",
        "plan --app wide --all",
        "simulate --app wide --from 2026-10-24T00:00Z --days 3 --all",
        "calendar show",
        "calendar show AT",
        "schedule next '30 2 * * *' --tz Europe/Vienna --after 2026-10-23 -n 4",
        "schedule next --app wide --month this",
        "schedule next --app wide",
        "schedule diff '0 2 * * *' '0 3 * * *' --tz America/Argentina/ComodRivadavia --days 2",
        "crontab crontab",
        "cron-jobs",
        "lock-keys --registry keys.toml",
    ]
    days = [
        f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in (1, 6, 24)
    ]
    assert (
        status(
            [
                "calendar",
                "add",
                "AT",
                *days,
                "--create",
                "--database-url",
                f"sqlite:///{place}",
            ]
        )
        == exits.OK
    )
    for line, text in zip(
        listings, on_a_terminal(place, tmp_path, listings, notes=False), strict=True
    ):
        told = [
            part
            for part in COLOURS.sub("", text).replace("\r", "").split("\n")
            if "; see: slotwise" not in part
        ]
        assert max(map(len, told)) in range(20, 81), line


def _read(descriptor: int) -> Iterator[str]:
    data = b""
    while True:
        try:
            more = os.read(descriptor, 65536)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        data += more
    yield data.decode("utf-8")


MALFORMED_WORKERS = [
    {"tags": "not json"},
    {"tags": "[1]"},
    {"tags": "{}"},
    {"tasks": '"a"'},
    {"tasks": '[["a"]]'},
    {"passed_over": "[1]"},
    {"passed_over": '{"a": 1}'},
    {"refused": "[null]"},
    {"skew": float("nan")},
]
MALFORMED_PLANS: list[Any] = [
    [1],
    {"deployed": "x"},
    {"deployed": 1},
    {"runs_on": [1]},
    {"runs_on": 7},
    "text",
]


@pytest.mark.extended
@pytest.mark.parametrize("url", ["pg_url", "sqlite_url"])
def test_malformed_rows(
    url: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each row is read by itself: a bad one is shown as unreadable and counted by health; all
    others are shown.
    """
    address = request.getfixturevalue(url)
    monkeypatch.setenv("DATABASE_URL", address)
    database = Database(Settings.load(environ={}, database_url=address))
    store = Store(database, {})
    now = store.now()
    good = {"worker": "h:1:f0", "last_seen": now, "tasks": '["good", "bad-0"]'}
    malformed = (
        MALFORMED_WORKERS if url == "pg_url" else MALFORMED_WORKERS[:-1]
    )  # SQLite stores NaN as NULL
    workers = [
        {"worker": f"bad:{n}", "last_seen": now, **one}
        for n, one in enumerate(malformed)
    ]
    add(store, "workers", good, *workers)
    job = {
        "schedule": "EVERY|1h|1970-01-01T00:00:00Z",
        "slot": now,
        "execution_time": now,
    }
    add(store, "tasks", job | {"task_name": "good"})
    add(
        store,
        "tasks",
        *(
            job | {"task_name": f"bad-{n}", "plan": one}
            for n, one in enumerate(MALFORMED_PLANS)
        ),
    )
    if url == "pg_url":  # values that only the driver cannot read
        with store.transaction() as connection:
            for statement in (
                "UPDATE scheduled_workers SET lease = interval '100000000 years' "
                "WHERE worker = 'bad:0'",
                "UPDATE scheduled_tasks SET lease = interval '100000000 years', picked = true "
                "WHERE task_name = 'bad-0'",
            ):
                connection.execute(sa.text(statement))
    database.close()

    def ask(line: str) -> Any:
        capsys.readouterr()
        assert status([*line.split(), "--json"]) in (exits.OK, exits.FAILED), (
            capsys.readouterr().err
        )
        return json.loads(capsys.readouterr().out)

    states = {line["worker"]: line["state"] for line in ask("workers")}
    assert states == {"h:1:f0": "running"} | {
        one["worker"]: "unreadable" for one in workers
    }
    jobs = {line["job"]: line["state"] for line in ask("jobs")}
    assert jobs.pop("good") == "waiting"
    assert set(jobs.values()) == {"unreadable"}
    told = ask("health")
    assert (told["live_workers"], len(told["unreadable_workers"])) == (1, len(workers))
    for line in ("jobs", "explain", "slots", "failures"):
        for name in jobs:
            ask(f"{line} {name}")
    assert status(["workers"]) == status(["jobs"]) == exits.OK
    assert "bad-4 is unreadable: plan is " in capsys.readouterr().err


@pytest.mark.extended
def test_lists_stay_lists_at_80_columns(tmp_path: Path) -> None:
    """With names and zones as people have them; a long id is folded."""
    file = tmp_path / "usual.db"
    provision(f"sqlite:///{file}")
    database = Database(Settings.load(environ={}, database_url=f"sqlite:///{file}"))
    now = datetime.now(UTC)
    clock = ManualClock(now - timedelta(hours=3))

    @job(name="settle-accounts", schedule=Cron("*/20 * * * *", tz="Europe/Vienna"))
    def settle(ctx: JobContext) -> None:
        """Succeeds."""

    @task(name="send-invoice-mail", record="all", retry=None)
    def send(ctx: TaskContext[None]) -> None:
        raise OSError("the mail server does not answer, and says so at some length")

    with ManualWorker([settle, send], database, clock) as worker:
        worker.operations.by("ann@ops").skip_next("settle-accounts", note="month end")
        worker.client.schedule_many(send, [None] * 3)
        for _ in range(9):
            worker.tick("20m")
            worker.run_due()
        worker.client.schedule(send, id="order-4711")
        named = {"worker": "worker-7c9f8b6d5-x2x4z:7:90acb1", "last_seen": now}
        add(worker.store, "workers", named)
        calendars = worker.operations.calendars
        calendars.change("AT", lambda _: Calendar(name="AT"), "calendar_add")
    database.close()
    listings = {
        "jobs": "JOB",
        "slots": "JOB",
        "slots settle-accounts": "SLOT",
        "failures": "FAILED",
        "audit": "AT",
        "workers": "WORKER",
        "tasks": "TASK",
        "tasks list": "TASK",
        "calendar show": "CALENDAR",
    }
    printed = on_a_terminal(file, tmp_path, list(listings), notes=False)
    for (line, title), text in zip(listings.items(), printed, strict=True):
        told = COLOURS.sub("", text).replace("\r", "").strip("\n").split("\n")
        assert told[0].split()[0] == title, (line, told)
        assert len(told) > 1, line
        assert not [part for part in told if part.startswith("  slot")], (line, told)
        if line.startswith("slots"):
            assert any("  succeeded" in part for part in told), told
