"""``slotwise top``: jobs, tasks and workers in a live view, with keys for the operations."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Final

import click
from rich.live import Live
from sqlalchemy.exc import SQLAlchemyError

from slotwise import SlotwiseError
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import Command, Given, common, pass_given
from slotwise.cli.shared.output import as_json, print_json, print_table, screen_console
from slotwise.cli.shared.terminal import say
from slotwise.cli.top_screen import (
    JOB_COLUMNS,
    TASK_COLUMNS,
    Act,
    Screen,
    Situation,
    job_cells,
    ordered,
    picture,
    press,
    shown_jobs,
    task_cells,
)
from slotwise.inspect import RECURRING, Inspection, json_value
from slotwise.operations import Operations
from slotwise.spi import describe_error

#: Seconds between two looks at the tables.
REFRESH: Final = 2.0
#: How many jobs are read, by name.
MOST_JOBS: Final = 500
#: How many jobs have rates at once: no screen has more lines.
MOST_RATES: Final = 200
#: How long a worker may take to say where a handler is.
ANSWER: Final = "5s"
#: What a terminal sends for keys without a character.
_KEYS: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x04": "q",
}
_ENDS: Final = {signal.SIGTERM: exits.TERMINATED, signal.SIGHUP: exits.HUNG_UP}


@click.command(
    cls=Command,
    short_help="A live view of jobs, tasks and workers, with keys for operations.",
    examples="""
    slotwise top
    slotwise top --json | jq '.jobs[] | select(.consecutive_failures > 0) | .job'
    slotwise top | head                       without a terminal, one picture
    """,
)
@common
@pass_given
def top(given: Given) -> None:
    """Show what runs, what fails and what is due next, and renew that every two seconds.

    Keys: up and down, or k and j, select a job; p pauses it, r resumes it, t triggers it, s skips
    its next slot, c cancels what runs, each after a y; e explains it, w shows where its handlers
    are; q ends. Operations need the rights of an operator, and are in the audit. With --json, or
    without a terminal, it prints once and ends. Of very many jobs, the first 500 by name are shown.
    """
    with given.operations() as (operations, inspect):
        is_live = sys.stdin.isatty() and sys.stdout.isatty() and not given.json
        if not is_live or os.environ.get("TERM") == "dumb":
            _print_once(given, situation(inspect))
            return
        with _keyboard() as read_key:
            _run(operations, inspect, read_key)


def situation(
    inspect: Inspection, selected: str | None = None, room: int = MOST_RATES
) -> Situation:
    """Read the tables."""
    jobs = ordered(inspect.jobs(limit=MOST_JOBS))
    names = [line.job for line in shown_jobs(jobs, selected, min(room, MOST_RATES))]
    pause = inspect.all_paused()
    note = f": {pause.note}" if pause is not None and pause.note else ""
    return Situation(
        now=inspect.now(),
        paused=None if pause is None else f"paused by {pause.author}{note}",
        workers=inspect.workers(),
        jobs=jobs,
        rates=inspect.rates_of(names),
        tasks=inspect.task_counts(),
    )


# -- without a terminal ---------------------------------------------------------------------------


def _print_once(given: Given, found: Situation) -> None:
    if given.json:
        print_json(_as_json(found))
        return
    live = [one for one in found.workers if one.live]
    busy = sum(one.running for one in live)
    say(f"workers: {len(live)} live, {busy} running")
    if found.paused:
        say(f"everything was {found.paused}", err=True)
    print_table(JOB_COLUMNS, [job_cells(line, found)[1:] for line in found.jobs])
    if found.tasks:
        print_table(
            TASK_COLUMNS, [task_cells(line, found.now) for line in found.tasks]
        )


def _as_json(found: Situation) -> Mapping[str, object]:
    jobs = []
    for line in found.jobs:
        rates = found.rates.get(line.job)
        jobs.append({**as_json(line), "rates": rates and as_json(rates)})
    return {
        "now": json_value(found.now),
        "paused": found.paused,
        "workers": [as_json(one) for one in found.workers],
        "jobs": jobs,
        "tasks": [as_json(one) for one in found.tasks],
    }


# -- the live view --------------------------------------------------------------------------------


def _run(
    operations: Operations,
    inspect: Inspection,
    read_key: Callable[[float], str | None],
) -> None:
    """Show the tables until a key ends it. While the database is away, the last picture stays."""
    console = screen_console()
    screen = Screen()
    found = situation(inspect)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown = picture(found, screen, console.size.height)
            live.update(shown, refresh=True)
            key = read_key(REFRESH)
            try:
                if key is None:
                    found = situation(inspect, screen.selected, console.size.height)
                    continue
                screen, act = press(screen, key, [line.job for line in found.jobs])
                if act is Act.QUIT:
                    return
                if act is not None and screen.selected is not None:
                    screen = done(act, screen, operations, inspect)
                    found = situation(inspect, screen.selected, console.size.height)
            except (SlotwiseError, SQLAlchemyError) as error:
                screen = replace(screen, message=_told(error))


def _told(error: SlotwiseError | SQLAlchemyError) -> str:
    return str(error) if isinstance(error, SlotwiseError) else describe_error(error)


def done(
    act: Act, screen: Screen, operations: Operations, inspect: Inspection
) -> Screen:
    """Do what a key has asked for, about the selected job; return the screen with the answer."""
    job = screen.selected
    assert job is not None  # the caller has looked
    if act is Act.EXPLAIN:
        explained = inspect.explain_job(job)
        lines = ["no such job any more"] if explained is None else explained.sentences
        return replace(screen, page=[f"{job}:", *lines])
    if act is Act.WHERE:
        return replace(screen, page=_places(operations, job))
    return replace(screen, message=f"{job}: {_operate(act, operations, job)}")


def _operate(act: Act, operations: Operations, job: str) -> str:
    if act is Act.PAUSE:
        return "paused" if operations.pause(job) else "was paused already"
    if act is Act.RESUME:
        return "resumed" if operations.resume(job) else "was not paused"
    if act is Act.TRIGGER:
        return f"triggered, as the slot {operations.trigger(job):%H:%M:%S} UTC"
    if act is Act.SKIP_NEXT:
        return f"skips {operations.skip_next(job):%Y-%m-%d %H:%M:%S} UTC"
    count = len(operations.cancel(job))
    return f"asked {count} running slots to stop" if count else "nothing runs"


def _places(operations: Operations, job: str) -> list[str]:
    """Return the lines of code that the handlers of a job are in."""
    found = operations.stacks(job, timeout=ANSWER)
    lines = [] if found else [f"nothing of {job} runs now"]
    for one in found:
        what = job if one.id == RECURRING else f"{job} {one.id}"
        lines.append(f"{what}, attempt {one.attempt}, on {one.worker}:")
        answer = one.stack or f"  no answer within {ANSWER}: this worker is frozen"
        lines += answer.rstrip().splitlines()
    return lines


# -- keys -----------------------------------------------------------------------------------------


@contextmanager
def _keyboard() -> Iterator[Callable[[float], str | None]]:
    """Read keys without their echo; yield a function that waits so long for one.

    The terminal is as before in the end, also after a signal.
    """
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    handlers = {number: signal.signal(number, _end) for number in _ENDS}
    try:
        tty.setcbreak(descriptor)
        yield lambda seconds: _read_key(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(_ENDS[signal.Signals(number)])


def _read_key(descriptor: int, seconds: float) -> str | None:
    """Return the key that is pressed within this time, None without one. A closed terminal ends
    the view.
    """
    ready, _, _ = select.select([descriptor], [], [], seconds)
    if not ready:
        return None
    found = os.read(descriptor, 16).decode(errors="replace")
    return _KEYS.get(found, found[:1]) if found else "q"
