"""The worker processes of one measurement, their progress and their cost."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from tools.bench.journal import Journal, RanWrong
from tools.bench.machine import cpu_of, memory_of
from tools.bench.server import Server

#: How long, in seconds, a step may take before the benchmark gives up.
PATIENCE = 900.0
#: The checkout, from which processes of the benchmark import it.
ROOT = Path(__file__).resolve().parents[2]
_LOOK = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Progress and cost at one moment."""

    at: float
    done: int
    client: float | None
    server: float | None

    def since(self, before: Sample) -> dict[str, float]:
        """Return executions per second, and microseconds of CPU per execution."""
        done = max(self.done - before.done, 1)
        seconds = max(self.at - before.at, 1e-6)
        figures = {"rate": done / seconds}
        for name in ("client", "server"):
            after = getattr(self, name)
            earlier = getattr(before, name)
            if after is not None and earlier is not None:
                figures[f"{name}_us"] = (after - earlier) / done * 1e6
        return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Arguments and environment of a worker process; BENCH_JOURNAL, its journal's path, is
    added.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]


class Crew:
    """Worker processes, each with its own journal. The context manager starts them, and stops them
    at its end.
    """

    def __init__(
        self, server: Server, command: Command, processes: int, capacity: int
    ) -> None:
        """Make the journals; each has room for ``capacity`` starts."""
        self._server = server
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="slotwise-bench-")
        paths = [
            Path(self._folder.name) / f"journal-{number}"
            for number in range(processes)
        ]
        self.journals = [Journal(path, capacity) for path in paths]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for number, journal in enumerate(self.journals):
            with (Path(self._folder.name) / f"log-{number}").open("wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, *self._command.arguments],
                        env={
                            **clean_environment(),
                            "PYTHONPATH": python_path(ROOT),
                            **self._command.environment,
                            "BENCH_JOURNAL": str(journal.path),
                        },
                        cwd=self._folder.name,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._folder.cleanup()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def done(self) -> int:
        """Return how many handlers have started."""
        return sum(journal.count() for journal in self.journals)

    def sample(self) -> Sample:
        return Sample(
            at=perf_counter(),
            done=self.done(),
            client=cpu_of(self.pids),
            server=self._server.cpu(),
        )

    def peak(self) -> float | None:
        """Return the highest memory of any of them, in MiB."""
        found = [memory_of(pid, peak=True) for pid in self.pids]
        return max((one for one in found if one is not None), default=None)

    def wait(
        self, check: Callable[[], bool], what: str, patience: float = PATIENCE
    ) -> None:
        """Wait until ``check()`` is true. Raises RanWrong when that takes too long, or a worker
        has ended.
        """
        end = perf_counter() + patience
        while not check():
            if (
                any(process.poll() is not None for process in self._processes)
                and not check()
            ):
                raise RanWrong(f"a worker ended before {what}: {self._last_words()}")
            if perf_counter() > end:
                raise RanWrong(
                    f"{what}: not within {patience:.0f} s, {self.done()} done: {self._last_words()}"
                )
            time.sleep(_LOOK)

    def rest(self, seconds: float) -> None:
        """Wait while they work."""
        end = perf_counter() + seconds
        self.wait(lambda: perf_counter() >= end, "the time was up", seconds + PATIENCE)

    def warm(self, total: int) -> None:
        """Wait until each has done a twentieth of its share: it has then connected, imported
        and planned.
        """
        share = max(total // 20 // len(self.journals), 1)
        self.wait(
            lambda: (
                all(one.count() >= share for one in self.journals)
                or self.done() >= total
            ),
            "it was warm",
        )

    def stop(self) -> None:
        """Send SIGTERM, and after 20 seconds SIGKILL."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            if process.poll() is None:
                process.kill()
                process.wait()

    def _last_words(self) -> str:
        logs = sorted(Path(self._folder.name).glob("log-*"))
        words = [log.read_text(errors="replace").strip()[-600:] for log in logs]
        return " | ".join(word for word in words if word) or "no output"


def clean_environment() -> dict[str, str]:
    """Return our environment without the variables that would configure slotwise or libpq."""
    prefixes = ("SLOTWISE_", "PG", "BENCH_", "DATABASE_URL")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(prefixes)
    }


def python_path(root: Path) -> str:
    """Return our PYTHONPATH behind the checkout of a benchmark."""
    return os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
