"""Jobs that run a command: a line for the shell, or a program with its arguments."""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import PurePath
from typing import Final, Unpack

from slotwise import (
    CommandFailed,
    DistributedJob,
    InvalidJob,
    JobCancelled,
    JobContext,
    Schedule,
)
from slotwise.contrib.commands.invocation import (
    Account,
    Invocation,
    account_of,
    environment,
)
from slotwise.contrib.commands.process_group import Output, ProcessGroup
from slotwise.contrib.processes.signals import signal_name
from slotwise.spi import JobPolicies, Reason, format_duration, parse_duration

#: Time from SIGTERM to SIGKILL; shorter than a stopping worker waits for cancelled handlers.
KILL_AFTER: Final = timedelta(seconds=4)
#: Interval for checking whether the claim was cancelled.
LOOK: Final = timedelta(milliseconds=100)

_HOME: Final = "~"
_HINTS: Final = {
    126: " (it cannot be executed)",
    127: " (not found; PATH is {path})",
}


def run(
    invocation: Invocation, ctx: JobContext, timeout: timedelta | None = None
) -> None:
    """Run the command to its end. Raises CommandFailed, with the end of its output, and
    JobCancelled.

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
        raise CommandFailed(
            _failure(str(stop) if stop else _told(status, env), output), status=status
        )


def _started(
    invocation: Invocation,
    account: Account,
    env: dict[str, str],
    output: Output,
    ctx: JobContext,
) -> ProcessGroup:
    cwd = _directory(invocation, env, ctx)
    try:
        return ProcessGroup(
            invocation.argv,
            output,
            stdin=invocation.input,
            cwd=cwd,
            env=env,
            **account.switch(),
        )
    except OSError as error:
        raise CommandFailed(
            f"the command could not be started: {error}; its directory is {cwd or os.curdir}"
        ) from None


def _directory(
    invocation: Invocation, env: dict[str, str], ctx: JobContext
) -> str | None:
    """The working directory. As in cron, ``~`` is the command's HOME, or / if that is missing."""
    if invocation.cwd != _HOME:
        return None if invocation.cwd is None else str(invocation.cwd)
    home = env.get("HOME", "/")
    if os.path.isdir(home):  # noqa: PTH112 - a text for the operating system
        return home
    ctx.log.warning("HOME %s is not a directory; the command runs in /", home)
    return "/"


def _watch(
    group: ProcessGroup, ctx: JobContext, timeout: timedelta | None
) -> JobCancelled | CommandFailed | None:
    """Wait until the command has ended (None) or must be ended (the reason)."""
    while not group.wait(LOOK):
        if ctx.cancel_reason == Reason.TIMEOUT:
            after = f" after {format_duration(timeout)}" if timeout else ""
            return CommandFailed(
                f"timed out{after}; ended with all that it had started"
            )
        if ctx.cancelled or ctx.lost:
            return JobCancelled(
                f"the command was ended: {ctx.cancel_reason or 'lost'}"
            )
    return None


def _told(status: int | None, env: dict[str, str]) -> str:
    if status is None:
        return (
            "exit status unknown: this process ignores SIGCHLD, or other code waits "
            "for its children"
        )
    if status < 0:
        return f"ended by {signal_name(-status)}"
    # Above that, it is a program's own: ssh, php and xargs end with 255.
    if 128 < status <= 128 + max(signal.valid_signals()):
        return (
            f"exit status {status} (of a shell: ended by {signal_name(status - 128)})"
        )
    return f"exit status {status}{_HINTS.get(status, '').format(path=env.get('PATH', ''))}"


def _failure(told: str, output: Output) -> str:
    """The error message. Listings show its first line: how the command ended, and its last line of
    output.
    """
    if not output.last_line:
        return f"{told}; it wrote nothing"
    shown = "\n".join(f"  {line}" for line in output.tail)
    return (
        f"{told}; its last line: {output.last_line[:200]}\nthe end of what the command "
        f"wrote:\n{shown}"
    )


class CommandJob(DistributedJob):
    """A job that runs a command: a string for a shell, or a list of a program and its arguments.

    >>> from slotwise import Cron
    >>> from slotwise.contrib.commands import CommandJob
    >>> nightly = CommandJob(
    ...     name="nightly-dump",
    ...     schedule=Cron("0 2 * * *", tz="Europe/Vienna"),
    ...     command="pg_dump shop | gzip > /backup/shop.gz",
    ...     timeout="1h",
    ... )

    ``shell``: the shell for a string; default /bin/sh. ``env``: additional variables.
    ``inherit_env``: whether the command inherits the worker's environment without the database's
    address and password, or the names of the variables that it inherits; by default all, unless
    ``user`` is given. ``cwd``: the directory; ``"~"`` is the command's HOME, or / if that is
    missing; default: the worker's. ``user``: the user to run as, with all groups; the worker must
    be root, or that user. ``stdin``: its standard input; default: empty. ``timeout``: a timedelta
    or a string such as ``"10m"``. On a timeout, when the claim is lost or cancelled, or when the
    worker ends, the command and its process group get SIGTERM, and SIGKILL four seconds later.
    Further keywords are policies.

    Each line of its output is logged as it comes (logger ``slotwise.job``, INFO). A non-zero exit
    code fails the attempt; the ledger keeps the end of the output. The command's environment
    contains SLOTWISE_JOB, SLOTWISE_SLOT, SLOTWISE_ATTEMPT, SLOTWISE_TOKEN and SLOTWISE_KEY (the
    idempotency key).

    Raises InvalidJob for a command that can never run.
    """

    #: What is run.
    command: Invocation

    def __init__(
        self,
        *,
        name: str,
        schedule: Schedule,
        command: str | Sequence[str],
        shell: str | None = None,
        env: Mapping[str, str] | None = None,
        inherit_env: bool | Collection[str] | None = None,
        cwd: str | PurePath | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        **policies: Unpack[JobPolicies],
    ) -> None:
        self.name = name
        self.schedule = schedule
        known = [*Invocation.__dataclass_fields__, *JobPolicies.__annotations__]
        for word, value in policies.items():
            if word not in known:
                near = difflib.get_close_matches(word, known, n=1)
                cure = (
                    f"did you mean {near[0]}?"
                    if near
                    else f"known are {', '.join(known)}"
                )
                raise InvalidJob(
                    f"CommandJob({name!r}): {word} is not a keyword; {cure}"
                )
            setattr(self, word, value)
        try:
            self.command = Invocation(
                command=command,
                shell=shell,
                env=env,
                inherit_env=inherit_env,
                cwd=cwd,
                user=user,
                stdin=stdin,
            )
        except InvalidJob as error:
            raise InvalidJob(f"CommandJob({name!r}): {error}") from None

    def execute(self, ctx: JobContext, /) -> None:
        """Run the command once. Raises CommandFailed, and JobCancelled if it was asked to stop."""
        timeout = getattr(self, "timeout", None)
        run(self.command, ctx, None if timeout is None else parse_duration(timeout))

    def __repr__(self) -> str:
        return (
            f"CommandJob(name={self.name!r}, schedule={self.schedule!r}, "
            f"command={self.command.command!r:.80})"
        )
