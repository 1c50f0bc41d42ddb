"""A script that starts a registry: what its signals and its end do. Real processes."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.kit import processes
from tests.kit.patience import PATIENCE

from slotwise.engine.process.tuning import ECHO

PREAMBLE = """
import asyncio, os, signal, sys, threading, time
from contextlib import asynccontextmanager
from datetime import timedelta
from slotwise import Every, JobRegistry, job, task

def say(word):
    os.write(1, f"{word}\\n".encode())

entered = threading.Event()

@task(name="work")
def work(ctx):
    say("entered")
    entered.set()
    ctx.wait(timedelta(seconds=SECONDS))
    say(f"finished {ctx.cancel_reason}")

def a_registry(**options):
    options = {"shutdown_grace": "1h", "poll_interval": "50ms", "database_url": os.environ["DATABASE_URL"]} | options
    return JobRegistry(tasks=[work], **options)

def run(registry):
    registry.start()
    registry.client.schedule(work)
    assert entered.wait(60)

def sleep_on():
    while True:
        time.sleep(0.1)

SECONDS = 0.3
"""


class Script:
    """A running script, and what it says."""

    def __init__(self, text: str, url: str, directory: Path) -> None:
        environment = {**os.environ, "DATABASE_URL": url}
        self.process = processes.start(
            *("-c", PREAMBLE + textwrap.dedent(text)),
            directory=directory,
            environment=environment,
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        assert self.process.stderr is not None
        pytest.fail(f"it never said {word!r}: {self.process.stderr.read()}")

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, list[str]]:
        """Its status, and what it said besides."""
        out, self.err = processes.read_to_the_end(self.process)
        return self.process.wait(PATIENCE), out.split("\n")[:-1]


Start = Callable[[str], Script]


@pytest.fixture
def start(sqlite_url: str, tmp_path: Path) -> Iterator[Start]:
    started: list[Script] = []

    def start(text: str) -> Script:
        started.append(Script(text, sqlite_url, tmp_path))
        return started[-1]

    yield start
    for script in started:
        script.process.kill()
        script.end()


def waiting_rows(url: str) -> list[tuple[bool, int]]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = [
            tuple(row)
            for row in connection.exec_driver_sql(
                "select picked, attempt from scheduled_tasks"
            )
        ]
    engine.dispose()
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.extended)]
)
def test_a_signal_drains_and_then_ends_the_process(
    start: Start, sqlite_url: str, number: int
) -> None:
    """What runs may finish and is settled; then the signal does what it would have done: status
    -15.
    """
    script = start("run(a_registry()); sleep_on()")
    script.wait_for("entered")
    script.send(number)
    assert script.end() == (-number, ["finished None"])
    assert waiting_rows(sqlite_url) == []


@pytest.mark.extended
def test_sigint_drains_and_then_interrupts(start: Start) -> None:
    """KeyboardInterrupt comes to the main thread as it would have, after the drain."""
    script = start(
        """
        run(a_registry())
        try:
            sleep_on()
        except KeyboardInterrupt:
            say("interrupted")
        say([t.name for t in threading.enumerate()])
        """
    )
    script.wait_for("entered")
    script.send(signal.SIGINT)
    assert script.end() == (0, ["finished None", "interrupted", "['MainThread']"])


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.extended)]
)
def test_a_second_signal_cancels(start: Start, sqlite_url: str, number: int) -> None:
    """Who asks twice does not want to wait: the handler is told, its slot goes back."""
    script = start(
        """
        SECONDS = 3600
        registry = a_registry(listeners=[lambda event: say(event.name)])
        run(registry)
        sleep_on()
        """
    )
    script.wait_for("entered")
    script.send(number)
    script.wait_for("drain_begin")
    time.sleep(ECHO.total_seconds() + 0.1)  # sooner it would be an echo of the first
    script.send(number)
    script.wait_for("finished shutdown")
    status, _ = script.end()
    assert status == (-signal.SIGTERM if number == signal.SIGTERM else -signal.SIGINT)


@pytest.mark.extended
def test_the_former_handler_has_its_turn(start: Start) -> None:
    """After the drain, with the signal's number; it may end the process as it likes."""
    script = start(
        """
        def former(number, frame):
            say(f"former {number}")
            sys.exit(7)
        signal.signal(signal.SIGTERM, former)
        run(a_registry())
        sleep_on()
        """
    )
    script.wait_for("entered")
    script.send(signal.SIGTERM)
    assert script.end() == (7, ["finished None", f"former {int(signal.SIGTERM)}"])


