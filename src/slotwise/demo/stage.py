"""The stage: a private PostgreSQL, and worker processes that are started, killed and frozen."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from slotwise import Settings, SlotwiseError
from slotwise.demo.jobs import HOME, digests
from slotwise.embedded import EmbeddedPostgres
from slotwise.operations import Schema
from slotwise.spi import database_url

#: Shortened, so that a lease expires within seconds; the defaults are 10 s, 6 and 10 s.
SETTINGS = {
    "SLOTWISE_HEARTBEAT_INTERVAL": "500ms",
    "SLOTWISE_MISSED_HEARTBEATS_LIMIT": "4",
    "SLOTWISE_POLL_INTERVAL": "1s",
    "SLOTWISE_SHUTDOWN_GRACE": "8s",
}
LEASE = 2.0
#: The longest wait for an expected event, in seconds, also on a busy machine.
PATIENCE = 60.0


class WorkerEnded(SlotwiseError):
    """A worker of the demo ended although it was not killed."""


class NothingHappened(SlotwiseError):
    """An expected event did not happen in time."""


@dataclass
class WorkerProcess:
    """A worker that the demo started."""

    number: int
    process: subprocess.Popen[bytes]
    lifeline: socket.socket
    fate: str = ""

    @property
    def label(self) -> str:
        return f"worker {self.number}"

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None


@dataclass
class Stage:
    """The processes that the demo started, and how to stop them."""

    home: Path
    postgres: EmbeddedPostgres
    workers: list[WorkerProcess] = field(default_factory=list)

    @classmethod
    @contextmanager
    def open(cls, home: Path) -> Iterator[Stage]:
        """Start a PostgreSQL with the tables and without workers; at the end of the block
        everything is stopped.
        """
        with EmbeddedPostgres(home / "postgres", temporary=True) as postgres:
            stage = cls(home, postgres)
            try:
                stage._provision()
                yield stage
            finally:
                stage.kill_all()

    @property
    def url(self) -> str:
        return self.postgres.dsn

    def engine(self) -> sa.Engine:
        """Return an engine that opens a connection for each use, since the database is
        restarted.
        """
        return sa.create_engine(
            database_url(self.url),
            poolclass=sa.NullPool,
            connect_args={"connect_timeout": 2},
        )

    def _provision(self) -> None:
        Schema(Settings(database_url=self.url)).upgrade()
        with self.engine().begin() as connection:
            digests.create(connection)
        note = {"database_url": self.url, "log": str(self.home / "handlers.log")}
        (self.home / "demo.json").write_text(json.dumps(note))

    def start_worker(self) -> WorkerProcess:
        """Start another worker process, whose output goes to a file.

        It drains when the demo has ended, even by SIGKILL: its lifeline breaks. The kernel wakes a
        worker frozen at that moment, as it wakes stopped processes of a group whose last parent in
        the session has ended.
        """
        number = len(self.workers) + 1
        environment = {
            **os.environ,
            **SETTINGS,
            "DATABASE_URL": self.url,
            HOME: str(self.home),
        }
        environment.pop("SLOTWISE_DATABASE_URL", None)
        ours, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            "slotwise",
            "worker",
            "--app",
            "slotwise.demo.jobs",
            "--log-format",
            "json",
        ]
        with theirs, (self.home / f"worker-{number}.log").open("wb") as output:
            process = subprocess.Popen(
                [*command, f"--lifeline={theirs.fileno()}"],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                process_group=0,
            )
        worker = WorkerProcess(number, process, ours)
        self.workers.append(worker)
        return worker

    def check_alive(self) -> None:
        """Raise WorkerEnded, with the last line of its log, if a worker ended that was not
        killed.
        """
        for worker in self.workers:
            if not worker.is_running and worker.fate != "killed":
                words = (
                    self._log_of(worker)
                    .read_text(errors="replace")
                    .strip()
                    .splitlines()[-1:]
                )
                raise WorkerEnded(
                    f"{worker.label} ended with status {worker.process.returncode}: {words}"
                )

    def _log_of(self, worker: WorkerProcess) -> Path:
        return self.home / f"worker-{worker.number}.log"

    def holder_of(
        self, rows: list[dict[str, object]], job: str
    ) -> WorkerProcess | None:
        """Return the worker of the demo that runs this job right now."""
        for row in rows:
            if row["job"] == job and row["picked_by"]:
                pid = int(str(row["picked_by"]).split(":")[1])
                return next(
                    (worker for worker in self.workers if worker.process.pid == pid),
                    None,
                )
        return None

    def kill(self, worker: WorkerProcess) -> None:
        """Send SIGKILL."""
        worker.fate = "killed"
        worker.process.kill()
        worker.process.wait()

    def freeze(self, worker: WorkerProcess) -> None:
        worker.fate = "frozen"
        worker.process.send_signal(signal.SIGSTOP)

    def thaw(self, worker: WorkerProcess) -> None:
        worker.fate = ""
        worker.process.send_signal(signal.SIGCONT)

    def drain_all(self, patience: float = PATIENCE) -> list[WorkerProcess]:
        """Send SIGTERM to every worker, as a deploy would. Return those that did not end in
        time.
        """
        running = [worker for worker in self.workers if worker.is_running]
        for worker in running:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.terminate()
        deadline = time.monotonic() + patience
        for worker in running:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(deadline - time.monotonic(), 0.1))
        return [worker for worker in running if worker.is_running]

    def kill_all(self) -> None:
        for worker in self.workers:
            if worker.is_running:
                worker.process.kill()
                worker.process.wait()
            worker.lifeline.close()
