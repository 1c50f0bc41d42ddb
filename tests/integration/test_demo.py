"""The demo is what people see first: it must end clean, tell the truth, and leave nothing
behind.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import psycopg
import pytest

pytestmark = pytest.mark.extended

DEADLINE = 110.0


class Demo:
    """A demo process whose output is read as it comes."""

    def __init__(
        self,
        *command: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()  # closes the pipe, too

    def read_until(self, pattern: str) -> re.Match[str]:
        """Wait for output that matches."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + DEADLINE
        while not (found := re.search(pattern, self.output)):
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.process.stdout], [], [], left)[0]
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert chunk, f"no {pattern!r} in:\n{self.output}"
            self.output += chunk.decode()
        return found

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        self.output += self.process.communicate(timeout=60)[0].decode()
        return self.process.returncode


def demo(*options: str) -> Demo:
    return Demo(sys.executable, "-u", "-m", "slotwise.demo", *options)


def judged(home: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slotwise.demo", "verdict", home],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def processes_in(home: str) -> list[str]:
    """Command lines that name this folder, on systems that have /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if home in line and "slotwise.demo" not in line:
            found.append(line)
    return found


@pytest.mark.timeout(200)
def test_the_demo_ends_with_a_clean_verdict_and_a_doctored_witness_is_found_out() -> (
    None
):
    """Every disaster is survived and accounted for; change either witness afterwards, and the
    verdict is guilty.
    """
    with demo("--keep", "--seconds", "26") as play:
        play.read_until(r"everything keeps running")
        for act in (
            "SIGKILL",
            "taken over",
            "SIGSTOP",
            "SIGCONT",
            "the database restarts",
            "every slot is accounted",
        ):
            assert act in play.output, play.output
        home = play.read_until(r"slotwise.demo verdict (\S+)\n")[1]
        assert judged(home).returncode == 0
        _doctor_the_ledger(home)
        _doctor_the_log(home)
        assert play.interrupt() == 130
    assert not Path(home).exists()
    assert processes_in(home) == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_a_demo_that_is_killed_takes_its_workers_along() -> None:
    """Nobody is left to stop them, or to wake one that stands still: they end by themselves."""
    with demo() as play:
        play.read_until(r"three workers started")
        workers = _children_of(play.process.pid)
        assert len(workers) == 3
        os.kill(workers[0], signal.SIGSTOP)
        play.process.kill()
        deadline = time.monotonic() + DEADLINE
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline, workers
            time.sleep(0.05)


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for found in tasks for child in found.read_text().split()]


def _doctor_the_ledger(home: str) -> None:
    """A slot that ran is taken out of the ledger, and put back."""
    url = json.loads((Path(home) / "demo.json").read_text())["database_url"]
    chosen = (
        "task_name = 'tick' AND slot = (SELECT min(slot) FROM scheduled_slots WHERE "
        "task_name = 'tick')"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE kept AS SELECT * FROM scheduled_slots WHERE {chosen}"
        )
        connection.execute(f"DELETE FROM scheduled_slots WHERE {chosen}")
        found = judged(home)
        connection.execute("INSERT INTO scheduled_slots SELECT * FROM kept")
    assert found.returncode == 1
    assert "BROKEN  missing" in found.stdout


def _doctor_the_log(home: str) -> None:
    """A start is written a second time, as if the handler had been started twice."""
    path = Path(home) / "handlers.log"
    line = next(
        line
        for line in path.read_text().splitlines()
        if '"payout"' in line and '"start"' in line
    )
    with path.open("a") as log:
        log.write(line + "\n")
    found = judged(home)
    assert found.returncode == 1
    assert "BROKEN  twice: payout" in found.stdout


def test_ctrl_c_ends_the_demo_at_any_time_and_leaves_nothing_behind() -> None:
    """No worker, no server, no folder is left of a demo that was interrupted in the middle."""
    with demo() as play:
        play.read_until(r"three workers started")
        homes = {
            found.group(0)
            for found in re.finditer(
                r"/\S*slotwise-demo-\w+", " ".join(_all_command_lines())
            )
        }
        assert play.interrupt() == 130
    assert "stopped" in play.output
    for home in homes:
        assert processes_in(home) == [] or _belongs_to_another_demo(home)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_ctrl_c_that_was_held_back_ends_the_demo_as_soon_as_it_listens() -> None:
    """`dev.py demo` starts it so: no traceback from the middle of an import."""
    hold = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, "
        "{signal.SIGINT}); os.execv(sys.executable,"
    )
    hold += " [sys.executable, '-m', 'slotwise.demo'])"
    with subprocess.Popen(
        [sys.executable, "-c", hold],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        status = Path(f"/proc/{process.pid}/status")
        while "SigBlk:\t0000000000000002" not in status.read_text():
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in out
    assert "stopped" in out


def _belongs_to_another_demo(home: str) -> bool:
    return Path(home).exists()


def _all_command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(
                path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
    return found