def test_the_end_of_the_script_drains(start: Start, sqlite_url: str) -> None:
    """Nobody called stop."""
    script = start("run(a_registry())")
    script.wait_for("entered")
    assert script.end() == (0, ["finished None"])
    assert waiting_rows(sqlite_url) == []


@pytest.mark.extended
def test_pools_still_work_in_the_drain_at_the_end(
    start: Start, sqlite_url: str
) -> None:
    """A handler that finishes after the script's last line may still use threads, as
    ``asyncio.to_thread`` does.
    """
    script = start(
        """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        pool.submit(int).result()

        @task(name="late")
        async def late(ctx):
            say("entered")
            entered.set()
            while not ctx.stopping:
                await asyncio.sleep(0.01)
            say(await asyncio.to_thread(lambda: "beside"))
            say(pool.submit(lambda: "pooled").result())

        registry = JobRegistry(tasks=[late], poll_interval="50ms", database_url=os.environ["DATABASE_URL"])
        registry.start()
        registry.client.schedule(late)
        assert entered.wait(60)
        """
    )
    assert script.end() == (0, ["entered", "beside", "pooled"]), script.err
    assert waiting_rows(sqlite_url) == []


@pytest.mark.extended
def test_the_script_has_not_ended_while_its_threads_run(
    start: Start, sqlite_url: str
) -> None:
    """What a thread of the script's own still schedules still runs."""
    script = start(
        """
        registry = a_registry()
        registry.start()
        def later():
            time.sleep(0.5)
            registry.client.schedule(work)
            entered.wait(60)
        threading.Thread(target=later).start()
        """
    )
    assert script.end() == (0, ["entered", "finished None"])
    assert waiting_rows(sqlite_url) == []


@pytest.mark.extended
def test_a_script_that_fails_drains_too(start: Start) -> None:
    """And its error is what one sees."""
    script = start("run(a_registry()); 1 / 0")
    script.wait_for("entered")
    assert script.end() == (1, ["finished None"])
    assert "ZeroDivisionError" in script.err


def test_stop_puts_everything_back(start: Start) -> None:
    """The handlers that were there before, after any number of starts."""
    script = start(
        """
        def handlers():
            return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        before = handlers()
        registry = a_registry()
        for _ in range(3):
            registry.start()
            say(handlers() == before)
            registry.stop()
            say(handlers() == before)
        with registry:
            say(handlers() == before)
        say(handlers() == before)
        say([t.name for t in threading.enumerate()])
        """
    )
    assert script.end() == (0, ["False", "True"] * 4 + ["['MainThread']"])


@pytest.mark.extended
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("switched off", "run(a_registry(process_hook=False))"),
        (
            "in another thread",
            "t = threading.Thread(target=run, args=(a_registry(),)); t.start(); t.join()",
        ),
        ("on a host's loop", "asyncio.run(host())"),
    ],
)
def test_where_the_process_is_somebody_elses(
    start: Start, how: str, text: str
) -> None:
    """Nothing is touched: SIGTERM ends the process at once, in the middle of a handler."""
    script = start(
        f"""
        SECONDS = 3600
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        async def host():
            async with a_registry() as registry:
                await asyncio.to_thread(registry.client.schedule, work)
                await asyncio.to_thread(entered.wait)
                check_and_wait()
        def check_and_wait():
            now = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
            say(now[0] == before[0] and not isinstance(getattr(now[1], "__self__", None), JobRegistry))
            say("ready")
            sleep_on()
        {text}
        check_and_wait()
        """
    )
    script.wait_for("True")
    script.wait_for("ready")
    script.send(signal.SIGTERM)
    assert script.end() == (-signal.SIGTERM, [])


