"""Whether one worker is alive and ready: no loop is stuck; and a file whose age tells it to other processes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from slotwise.engine.loops.service import Service
from slotwise.engine.worker import Worker
from slotwise.errors import ConfigurationError
from slotwise.model.durations import parse_duration

logger = logging.getLogger("slotwise.health")

#: The least time after which a loop counts as stuck, by default: restarts must not make a slow database slower.
SHORTEST: Final = timedelta(minutes=1)
#: How often the file is written.
INTERVAL: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The health of one worker, or the worst of several. ``problems``: why it is not alive, or not ready."""

    is_alive: bool
    is_ready: bool
    problems: tuple[str, ...] = ()


class WorkerHealth:
    """Judges a worker by its loops, without the database.

    A loop is stuck if its current round has lasted for longer than ``stuck_after``; by default two leases, at least one
    minute. Every statement has a deadline, so an absent or slow database leaves the worker alive: a restart would not
    help, and handlers may be running. A worker is ready when it has started, does not drain and reaches the database.
    """

    def __init__(self, worker: Callable[[], Worker | None], stuck_after: timedelta | str | None = None) -> None:
        self._worker = worker
        self._stuck_after = None if stuck_after is None else parse_duration(stuck_after)
        if self._stuck_after is not None and not self._stuck_after:
            raise ConfigurationError("stuck_after must be more than zero")

    def check(self) -> Verdict:
        """Return the verdict; a process whose worker has not started, or has stopped, is alive and not ready."""
        if (worker := self._worker()) is None:
            return Verdict(is_alive=True, is_ready=False, problems=("no worker runs in this process",))
        limit = self._stuck_after or max(2 * worker.settings.lease, SHORTEST)
        stuck = [problem for loop in worker.loops if (problem := _problem(loop, worker, limit.total_seconds()))]
        if stuck:
            return Verdict(is_alive=False, is_ready=False, problems=tuple(stuck))
        unready = _unready(worker)
        return Verdict(is_alive=True, is_ready=unready is None, problems=() if unready is None else (unready,))


def busy_for(loop: Service) -> float:
    """Return for how many seconds the current round of a loop has lasted; 0 while it sleeps."""
    since = loop.busy_since
    return 0.0 if since is None else max(loop.elapsed() - since, 0.0)


def _problem(loop: Service, worker: Worker, limit: float) -> str | None:
    if not loop.has_started:
        return None
    if (busy := busy_for(loop)) > limit:
        return f"the loop {loop.name} is stuck: its round has lasted for {busy:.0f} s"
    if not worker.is_draining and loop.join(timedelta(0)) and not worker.wait_for_stop(0):
        return f"the loop {loop.name} has ended"
    return None


def _unready(worker: Worker) -> str | None:
    if worker.is_draining or worker.wait_for_stop(0):
        return "the worker drains"
    if worker.database_is_away:
        return "the database is away"
    return None if worker.poller.has_started else "the worker is starting"


class AliveFile:
    """Writes a file again every two seconds while the process is alive; it is removed at the end.

    A probe compares the age of the file with its own limit. The content is one JSON object, for people.
    """

    def __init__(self, path: Path, check: Callable[[], Verdict]) -> None:
        """Raise ConfigurationError if the file cannot be written."""
        self._path, self._check = path, check
        self._stopping = threading.Event()
        self._told: tuple[str, ...] = ()
        try:
            self._write(Verdict(is_alive=True, is_ready=False, problems=("the worker is starting",)))
        except OSError as error:
            raise ConfigurationError(
                f"--alive-file {path}: {error.strerror}; name a file in a folder that exists"
            ) from None
        self._thread = threading.Thread(target=self._run, name="slotwise-alive-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop writing and remove the file."""
        self._stopping.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink()

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL.total_seconds()):
            verdict = self._check()
            if not verdict.is_alive and verdict.problems != self._told:
                self._told = verdict.problems
                logger.error("not alive, so %s is not written: %s", self._path, "; ".join(verdict.problems))
            if verdict.is_alive:
                with suppress(OSError):  # no space is left: the file grows old, and the next round tries again
                    self._write(verdict)

    def _write(self, verdict: Verdict) -> None:
        """Race: a probe may read at any time, so the file is replaced as a whole."""
        draft = self._path.with_name(f".{self._path.name}.new")
        draft.write_text(json.dumps({"ready": verdict.is_ready, "problems": verdict.problems}) + "\n")
        draft.replace(self._path)
