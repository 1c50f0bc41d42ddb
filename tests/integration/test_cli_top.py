"""``slotwise top`` on a terminal of its own, and without one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from slotwise import Every, JobContext, JobRegistry, job
from slotwise.cli.entry import status
from slotwise.cli.shared import exits

PATIENCE = 60


@job(name="report", schedule=Every("1h"))
def report(ctx: JobContext) -> None:
    """Returns."""


@pytest.fixture
def registry(pg_url: str) -> Iterator[JobRegistry]:
    made = JobRegistry(jobs=[report], database_url=pg_url, process_hook=False)
    with made:
        yield made
    made.database.close()


class Terminal:
    """A process on a terminal of 80 × 24."""

    def __init__(self, *arguments: str) -> None:
        self.seen = ""
        self.pid, self._end = pty.fork()
        if not self.pid:
            words = [sys.executable, "-m", "slotwise", *arguments]
            os.execve(sys.executable, words, {**os.environ, "TERM": "xterm-256color"})
        size = struct.pack("HHHH", 24, 80, 0, 0)
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, size)
        self.before = termios.tcgetattr(self._end)

    def press(self, keys: str) -> None:
        self.seen = ""
        os.write(self._end, keys.encode())

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + PATIENCE
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen):
            assert time.monotonic() < until, (text, self.seen[-3000:])
            self.read()

    def read(self) -> bool:
        ready, _, _ = select.select([self._end], [], [], 0.2)
        try:
            found = os.read(self._end, 65536) if ready else b" "
        except OSError:  # the process has closed it
            return False
        self.seen += found.decode(errors="replace") if ready else ""
        return bool(found)

    def status(self) -> int:
        """Wait for the end."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self.read()
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(code)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(self.seen[-3000:])

    def is_as_before(self) -> bool:
        """Whether the terminal echoes again, and the alternate screen was left."""
        return termios.tcgetattr(self._end)[3] == self.before[3]


def test_keys_do_operations(registry: JobRegistry, pg_url: str) -> None:
    """After a y; they are in the audit. It quits cleanly."""
    terminal = Terminal("--database-url", pg_url, "top")
    terminal.wait_for("›  report")
    terminal.press("p")
    terminal.wait_for("pause report? y/n")
    terminal.press("n")
    terminal.wait_for("↑↓  p pause")
    terminal.press("p")
    terminal.wait_for("pause report? y/n")
    terminal.press("y")
    terminal.wait_for("report: paused")
    line = registry.inspect.job("report")
    assert line is not None
    assert line.state == "paused"
    terminal.press("e")
    terminal.wait_for("requested pause")
    terminal.press("\x1b")
    terminal.wait_for("↑↓  p pause")
    terminal.press("w")
    terminal.wait_for("nothing of report runs now")
    terminal.press("q")
    terminal.wait_for("↑↓  p pause")
    terminal.press("q")
    assert terminal.status() == exits.OK
    assert "\x1b[?1049l" in terminal.seen
    (entry,) = registry.inspect.audit()
    assert (entry.operation, entry.job) == ("pause", "report")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_restores_the_terminal(
    registry: JobRegistry, pg_url: str, number: signal.Signals
) -> None:
    terminal = Terminal("--database-url", pg_url, "top")
    terminal.wait_for("›  report")
    assert not terminal.is_as_before()
    os.kill(terminal.pid, number)
    assert terminal.status() == 128 + number
    assert "\x1b[?1049l" in terminal.seen
    assert terminal.is_as_before()


def test_without_a_terminal_it_prints_once(
    registry: JobRegistry, pg_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As text, or as JSON."""
    assert status(["--database-url", pg_url, "top"]) == exits.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "workers: 1 live, 0 running"
    assert lines[1].split()[:3] == ["JOB", "STATE", "NEXT"]
    assert lines[2].split()[:2] == ["report", "waiting"]
    assert status(["--database-url", pg_url, "top", "--json"]) == exits.OK
    found = json.loads(capsys.readouterr().out)
    assert found["jobs"][0]["job"] == "report"
    assert found["jobs"][0]["rates"]["strip"] == ""
    assert (len(found["workers"]), found["tasks"], found["paused"]) == (1, [], None)