@pytest.mark.extended
def test_a_signal_that_was_switched_off_stays_off(start: Start) -> None:
    """`nohup`, or `command &` in a script: SIGINT is not for us."""
    script = start(
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        run(a_registry())
        say(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGINT)
        sleep_on()
        """
    )
    script.wait_for("True")
    script.send(signal.SIGTERM)
    status, _ = script.end()
    assert status == -signal.SIGTERM


@pytest.mark.extended
def test_a_drain_that_fails_still_ends_the_process(start: Start) -> None:
    """The lifespan cannot be left: it is logged, and the signal has its turn."""
    script = start(
        """
        @asynccontextmanager
        async def life():
            yield
            raise OSError("cannot leave")
        run(a_registry(lifespan=life))
        sleep_on()
        """
    )
    script.wait_for("entered")
    script.send(signal.SIGTERM)
    assert script.end() == (-signal.SIGTERM, ["finished None"])
    assert "cannot leave" in script.err


@pytest.mark.extended
def test_a_signal_during_the_scripts_own_stop(start: Start) -> None:
    """The drain goes on to its end, once; then the signal has its turn."""
    script = start(
        """
        SECONDS = 0.5
        registry = a_registry(listeners=[lambda event: say(event.name)])
        run(registry)
        registry.stop()
        sleep_on()
        """
    )
    script.wait_for("drain_begin")
    script.send(signal.SIGTERM)
    status, said = script.end()
    assert status == -signal.SIGTERM
    assert said.count("drain_end") == 1
    assert "finished None" in said


@pytest.mark.extended
def test_a_start_that_waits_for_its_database_ends_at_once(start: Start) -> None:
    """There is nothing to drain; and while it waits, it says so, even if nobody listens."""
    script = start(
        """
        nowhere = "postgresql://nobody@127.0.0.1:1/none"
        a_registry(database_url=nowhere, listeners=[lambda event: say(event.name)]).start()
        """
    )
    script.wait_for("database_lost")
    script.send(signal.SIGTERM)
    status, _ = script.end()
    assert status == -signal.SIGTERM
    assert script.err.startswith("database_lost")
    assert "127.0.0.1" in script.err


@pytest.mark.extended
def test_ctrl_c_ends_a_start_that_waits_for_its_database(start: Start) -> None:
    """And leaves nothing behind."""
    script = start(
        """
        registry = a_registry(
            database_url="postgresql://nobody@127.0.0.1:1/none", listeners=[lambda event: say(event.name)]
        )
        try:
            registry.start()
        except KeyboardInterrupt:
            say([t.name for t in threading.enumerate()])
            say(registry.worker)
        """
    )
    script.wait_for("database_lost")
    script.send(signal.SIGINT)
    status, said = script.end()
    assert (status, said[-2:]) == (0, ["['MainThread']", "None"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_is_not_drained(start: Start) -> None:
    """A child has the handlers, and nothing to drain: a signal does to it what it did before; the
    parent goes on.
    """
    script = start(
        """
        SECONDS = 3600
        run(a_registry(listeners=[lambda event: say(event.name)]))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, b"!")
            sleep_on()
        os.read(read, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        say(os.WTERMSIG(status) == signal.SIGTERM)
        sleep_on()
        """
    )
    script.wait_for("True")
    script.send(signal.SIGTERM)
    script.wait_for("drain_begin")
    time.sleep(ECHO.total_seconds() + 0.1)  # sooner it would be an echo of the first
    script.send(signal.SIGTERM)
    script.wait_for("finished shutdown")
    assert script.end()[0] == -signal.SIGTERM
