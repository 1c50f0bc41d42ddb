"""Commands as users start them: real processes in an empty directory, their log events read as
they come.
"""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Self

import pytest
from tests.kit import processes
from tests.kit.patience import PATIENCE
from tests.kit.processes import Forked

from slotwise.cli.entry import status
from slotwise.engine.process.tuning import ECHO

#: Short leases and polls: what takes minutes by default takes a second.
QUICK = {
    "SLOTWISE_HEARTBEAT_INTERVAL": "300ms",
    "SLOTWISE_POLL_INTERVAL": "300ms",
    "SLOTWISE_SHUTDOWN_GRACE": "10s",
    "SLOTWISE_THREADS": "4",
}
#: A command that starts no worker waits for its answers as long as a machine with many busy
#: neighbours takes: the deadlines of statements, locks and connections follow from this.
PATIENT = {"SLOTWISE_HEARTBEAT_INTERVAL": "5s"}


class Shell:
    """An empty directory with an application in it, and a database's address in the
    environment.
    """

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLOTWISE_")
        }
        self.environment = {**kept, **QUICK, "DATABASE_URL": url}
        self._running: list[Process] = []

    def write(self, name: str, text: str) -> Path:
        file = self.directory / name
        file.write_text(text)
        # A module of as many bytes, written in the same second, has the same stamp as the old one.
        cached = self.directory / "__pycache__"
        for compiled in cached.glob(f"{file.stem}.*.pyc"):
            compiled.unlink()
        return file

    def run(
        self, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``slotwise …`` to its end."""
        return processes.run(
            *("-m", "slotwise", *arguments),
            directory=self.directory,
            environment={**self.environment, **environment},
        )

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same in this process, where neither signals nor the application matter: it costs no
        second of imports.
        """
        out, err = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as here,
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            here.chdir(self.directory)
            for name in [name for name in os.environ if name.startswith("SLOTWISE_")]:
                here.delenv(name)
            for name, value in self.environment.items():
                is_quick = value == QUICK.get(name)
                here.setenv(name, PATIENT.get(name, value) if is_quick else value)
            returned = status(arguments)
        return subprocess.CompletedProcess(
            arguments, returned, out.getvalue(), err.getvalue()
        )

    def start(self, *arguments: str, **environment: str) -> Process:
        """Start ``slotwise …``; it is killed at the end of the test."""
        return self._watch(
            processes.start(
                *("-m", "slotwise", *arguments),
                directory=self.directory,
                environment={**self.environment, **environment},
                new_session=True,
            )
        )

    def worker(self, *arguments: str, **environment: str) -> Process:
        """A worker that logs each event as JSON."""
        return self.start(
            "worker",
            "--log-format",
            "json",
            "--log-level",
            "DEBUG",
            *arguments,
            **environment,
        )

    def close(self) -> None:
        for process in self._running:
            process.close()

    def start_under(self, *wrapper: str, arguments: tuple[str, ...]) -> Process:
        """Start ``wrapper … slotwise …``."""
        return self._watch(
            subprocess.Popen(
                [*wrapper, sys.executable, "-m", "slotwise", *arguments],
                cwd=self.directory,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )

    def _watch(self, started: Forked | subprocess.Popen[str]) -> Process:
        process = Process(started)
        self._running.append(process)
        return process


class Process:
    """A running command; its lines are read by threads, so that nothing blocks it."""

    def __init__(self, started: Forked | subprocess.Popen[str]) -> None:
        self._popen = started
        self.seen: list[dict[str, Any]] = []
        self.out: list[str] = []
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=work, daemon=True)
            for work in (self._read_log, self._read_output)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait_for(self, event: str, **facts: Any) -> dict[str, Any]:
        """The next event of this name with these facts; events before it are passed over."""
        deadline = time.monotonic() + PATIENCE
        while (left := deadline - time.monotonic()) > 0:
            try:
                found = self._events.get(timeout=left)
            except queue.Empty:
                break
            if found["event"] == event and all(
                found.get(name) == value for name, value in facts.items()
            ):
                return found
        raise AssertionError(
            f"no {event} {facts} within {PATIENCE} s; seen: {self.seen[-20:]}"
        )

    def wait_until_seen(self, event: str, count: int = 1, **facts: Any) -> None:
        """Until so many events of this name with these facts have come, in whatever order with
        others.
        """

        def enough() -> bool:
            found = [
                one
                for one in self.events(event)
                if all(one.get(name) == value for name, value in facts.items())
            ]
            return len(found) >= count

        wait_until(enough, f"{count} {event} {facts}; seen: {self.seen[-20:]}")

    def wait_until_text(self, words: str) -> None:
        """Until a line that is not JSON has told this."""
        wait_until(
            lambda: any(words in event["text"] for event in self.events("text")),
            f"log {words!r}",
        )

    def wait_for_output(self, word: str) -> None:
        """Until a line with this word has come out."""
        wait_until(
            lambda: any(word in line for line in self.out),
            f"output {word!r}, with {self.seen[-5:]}",
        )

    def signal(self, number: int) -> Self:
        self._popen.send_signal(number)
        return self

    def signal_again(self, number: int) -> Self:
        """A further request, after the one that has been seen to work: so late that it is no echo
        of that.
        """
        time.sleep(ECHO.total_seconds() + 0.1)
        return self.signal(number)

    def end(self) -> int:
        """The exit status; waits for it, and for the last line."""
        status = self._popen.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return status

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        return self.signal(signal.SIGTERM).end()

    def children(self) -> list[int]:
        """The processes that it has started and that still are."""
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        pairs = (line.split() for line in listed.splitlines())
        return [int(pid) for pid, parent in pairs if int(parent) == self.pid]

    def events(self, event: str) -> Iterator[dict[str, Any]]:
        """All events of this name so far."""
        return (found for found in list(self.seen) if found["event"] == event)

    def close(self) -> None:
        """Kill it and whatever it has started."""
        for pid in [*self.children(), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.end()

    def _read_log(self) -> None:
        assert self._popen.stderr is not None
        with self._popen.stderr as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    event = {"event": "text", "text": line.rstrip("\n")}
                self.seen.append(event)
                self._events.put(event)

    def _read_output(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as lines:
            for line in lines:
                self.out.append(line.rstrip("\n"))


def alive(pid: int) -> bool:
    """Whether a process of this number runs; a zombie does not."""
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return bool(listed.strip()) and not listed.startswith("Z")


def wait_until(check: Any, what: str, every: float = 0.02) -> None:
    """Until ``check()`` is true, for things that no event tells; a check that costs something
    is made less often.
    """
    deadline = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(every)
