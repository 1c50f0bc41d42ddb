"""The state of the tables during the demo, and its views: a live picture on a terminal, lines
elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

import sqlalchemy as sa
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from slotwise.demo.jobs import digests
from slotwise.demo.stage import Stage
from slotwise.spi import Outcome, tables

#: A row of a listing, by column.
ViewRow: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """The state of the tables; ``jobs`` and ``workers`` are empty while the database is down."""

    at: datetime | None = None
    jobs: list[ViewRow] = field(default_factory=list)
    workers: list[ViewRow] = field(default_factory=list)
    taken_over: list[ViewRow] = field(default_factory=list)
    files: int = 0


def read_scene(engine: sa.Engine) -> Scene:
    """Read the tables, in one short transaction."""
    try:
        with engine.connect() as connection:
            at = connection.scalar(sa.select(sa.func.statement_timestamp()))
            return Scene(
                at,
                _read_jobs(connection),
                _read_workers(connection),
                _read_taken_over(connection),
                connection.scalar(sa.select(sa.func.count()).select_from(digests)) or 0,
            )
    except DBAPIError:
        return Scene()


def _read_jobs(connection: sa.Connection) -> list[ViewRow]:
    tasks = tables().tasks
    slots = tables().slots
    ended = (
        sa.select(
            slots.c.task_name,
            sa.func.count()
            .filter(slots.c.outcome == Outcome.SUCCEEDED)
            .label("succeeded"),
            sa.func.count().filter(slots.c.outcome == Outcome.FAILED).label("failed"),
            sa.func.count()
            .filter(slots.c.outcome.in_((Outcome.LOST, Outcome.DEAD, Outcome.CANCELLED)))
            .label("lost"),
        )
        .group_by(slots.c.task_name)
        .subquery()
    )
    statement = (
        sa.select(
            tasks.c.task_name.label("job"),
            tasks.c.slot,
            tasks.c.picked_by,
            tasks.c.attempt,
            ended.c.succeeded,
            ended.c.failed,
            ended.c.lost,
        )
        .select_from(tasks.outerjoin(ended, tasks.c.task_name == ended.c.task_name))
        .order_by(tasks.c.task_name)
    )
    return [dict(row) for row in connection.execute(statement).mappings()]


def _read_workers(connection: sa.Connection) -> list[ViewRow]:
    workers = tables().workers
    statement = sa.select(
        workers.c.worker,
        workers.c.pid,
        workers.c.state,
        workers.c.last_seen,
        workers.c.lease,
    )
    return [
        dict(row)
        for row in connection.execute(statement.order_by(workers.c.started)).mappings()
    ]


def _read_taken_over(connection: sa.Connection) -> list[ViewRow]:
    slots = tables().slots
    statement = (
        sa.select(
            slots.c.task_name,
            slots.c.slot,
            slots.c.outcome,
            slots.c.attempts,
            slots.c.lost,
            slots.c.worker,
        )
        .where(slots.c.lost > 0)
        .order_by(slots.c.slot.desc())
        .limit(6)
    )
    return [dict(row) for row in connection.execute(statement).mappings()]


# -- views ----------------------------------------------------------------------------------------


class View(Protocol):
    """Shows scenes, and messages about what the demo does."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def show(self, scene: Scene, stage: Stage, left: float) -> None: ...
    def say(self, text: str) -> None: ...


class PlainView:
    """Lines, for logs and pipes: messages at once, a summary every five seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._summary = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def show(self, scene: Scene, stage: Stage, left: float) -> None:
        if time.monotonic() - self._summary < 5:
            return
        self._summary = time.monotonic()
        if not scene.jobs:
            self.say(
                "the database is down"
                if scene.at is None
                else "the workers are starting"
            )
            return
        succeeded = sum(row["succeeded"] or 0 for row in scene.jobs)
        held = sum(bool(row["picked_by"]) for row in scene.jobs)
        running = sum(worker.is_running for worker in stage.workers)
        self.say(
            f"{succeeded} slots succeeded, {held} running on {running} workers, "
            f"{len(scene.taken_over)} taken over, {scene.files} files digested"
        )

    def say(self, text: str) -> None:
        self._console.print(
            f"[{time.monotonic() - self._begun:5.1f} s] {text}",
            markup=False,
            highlight=False,
        )


class LiveView:
    """Tables that are redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._begun = time.monotonic()
        self._said: list[str] = []

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, scene: Scene, stage: Stage, left: float) -> None:
        said = Text("\n".join(self._said[-6:]), style="bold")
        title = Text(f"slotwise demo, {left:.0f} s to go", style="bold cyan")
        away = (
            Text("the database is down", style="bold red")
            if scene.at is None
            else Text("")
        )
        self._live.update(
            Group(
                title,
                _jobs_table(scene, stage),
                _workers_table(scene, stage),
                _taken_over_table(scene),
                away,
                said,
            )
        )

    def say(self, text: str) -> None:
        self._said.append(f"{time.monotonic() - self._begun:5.1f} s  {text}")


def _jobs_table(scene: Scene, stage: Stage) -> Table:
    table = Table(title="jobs", title_justify="left", expand=True)
    for heading in ("job", "slot", "state", "attempt", "succeeded", "failed", "lost"):
        table.add_column(
            heading, justify="left" if heading in ("job", "slot", "state") else "right"
        )
    for row in scene.jobs:
        holder = _label(stage, row["picked_by"])
        state = f"[green]running on {holder}[/]" if holder else "waiting"
        counts = [str(row[name] or 0) for name in ("succeeded", "failed", "lost")]
        table.add_row(
            row["job"], _clock(row["slot"]), state, str(row["attempt"] or ""), *counts
        )
    return table


def _workers_table(scene: Scene, stage: Stage) -> Table:
    table = Table(title="workers", title_justify="left", expand=True)
    for heading in ("worker", "pid", "state", "last heartbeat"):
        table.add_column(heading)
    seen = {row["pid"]: row for row in scene.workers}
    for worker in stage.workers:
        row = seen.get(worker.process.pid)
        state = worker.fate or ("running" if worker.is_running else "ended")
        style = {"killed": "red", "frozen": "yellow", "running": "green"}.get(
            state, "dim"
        )
        age = (
            f"{(scene.at - row['last_seen']).total_seconds():.1f} s ago"
            if row and scene.at
            else ""
        )
        table.add_row(worker.label, str(worker.process.pid), f"[{style}]{state}[/]", age)
    return table


def _taken_over_table(scene: Scene) -> Table:
    table = Table(
        title="taken over from dead workers", title_justify="left", expand=True
    )
    for heading in ("job", "slot", "attempts", "now"):
        table.add_column(heading)
    for row in scene.taken_over:
        table.add_row(
            row["task_name"], _clock(row["slot"]), str(row["attempts"]), row["outcome"]
        )
    return table


def _label(stage: Stage, picked_by: str | None) -> str:
    if not picked_by:
        return ""
    pid = int(picked_by.split(":")[1])
    return next(
        (worker.label for worker in stage.workers if worker.process.pid == pid),
        picked_by,
    )


def _clock(instant: datetime | None) -> str:
    return instant.strftime("%H:%M:%S") if instant else ""
