"""Attempts in processes of their own: what comes back from them, and that they end when they
must.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from slotwise import ConfigurationError, JobRegistry, Once, Settings, job, task
from slotwise.contrib.isolation.attempts import MODULE, Channel
from slotwise.spi import Database

APPLICATION = """
import asyncio, contextlib, multiprocessing, os, pathlib, signal, subprocess, sys, threading, time
import sqlalchemy as sa
from slotwise import Cancel, Every, JobRegistry, Retry, Skip, Snooze, job, task
from slotwise.settings.settings import Settings

HERE = pathlib.Path(__file__).parent
options = dict(schedule=Every("1h"), isolation="process")

def note(text):
    with open(HERE / "notes", "a") as file:
        file.write(f"{os.getpid()} {text}\\n")

@job(name="well", **options)
def well(ctx):
    note(f"well {ctx.slot is not None} {ctx.attempt} {ctx.token > 0} {ctx.lease_left.total_seconds() > 0} {ctx.state}")

@job(name="plain", **options)
def plain(number: int = 7):
    note(f"plain {number}")

@job(name="awaited", **options)
async def awaited(ctx):
    await asyncio.sleep(0.01)
    note(f"awaited {ctx.state}")

@job(name="raises", **options)
def raises(ctx):
    raise ValueError("no luck")

@job(name="cancels", **options)
def cancels(ctx):
    raise Cancel("not today")

@job(name="exits", **options)
def exits(ctx):
    os._exit(3)

@job(name="crashes", **options)
def crashes(ctx):
    os.kill(os.getpid(), signal.SIGSEGV)

@job(name="deaf", timeout="1s", **options)
def deaf(ctx):
    note("deaf")
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(f"helper {helper.pid}")
    while True:
        time.sleep(600)

@job(name="endless", **options)
def endless(ctx):
    note("endless")
    while True:
        time.sleep(600)

@job(name="listens", timeout="500ms", **options)
def listens(ctx):
    ctx.wait("60s")
    note(f"told {ctx.cancel_reason}")

@job(name="strict", on_lost="give_up", **options)
def strict(ctx):
    with engine.connect() as connection:
        found = connection.scalar(sa.text("SELECT outcome FROM scheduled_slots WHERE task_name = 'strict'"))
    note(f"strict {found}")

@job(name="completes", **options)
def completes(ctx):
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE effects (n int)"))
        ctx.complete_in(connection)
    os._exit(1)

@job(name="starts", timeout="20s", **options)
def starts(ctx):
    with multiprocessing.get_context("fork").Pool(2) as made:
        made.map(abs, [1, 2])
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    helper.terminate()
    note(f"ended {helper.wait()}")

def alarmed():
    signal.signal(signal.SIGALRM, lambda number, frame: note("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.01)

@job(name="alarm", **options)
def alarm(ctx):
    alarmed()
    time.sleep(0.1)

@job(name="own-loop", **options)
def own_loop(ctx):
    async def main():
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), 30)
    asyncio.run(main())

@job(name="own-loop-async", **options)
async def own_loop_async(ctx):
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(heard.wait(), 30)
    alarmed()
    await asyncio.sleep(0.1)

@job(name="marked", on_lost="give_up", **options)
async def marked(ctx):
    note(f"main {threading.current_thread() is threading.main_thread()}")

@job(name="unborn", **options)
def unborn(ctx):
    note("unborn")

@job(name="held", **options)
def held(ctx):
    note("held runs")

@job(name="refused", **options)
def refused(ctx):
    note("refused runs")

@job(name="robbed", **options)
def robbed(ctx):
    note("robbed runs")
    ctx.wait("10m")
    note(f"robbed {ctx.cancel_reason}")
    ctx.check()

def rob(ctx):
    while "robbed runs" not in (HERE / "notes").read_text():
        time.sleep(0.05)
    ctx.cancel("lock_lost")

@contextlib.contextmanager
def holding(ctx):
    note(f"{ctx.name} taken")
    if ctx.name == "robbed":
        threading.Thread(target=rob, args=(ctx,)).start()
    try:
        yield
    finally:
        note(f"{ctx.name} given back")

def before_start(ctx):
    if ctx.name == "refused":
        raise Skip("lock_held")
    return holding(ctx) if ctx.name in ("held", "robbed") else None

