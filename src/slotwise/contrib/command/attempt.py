"""Runs one attempt of a command: start it, watch it and the claim, report how it ended."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from slotwise.contrib.command.invocation import Account, account_of, environment
from slotwise.contrib.command.process_group import Output, ProcessGroup
from slotwise.errors import CommandFailed, JobCancelled
from slotwise.model.durations import format_duration
from slotwise.model.vocabulary import Reason

if TYPE_CHECKING:
    from slotwise.contrib.command.invocation import Invocation
    from slotwise.jobs.context import JobContext

#: Time from SIGTERM to SIGKILL; shorter than a stopping worker waits for cancelled handlers.
KILL_AFTER: Final = timedelta(seconds=4)
#: Interval for checking whether the claim was cancelled.
LOOK: Final = timedelta(milliseconds=100)

_HOME: Final = "~"
_HINTS: Final = {
    126: " (it cannot be executed)",
    127: " (not found; PATH is {path})",
}


def run(invocation: Invocation, ctx: JobContext, timeout: timedelta | None = None) -> None:
    """Run the command to its end. Raises CommandFailed, with the end of its output, and JobCancelled.

    ``timeout`` is only for the error message; the worker enforces it.
    """
    account = account_of(invocation.user)
    env = environment(invocation, account, ctx)
    say = partial(ctx.log.info, "%s")
    output = Output(say)
    with _started(invocation, account, env, output, ctx) as group:
        stop = _watch(group, ctx, timeout)
        if stop is not None:
            group.end(KILL_AFTER)
        status = group.finish(say)
    if isinstance(stop, JobCancelled):
        raise stop
    if stop is not None or status != 0:
        raise CommandFailed(_failure(str(stop) if stop else _told(status, env), output), status=status)


def _started(
    invocation: Invocation, account: Account, env: dict[str, str], output: Output, ctx: JobContext
) -> ProcessGroup:
    cwd = _directory(invocation, env, ctx)
    try:
        return ProcessGroup(invocation.argv, output, stdin=invocation.input, cwd=cwd, env=env, **account.switch())
    except OSError as error:
        raise CommandFailed(f"the command could not be started: {error}; its directory is {cwd or os.curdir}") from None


def _directory(invocation: Invocation, env: dict[str, str], ctx: JobContext) -> str | None:
    """The working directory. As in cron, ``~`` is the command's HOME, or / if that is missing."""
    if invocation.cwd != _HOME:
        return None if invocation.cwd is None else str(invocation.cwd)
    home = env.get("HOME", "/")
    if os.path.isdir(home):  # noqa: PTH112 - a text for the operating system
        return home
    ctx.log.warning("HOME %s is not a directory; the command runs in /", home)
    return "/"


def _watch(group: ProcessGroup, ctx: JobContext, timeout: timedelta | None) -> JobCancelled | CommandFailed | None:
    """Wait until the command has ended (None) or must be ended (the reason)."""
    while not group.wait(LOOK):
        if ctx.cancel_reason == Reason.TIMEOUT:
            after = f" after {format_duration(timeout)}" if timeout else ""
            return CommandFailed(f"timed out{after}; ended with all that it had started")
        if ctx.cancelled or ctx.lost:
            return JobCancelled(f"the command was ended: {ctx.cancel_reason or 'lost'}")
    return None


def _told(status: int | None, env: dict[str, str]) -> str:
    if status is None:
        return "exit status unknown: this process ignores SIGCHLD, or other code waits for its children"
    if status < 0:
        return f"ended by {_signal_name(-status)}"
    if status > 128:
        return f"exit status {status} (of a shell: ended by {_signal_name(status - 128)})"
    return f"exit status {status}{_HINTS.get(status, '').format(path=env.get('PATH', ''))}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failure(told: str, output: Output) -> str:
    """The error message. Listings show its first line: how the command ended, and its last line of output."""
    if not output.last_line:
        return f"{told}; it wrote nothing"
    shown = "\n".join(f"  {line}" for line in output.tail)
    return f"{told}; its last line: {output.last_line[:200]}\nthe end of what the command wrote:\n{shown}"
