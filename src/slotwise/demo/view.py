"""What people see: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slotwise.demo.scene import Scene
from slotwise.demo.stage import Stage


class View(Protocol):
    """Shows scenes, and says what is done."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, scene: Scene, stage: Stage, left: float) -> None: ...
    def say(self, text: str) -> None: ...


class PlainView:
    """Lines, for logs and pipes: what is done at once, a summary every five seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._summary = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, scene: Scene, stage: Stage, left: float) -> None:
        if time.monotonic() - self._summary < 5 or not scene.jobs:
            return
        self._summary = time.monotonic()
        succeeded = sum(row["succeeded"] or 0 for row in scene.jobs)
        held = sum(bool(row["picked_by"]) for row in scene.jobs)
        running = sum(worker.is_running for worker in stage.workers)
        self.say(
            f"{succeeded} slots succeeded, {held} running on {running} workers, "
            f"{len(scene.taken_over)} taken over, {scene.files} files digested"
        )

    def say(self, text: str) -> None:
        self._console.print(f"[{time.monotonic() - self._begun:5.1f} s] {text}", markup=False, highlight=False)


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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, scene: Scene, stage: Stage, left: float) -> None:
        said = Text("\n".join(self._said[-6:]), style="bold")
        title = Text(f"slotwise demo, {left:.0f} s to go", style="bold cyan")
        away = Text("the database is away", style="bold red") if scene.at is None else Text("")
        self._live.update(Group(title, _jobs(scene, stage), _workers(scene, stage), _taken_over(scene), away, said))

    def say(self, text: str) -> None:
        self._said.append(f"{time.monotonic() - self._begun:5.1f} s  {text}")


def _jobs(scene: Scene, stage: Stage) -> Table:
    table = Table(title="jobs", title_justify="left", expand=True)
    for heading in ("job", "slot", "state", "attempt", "succeeded", "failed", "lost"):
        table.add_column(heading, justify="left" if heading in ("job", "slot", "state") else "right")
    for row in scene.jobs:
        holder = _label(stage, row["picked_by"])
        state = f"[green]running on {holder}[/]" if holder else "waiting"
        counts = [str(row[name] or 0) for name in ("succeeded", "failed", "lost")]
        table.add_row(row["job"], _clock(row["slot"]), state, str(row["attempt"] or ""), *counts)
    return table


def _workers(scene: Scene, stage: Stage) -> Table:
    table = Table(title="workers", title_justify="left", expand=True)
    for heading in ("worker", "pid", "state", "last heartbeat"):
        table.add_column(heading)
    seen = {row["pid"]: row for row in scene.workers}
    for worker in stage.workers:
        row = seen.get(worker.process.pid)
        state = worker.fate or ("running" if worker.is_running else "ended")
        style = {"killed": "red", "frozen": "yellow", "running": "green"}.get(state, "dim")
        age = f"{(scene.at - row['last_seen']).total_seconds():.1f} s ago" if row and scene.at else ""
        table.add_row(worker.label, str(worker.process.pid), f"[{style}]{state}[/]", age)
    return table


def _taken_over(scene: Scene) -> Table:
    table = Table(title="taken over from dead workers", title_justify="left", expand=True)
    for heading in ("job", "slot", "attempts", "now"):
        table.add_column(heading)
    for row in scene.taken_over:
        table.add_row(row["task_name"], _clock(row["slot"]), str(row["attempts"]), row["outcome"])
    return table


def _label(stage: Stage, picked_by: str | None) -> str:
    if not picked_by:
        return ""
    pid = int(picked_by.split(":")[1])
    return next((worker.label for worker in stage.workers if worker.process.pid == pid), picked_by)


def _clock(instant: datetime | None) -> str:
    return instant.strftime("%H:%M:%S") if instant else ""
