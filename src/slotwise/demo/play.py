"""The play: its events in order, and the verdict at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from slotwise.demo.evidence import HandlerLog, gather
from slotwise.demo.jobs import registry
from slotwise.demo.stage import (
    LEASE,
    PATIENCE,
    SETTINGS,
    NothingHappened,
    Stage,
    WorkerProcess,
)
from slotwise.demo.verdict import Verdict, judge
from slotwise.demo.view import Scene, View, read_scene
from slotwise.spi import tables

#: The play's length in seconds, after the set-up.
LENGTH = 36.0


#: The verdict's columns, and the counts behind them.
COUNTS = {
    "due": "due",
    "ran": "ran",
    "ok": "succeeded",
    "failed": "failed",
    "skipped": "skipped",
    "taken over": "taken_over",
    "lost": "lost",
    "missing": "missing",
    "twice": "twice",
}


class Play:
    """Runs the acts and keeps the view up to date."""

    def __init__(self, stage: Stage, view: View, length: float = LENGTH) -> None:
        self._stage = stage
        self._view = view
        self._engine = stage.engine()
        self._end = time.monotonic() + length
        self._scene = Scene()

    def run(self) -> None:
        """Run from the first worker to the last act; the workers keep running."""
        for name, value in SETTINGS.items():
            self._view.say(f"shortened for the demo: {name}={value}")
        for _ in range(3):
            self._stage.start_worker()
        self._view.say("three workers started")
        self._until(lambda: len(self._scene.workers) == 3, "three workers at work")
        self._pass(3)
        self._kill()
        self._pass(2)
        self._freeze()
        self._restart_database()
        while time.monotonic() < self._end:
            self._pass(0.5)

    def _kill(self) -> None:
        victim = self._catch("report")
        self._stage.kill(victim)
        self._view.say(f"SIGKILL: {victim.label} died in the middle of report")
        self._until(
            lambda: any(
                row["task_name"] == "report" for row in self._scene.taken_over
            ),
            "report taken over",
        )
        self._view.say("report was taken over and starts again on another worker")
        self._stage.start_worker()
        self._view.say("a fourth worker takes the dead one's place")

    def _freeze(self) -> None:
        victim = self._catch("report")
        self._view.say(
            f"SIGSTOP: {victim.label} is frozen for longer than its lease of {LEASE:.0f}s"
        )
        self._until(
            lambda: bool(self._scene.jobs) and self._holder("report") is not victim,
            "report taken from the frozen one",
        )
        self._pass(LEASE / 2)
        self._stage.thaw(victim)
        self._view.say(
            f"SIGCONT: {victim.label} wakes up; its writes to lost claims are refused"
        )
        self._pass(2)

    def _restart_database(self) -> None:
        self._view.say("the database restarts")
        self._stage.postgres.restart("fast")
        self._until(lambda: self._scene.at is not None, "the database to answer")
        self._view.say("the database is back; the workers continue")
        since = self._scene.at
        self._until(
            lambda: self._have_beaten(since),
            "a heartbeat of every worker after the restart",
        )

    def _have_beaten(self, since: datetime | None) -> bool:
        """Return whether all running workers have sent a heartbeat since."""
        running = {
            worker.process.pid for worker in self._stage.workers if worker.is_running
        }
        heard = {
            row["pid"]
            for row in self._scene.workers
            if since is not None and row["last_seen"] >= since
        }
        return running <= heard

    def _catch(self, job: str) -> WorkerProcess:
        """Return the worker that runs this job, frozen: otherwise the job might end before the
        worker is hit.
        """
        while True:
            self._until(
                lambda: self._holder(job) is not None, f"a worker that runs {job}"
            )
            if (found := self._holder(job)) is None:
                continue
            self._pass(0.5)
            self._stage.freeze(found)
            self._pass(0.2)  # statements that it had sent before are committed by now
            if found is self._holder(job):
                return found
            self._stage.thaw(found)

    def _holder(self, job: str) -> WorkerProcess | None:
        holder = self._stage.holder_of(self._scene.jobs, job)
        return holder if holder is not None and holder.is_running else None

    def _pass(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= deadline, "the end of a pause")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until the condition holds. Raises NothingHappened, and WorkerEnded for a worker
        that was not killed.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            self._scene = read_scene(self._engine)
            self._view.show(
                self._scene, self._stage, max(self._end - time.monotonic(), 0)
            )
            if condition():
                return
            self._stage.check_alive()
            if time.monotonic() >= deadline:
                raise NothingHappened(
                    f"{what}: not within {PATIENCE:.0f} s; is this machine busy? try again"
                )
            time.sleep(0.1)


def pronounce(
    console: Console, engine: sa.Engine, log: Path, *, running: bool
) -> bool:
    """Print the verdict, from the ledger and from the handlers' own log. Return whether every law
    held.

    ``running``: rows that live workers still hold break no law.
    """
    with engine.connect().execution_options(
        isolation_level="REPEATABLE READ"
    ) as connection:
        live = (
            set(connection.scalars(sa.select(tables().workers.c.worker)))
            if running
            else ()
        )
        evidence = gather(
            connection,
            registry.definitions.values(),
            HandlerLog(log),
            completes={"digest"},
        )
    verdict = judge(evidence, live=live)
    console.print(_table(verdict))
    for text in _sentences(verdict):
        console.print(text, highlight=False)
    return verdict.clean


def _table(verdict: Verdict) -> Table:
    table = Table(
        title="verdict, from the ledger and from the handlers' own log",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("job", no_wrap=True)
    for heading in COUNTS:
        table.add_column(heading, justify="right", no_wrap=True)
    for job, tally in sorted(verdict.jobs.items()):
        table.add_row(job, *(str(getattr(tally, name)) for name in COUNTS.values()))
    table.add_row(
        "all", *(str(getattr(verdict.tally, name)) for name in COUNTS.values())
    )
    return table


def _sentences(verdict: Verdict) -> Iterator[str]:
    total = verdict.tally
    yield (
        f"slots due {total.due}, ran {total.ran}, taken over {total.taken_over}, "
        f"lost {total.lost}, twice {total.twice}"
    )
    for finding in verdict.findings:
        yield f"BROKEN  {finding}"
    yield (
        "every slot is accounted for"
        if verdict.clean
        else f"{len(verdict.findings)} laws were broken"
    )
