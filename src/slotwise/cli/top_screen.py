"""The screen of ``slotwise top``: what it shows, and what a key does. Pure: reads no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slotwise.cli.shared.output import failed_of_all, outcome, run_time
from slotwise.cli.shared.terminal import moment
from slotwise.contrib.logging import escaped
from slotwise.inspect import JobInfo, JobRates, TaskCount, WorkerInfo
from slotwise.spi import ListedState, short_duration

#: Lines of the screen besides jobs, tasks and a page: heading, column titles, message and keys.
_FRAME = 6
JOB_COLUMNS = ("JOB", "STATE", "NEXT", "LAST 20", "24 HOURS", "RUN TIME")
TASK_COLUMNS = ("TASK", "WAITING", "OLDEST", "RUNNING", "OUT/H", "ETA", "DEAD")
#: The most lines of tasks.
MOST_TASKS = 5
_KEYS = (
    "↑↓  p pause  r resume  t trigger  s skip  c cancel  e explain  w where  q quit"
)


class Act(StrEnum):
    """What a key asks for, about the selected job."""

    PAUSE = "pause"
    RESUME = "resume"
    TRIGGER = "trigger"
    SKIP_NEXT = "skip_next"
    CANCEL = "cancel"
    EXPLAIN = "explain"
    WHERE = "where"
    QUIT = "quit"


_ACTS = {
    "p": Act.PAUSE,
    "r": Act.RESUME,
    "t": Act.TRIGGER,
    "s": Act.SKIP_NEXT,
    "c": Act.CANCEL,
    "e": Act.EXPLAIN,
    "w": Act.WHERE,
}
_READS = (Act.EXPLAIN, Act.WHERE)
UP = ("up", "k")
DOWN = ("down", "j")
#: Keys that close a page, or decline a question.
BACK = ("escape", "q", "n", "enter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the tables say now; ``jobs`` in the order in which they are shown."""

    now: datetime
    paused: str | None = None
    workers: Sequence[WorkerInfo] = ()
    jobs: Sequence[JobInfo] = ()
    rates: Mapping[str, JobRates] = field(default_factory=dict)
    tasks: Sequence[TaskCount] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What a person has chosen: a job by its name, an operation to confirm, a page to read."""

    selected: str | None = None
    asked: Act | None = None
    page: Sequence[str] = ()
    message: str = ""


def ordered(jobs: Sequence[JobInfo]) -> list[JobInfo]:
    """Return what runs first, then what fails, then what is due next."""

    def place(line: JobInfo) -> tuple[bool, bool, bool, float, str]:
        due = line.due.timestamp() if line.due else 0.0
        is_calm = not line.consecutive_failures and line.reason is None
        return line.running_since is None, is_calm, line.due is None, due, line.job

    return sorted(jobs, key=place)


# -- keys -----------------------------------------------------------------------------------------


def press(screen: Screen, key: str, names: Sequence[str]) -> tuple[Screen, Act | None]:
    """Return the screen after a key, and what is to be done; ``names`` are those of the jobs."""
    if screen.page:
        closed = replace(screen, page=())
        return (closed if key in BACK else screen), None
    if screen.asked is not None:
        answered = replace(screen, asked=None, message="")
        return answered, (screen.asked if key == "y" else None)
    if key == "q":
        return screen, Act.QUIT
    return _press_on_list(screen, key, names)


def _press_on_list(
    screen: Screen, key: str, names: Sequence[str]
) -> tuple[Screen, Act | None]:
    """Move within the list of jobs, or act on the selected one."""
    selected = screen.selected if screen.selected in names else next(iter(names), None)
    screen = replace(screen, selected=selected, message="")
    if selected is None:
        return screen, None
    if key in (*UP, *DOWN):
        return replace(screen, selected=_moved(selected, key, names)), None
    act = _ACTS.get(key)
    if act is None or act in _READS:
        return screen, act
    question = f"{act.replace('_', ' ')} {selected}? y/n"
    return replace(screen, asked=act, message=question), None


def _moved(selected: str, key: str, names: Sequence[str]) -> str:
    step = -1 if key in UP else 1
    place = names.index(selected) + step
    return names[min(max(place, 0), len(names) - 1)]


# -- the picture ----------------------------------------------------------------------------------


def picture(found: Situation, screen: Screen, height: int) -> RenderableType:
    """Return what fits into this many lines."""
    keys = Text(_KEYS, style="dim", no_wrap=True, overflow="ellipsis")
    message = Text(escaped(screen.message), style="bold yellow", no_wrap=True)
    if screen.page:
        page = [Text(escaped(line)) for line in screen.page[: height - 2]]
        return Group(*page, message, Text("q back", style="dim"))
    tasks = [one for one in found.tasks if one.waiting or one.running or one.dead]
    room = max(height - _FRAME - min(len(tasks) + 1, MOST_TASKS + 1) * bool(tasks), 1)
    parts: list[RenderableType] = [
        *_heading(found),
        _jobs(found, screen.selected, room),
    ]
    if tasks:
        parts.append(_tasks(tasks[:MOST_TASKS], found.now))
    return Group(*parts, message, keys)


def shown_jobs(
    jobs: Sequence[JobInfo], selected: str | None, room: int
) -> Sequence[JobInfo]:
    """Return the part of the list that has the selected job in it."""
    names = [line.job for line in jobs]
    place = names.index(selected) if selected in names else 0
    first = max(min(place - room // 2, len(jobs) - room), 0)
    return jobs[first : first + room]


def _heading(found: Situation) -> list[Text]:
    live = [one for one in found.workers if one.live]
    busy = sum(one.running for one in live)
    capacity = sum(one.capacity for one in live)
    workers = f"workers: {len(live)} live, {busy} of {capacity} busy"
    first = Text(
        f"slotwise top  {moment(found.now.replace(microsecond=0))}  {workers}",
        no_wrap=True,
    )
    first.stylize("bold", 0, len("slotwise top"))
    if not live:
        first.stylize("red", first.plain.index("workers"))
    second = Text(_counted(found.jobs), no_wrap=True)
    if found.paused:
        second = Text(f"everything was {escaped(found.paused)}", style="yellow")
        second.no_wrap = True
    return [first, second]


def _counted(jobs: Sequence[JobInfo]) -> str:
    running = sum(line.running_since is not None for line in jobs)
    failing = sum(line.consecutive_failures > 0 for line in jobs)
    paused = sum(line.state == ListedState.PAUSED for line in jobs)
    return f"jobs: {len(jobs)}, {running} running, {failing} failing, {paused} paused"


def _jobs(found: Situation, selected: str | None, room: int) -> Table:
    table = _table("", *JOB_COLUMNS)
    lines = shown_jobs(found.jobs, selected, room)
    chosen = selected or (lines[0].job if lines else None)
    for line in lines:
        table.add_row(*job_cells(line, found, is_chosen=line.job == chosen))
    return table


def job_cells(
    line: JobInfo, found: Situation, *, is_chosen: bool = False
) -> list[str | Text]:
    """Return the cells of a job: mark, name, state, next slot, and how it fares."""
    rates = found.rates.get(line.job)
    return [
        "›" if is_chosen else " ",
        Text(escaped(line.job), style="reverse" if is_chosen else ""),
        outcome(line.state),
        _next_slot(line, found.now),
        rates.strip if rates else "",
        failed_of_all(rates.day) if rates else "",
        run_time(line, rates.week, found.now) if rates else "",
    ]


def _next_slot(line: JobInfo, now: datetime) -> str:
    if line.next_slot is None or line.running_since is not None:
        return "–"
    ahead = line.next_slot - now
    if ahead.total_seconds() < 0:
        return f"{short_duration(-ahead)} ago"
    return f"in {short_duration(ahead)}"


def _tasks(lines: Sequence[TaskCount], now: datetime) -> Table:
    table = _table(*TASK_COLUMNS)
    for line in lines:
        table.add_row(*task_cells(line, now))
    return table


def task_cells(line: TaskCount, now: datetime) -> list[str | Text]:
    """Return the cells of a task: what waits, since when, what runs, and when it has ended."""
    waiting = f"over {line.waiting - 1:,}" if line.has_more else f"{line.waiting:,}"
    return [
        Text(escaped(line.task)),
        waiting,
        short_duration(None if line.oldest is None else now - line.oldest),
        f"{line.running:,}",
        f"{line.ended:,.0f}",
        short_duration(line.left if line.due and not line.has_more else None),
        Text(f"{line.dead:,}", style="red" if line.dead else ""),
    ]


def _table(*columns: str) -> Table:
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        collapse_padding=True,
        expand=True,
    )
    for column in columns:
        # The name gets what the others leave.
        ratio = 1 if column in ("JOB", "TASK") else None
        table.add_column(
            column, no_wrap=True, overflow="ellipsis", header_style="bold", ratio=ratio
        )
    return table