@contextlib.asynccontextmanager
async def lifespan():
    if "unborn" in os.environ.get("ONLY", "") and sys.argv[0].endswith("isolated.py"):
        raise LookupError("no pool today")
    yield "a pool"

def pay(ctx):
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO paid VALUES (:name)"), {"name": ctx.name})
        ctx.complete_in(connection)

@task(name="paid-and-killed", isolation="process", retry=Retry(max_attempts=2))
def paid_and_killed(ctx):
    pay(ctx)
    os.kill(os.getpid(), signal.SIGKILL)

@task(name="paid-and-deaf", isolation="process", timeout="1s", retry=Retry(max_attempts=2))
def paid_and_deaf(ctx):
    pay(ctx)
    time.sleep(600)

@task(name="paid-too-late", isolation="process", timeout="500ms", retry=Retry(max_attempts=2))
def paid_too_late(ctx):
    ctx.wait("60s")
    pay(ctx)

engine = sa.create_engine(sa.make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg"))
jobs = [alarm, own_loop, own_loop_async, marked, well, plain, awaited, raises, cancels, exits, crashes, deaf, endless, listens, strict, completes, starts, unborn,
        held, refused, robbed]
registry = JobRegistry(jobs=jobs, tasks=[paid_and_killed, paid_and_deaf, paid_too_late], lifespan=lifespan,
                       before_start=[before_start])
"""

QUICK = {"heartbeat_interval": "1s", "poll_interval": "500ms", "shutdown_grace": "1s"}


class Place:
    """An application on disk, its database, and what its handlers noted."""

    def __init__(self, path: Path, url: str) -> None:
        (path / "isolated_app.py").write_text(APPLICATION)
        self.path, self.url = path, url
        self.database = Database(Settings(database_url=url))

    def notes(self) -> list[tuple[int, str]]:
        file = self.path / "notes"
        lines = file.read_text().splitlines() if file.exists() else []
        return [
            (int(pid), text) for pid, text in (line.split(" ", 1) for line in lines)
        ]

    def entry(self, name: str) -> Any:
        with self.database.main.connect() as connection:
            statement = sa.text(
                "SELECT * FROM scheduled_slots WHERE task_name = :name"
            )
            return connection.execute(statement, {"name": name}).mappings().first()

    def worker(self, *names: str, **settings: str) -> subprocess.Popen[bytes]:
        """`slotwise worker`, for these jobs only, with one slot of each due now."""
        given = {
            f"SLOTWISE_{name.upper()}": value
            for name, value in {**QUICK, **settings}.items()
        }
        only = [f"--only={name}" for name in names]
        command = [
            sys.executable,
            "-m",
            "slotwise",
            "worker",
            "--app=isolated_app",
            f"--app-dir={self.path}",
        ]
        with (self.path / "log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *only],
                env={**os.environ, **given, "DATABASE_URL": self.url},
                cwd=self.path,
                stderr=log,
            )
        self.wait(lambda: len(self.planned()) >= len(names))
        with self.database.main.begin() as connection:
            for name in names:
                connection.execute(
                    sa.text(
                        "UPDATE scheduled_tasks SET execution_time = now(), slot = now() "
                        "WHERE task_name = :name AND task_instance = 'recurring'"
                    ),
                    {"name": name},
                )
        return process

    def planned(self) -> list[str]:
        with self.database.main.connect() as connection:
            return list(
                connection.scalars(sa.text("SELECT task_name FROM scheduled_tasks"))
            )

    def wait(self, condition: Callable[[], object], seconds: float = 90) -> None:
        until = time.monotonic() + seconds
        while not condition():
            log = self.path / "log"
            assert time.monotonic() < until, (
                log.read_text()[-6000:] if log.exists() else "nothing happened"
            )
            time.sleep(0.05)

    def ended(self, name: str) -> bool:
        entry = self.entry(name)
        return entry is not None and entry["finished"] is not None


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def place(tmp_path: Path, pg_url: str) -> Iterator[Place]:
    place = Place(tmp_path, pg_url)
    yield place
    place.database.close()


@pytest.fixture
def run(place: Place) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start workers; what is left of them is ended."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*names: str, **settings: str) -> subprocess.Popen[bytes]:
        started.append(place.worker(*names, **settings))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


Run = Callable[..., subprocess.Popen[bytes]]


@pytest.mark.extended
def test_what_comes_back(place: Place, run: Run) -> None:
    """Outcomes of every kind, as data; handlers, interceptors and lifespan are those of the
    application.
    """
    names = [
        "well",
        "plain",
        "awaited",
        "raises",
        "cancels",
        "exits",
        "crashes",
        "strict",
        "completes",
    ]
    process = run(*names)
    place.wait(lambda: all(place.ended(name) for name in names), 110)
    outcomes = {name: place.entry(name)["outcome"] for name in names}
    assert outcomes == {
        "well": "succeeded",
        "plain": "succeeded",
        "awaited": "succeeded",
        "raises": "failed",
        "cancels": "cancelled",
        "exits": "failed",
        "crashes": "failed",
        "strict": "succeeded",
        "completes": "succeeded",
    }
    texts = {text for _, text in place.notes()}
    assert texts == {
        "well True 1 True True a pool",
        "plain 7",
        "awaited a pool",
        "strict running",
    }
    assert process.pid not in {pid for pid, _ in place.notes()}
    assert place.entry("raises")["error"].splitlines()[-1] == "ValueError: no luck"
    assert place.entry("cancels")["reason"] == "not today"
    assert place.entry("exits")["error"] == "its process ended with exit status 3"
    assert place.entry("crashes")["error"] == "its process ended by SIGSEGV"


def test_it_is_the_main_thread_of_its_process(place: Place, run: Run) -> None:
    """Signal handlers, alarms and loops with signal handlers work there, as under RQ."""
    names = ["alarm", "own-loop", "own-loop-async", "marked"]
    run(*names)
    place.wait(lambda: all(place.ended(name) for name in names), 110)
    ends = {
        name: (place.entry(name)["outcome"], place.entry(name)["error"])
        for name in names
    }
    assert ends == dict.fromkeys(names, ("succeeded", None))
    assert sorted(text for _, text in place.notes()) == ["alarm", "alarm", "main True"]


@pytest.mark.extended
def test_a_start_hook_runs_in_the_parent(place: Place, run: Run) -> None:
    """It holds what it returns while the child runs, also when it stops the child; a start that it
    refuses has none.
    """
    process = run("held", "refused", "robbed")
    place.wait(lambda: place.ended("held") and place.ended("refused"))
    place.wait(lambda: (process.pid, "robbed given back") in place.notes())
    notes = [(pid == process.pid, text) for pid, text in place.notes()]
    assert [one for one in notes if one[1].startswith("held")] == [
        (True, "held taken"),
        (False, "held runs"),
        (True, "held given back"),
    ]
    assert [one for one in notes if one[1].startswith("robbed")][:4] == [
        (True, "robbed taken"),
        (False, "robbed runs"),
        (False, "robbed lock_lost"),
        (True, "robbed given back"),
    ]
    assert not [text for _, text in notes if text.startswith("refused")]
    assert (place.entry("refused")["outcome"], place.entry("refused")["reason"]) == (
        "skipped",
        "lock_held",
    )


@pytest.mark.extended
def test_what_has_committed_is_done(place: Place, run: Run) -> None:
    """Race: complete_in has committed, and the child is killed before it says so. Nobody runs the
    task again.
    """
    names = ["paid-and-killed", "paid-and-deaf", "paid-too-late"]
    registry = JobRegistry(
        tasks=[task(name=name)(print) for name in names], database_url=place.url
    )
    with place.database.main.begin() as connection:
        connection.execute(sa.text("CREATE TABLE paid (name text)"))
    for name in names:
        registry.client.schedule(name)
    registry.database.close()
    run(*names)
    place.wait(lambda: not place.planned())
    with place.database.main.connect() as connection:
        assert sorted(connection.scalars(sa.text("SELECT name FROM paid"))) == sorted(
            names
        )


@pytest.mark.extended
def test_a_lifespan_that_cannot_be_entered_there(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt has failed, and says why in one line; its handler has not run."""
    monkeypatch.setenv("ONLY", "unborn")
    run("unborn")
    place.wait(lambda: place.ended("unborn"))
    entry = place.entry("unborn")
    told = "its process cannot start: the lifespan lifespan raised LookupError: no pool today"
    assert (entry["outcome"], entry["error"], place.notes()) == ("failed", told, [])
    assert "Traceback" not in (place.path / "log").read_text()


def test_a_timeout_is_the_end(place: Place, run: Run) -> None:
    """One that listens may end by itself; one that is deaf is killed, with all that it has
    started.
    """
    run("deaf", "listens")
    place.wait(lambda: place.ended("deaf") and place.ended("listens"))
    assert place.entry("deaf")["error"] == "timed out after 1s"
    assert place.entry("listens")["error"] == "timed out after 500ms"
    notes = {text.split()[0]: (pid, text) for pid, text in place.notes()}
    assert notes["told"][1] == "told timeout"
    assert not is_alive(notes["deaf"][0])
    place.wait(lambda: not is_alive(int(notes["helper"][1].split()[1])), 10)


@pytest.mark.extended
def test_what_it_starts_can_be_ended(place: Place, run: Run) -> None:
    """By SIGTERM, as anywhere else: what a handler forks or starts does not ignore signals."""
    run("starts")
    place.wait(lambda: place.ended("starts"))
    assert place.entry("starts")["outcome"] == "succeeded", place.entry("starts")[
        "error"
    ]
    assert [text for _, text in place.notes()] == [f"ended {-signal.SIGTERM}"]


@pytest.mark.extended
def test_it_dies_with_its_worker(place: Place, run: Run) -> None:
    """Killed without a word, a worker leaves no handler behind."""
    process = run("endless")
    place.wait(place.notes)
    ((child, _),) = place.notes()
    process.send_signal(signal.SIGKILL)
    place.wait(lambda: not is_alive(child))


@pytest.mark.extended
def test_a_lost_claim_is_the_end(place: Place, run: Run) -> None:
    """As soon as the worker learns of it; whatever the handler does."""
    run("endless")
    place.wait(place.notes)
    ((child, _),) = place.notes()
    with place.database.main.begin() as connection:
        connection.execute(
            sa.text(
                "UPDATE scheduled_tasks SET version = version + 1 WHERE task_name = 'endless'"
            )
        )
    place.wait(lambda: not is_alive(child))


@pytest.mark.extended
def test_a_shutdown_ends_it_and_hands_it_back(place: Place, run: Run) -> None:
    """Killed before the worker leaves, so that its slot can run elsewhere at once."""
    process = run("endless")
    place.wait(place.notes)
    ((child, _),) = place.notes()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not is_alive(child)
    entry = place.entry("endless")
    assert (entry["outcome"], entry["reason"], entry["finished"]) == (
        "cancelled",
        "shutdown",
        None,
    )


def test_without_an_application_it_is_refused() -> None:
    """The child must know what to import."""
    subject = job(
        name="alone", schedule=Once("2026-01-01T00:00Z"), isolation="process"
    )(print)
    registry = JobRegistry(jobs=[subject], database_url="sqlite://")
    with pytest.raises(
        ConfigurationError,
        match='alone: isolation="process" needs to import the application again',
    ):
        registry.make_worker()


WAITING = """
from slotwise import Every, JobRegistry, job

@job(name="waits", schedule=Every("1h"), isolation="process")
def waits(ctx): ...

registry = JobRegistry(jobs=[waits])
"""


@pytest.mark.extended
def test_who_waits_for_a_database_ends_without_its_parent(tmp_path: Path) -> None:
    """A child looks for its claim where nobody answers: the end of the socket is its end, too.

    Its parent by number, this process, lives on: so it is not the kernel that ends it.
    """
    (tmp_path / "waiting.py").write_text(WAITING)
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as nobody, ours:
        with theirs:
            command = [sys.executable, "-P", "-m", MODULE, str(theirs.fileno())]
            child = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], start_new_session=True
            )
        try:
            settings = Settings(
                database_url=f"postgresql://127.0.0.1:{nobody.getsockname()[1]}/none"
            )
            order = {
                "app": "waiting:registry",
                "path": [*sys.path, str(tmp_path)],
                "settings": settings.told(),
                "claim": ["waits", "recurring", 1, "host:1:boot"],
                "renewed": 0.0,
            }
            Channel(ours).send(**order)
            nobody.settimeout(60)
            nobody.accept()[0].close()  # it has begun to look
            ours.close()
            assert child.wait(60) == -signal.SIGKILL
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
