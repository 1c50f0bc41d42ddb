"""The state of the tables during the demo, and its views: a live picture on a terminal, lines
elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
from slotwise.spi import Outcome, short_duration, tables

#: Lines of slots that were taken over, and the fewest of the story.
MOST_TAKEN_OVER = 3
LEAST_STORY = 2

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
                connection.scalar(sa.select(sa.func.count()).select_from(digests))
                or 0,
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
            .filter(
                slots.c.outcome.in_((Outcome.LOST, Outcome.DEAD, Outcome.CANCELLED))
            )
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
            f"[{time.monotonic() - self._begun:5.1f}s] {text}",
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
        height = self._live.console.size.height
        self._live.update(picture(scene, stage, left, self._said, height))

    def say(self, text: str) -> None:
        self._said.append(f"{time.monotonic() - self._begun:5.1f}s  {text}")


def picture(
    scene: Scene, stage: Stage, left: float, said: Sequence[str], height: int
) -> Group:
    """Return what fits: 24 lines are enough for a line of each table and the story."""
    title = Text(f"slotwise demo, {short_duration(timedelta(seconds=left))} to go")
    title.stylize("bold cyan")
    if scene.at is None:
        title.append("  the database is down", style="bold red")
    tables = [_jobs_table(scene, stage), _workers_table(scene, stage)]
    if scene.taken_over:
        tables.append(_taken_over_table(scene))
    used = 1 + sum(table.row_count + 1 for table in tables)
    story = said[-max(height - 1 - used, LEAST_STORY) :]
    lines = [
        Text(line, style="bold", no_wrap=True, overflow="ellipsis") for line in story
    ]
    return Group(title, *tables, *lines)


def _table(*headings: str) -> Table:
    """A table without rules, one line per row."""
    table = Table(
        box=None,
        pad_edge=False,
        expand=True,
        padding=(0, 2, 0, 0),
        header_style="bold",
    )
    for heading in headings:
        table.add_column(heading.upper(), no_wrap=True, overflow="ellipsis")
    return table


def _jobs_table(scene: Scene, stage: Stage) -> Table:
    table = _table("job", "slot", "state", "attempt", "succeeded", "failed", "lost")
    for row in scene.jobs:
        holder = _label(stage, row["picked_by"])
        state = f"[green]running on {holder}[/]" if holder else "waiting"
        counts = [str(row[name] or 0) for name in ("succeeded", "failed", "lost")]
        table.add_row(
            row["job"], _clock(row["slot"]), state, str(row["attempt"] or ""), *counts
        )
    return table


def _workers_table(scene: Scene, stage: Stage) -> Table:
    table = _table("worker", "pid", "state", "last heartbeat")
    seen = {row["pid"]: row for row in scene.workers}
    for worker in stage.workers:
        row = seen.get(worker.process.pid)
        state = worker.fate or ("running" if worker.is_running else "ended")
        style = {"killed": "red", "frozen": "yellow", "running": "green"}.get(
            state, "dim"
        )
        silent = scene.at - row["last_seen"] if row and scene.at else None
        age = "" if silent is None else f"{short_duration(silent)} ago"
        table.add_row(
            worker.label, str(worker.process.pid), f"[{style}]{state}[/]", age
        )
    return table


def _taken_over_table(scene: Scene) -> Table:
    table = _table("taken over from dead workers", "slot", "attempts", "now")
    for row in scene.taken_over[:MOST_TAKEN_OVER]:
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
