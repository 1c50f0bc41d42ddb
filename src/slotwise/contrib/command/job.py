"""CommandJob: a job that runs a command."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Unpack

from slotwise.contrib.command.attempt import run
from slotwise.contrib.command.invocation import Invocation
from slotwise.errors import InvalidJob
from slotwise.jobs.context import JobContext
from slotwise.jobs.definition import POLICIES, duration
from slotwise.jobs.job import DistributedJob

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import timedelta
    from pathlib import PurePath

    from slotwise.jobs.job import JobPolicies
    from slotwise.schedules import Schedule


class CommandJob(DistributedJob):
    """A job that runs a command: a string for a shell, or a list of a program and its arguments.

    >>> from slotwise import CommandJob, Cron
    >>> nightly = CommandJob(
    ...     name="nightly-dump",
    ...     schedule=Cron("0 2 * * *", tz="Europe/Vienna"),
    ...     command="pg_dump shop | gzip > /backup/shop.gz",
    ...     timeout="1h",
    ... )

    ``shell``: the shell for a string; default /bin/sh. ``env``: additional variables. ``inherit_env``: whether the
    command inherits the worker's environment, or the names of the variables that it inherits; by default all, unless
    ``user`` is given. ``cwd``: the directory; ``"~"`` is the command's HOME, or / if that is missing; default: the
    worker's. ``user``: the user to run as, with all groups; the worker must be root, or that user. ``stdin``: its
    standard input; default: empty. ``timeout``: a timedelta or a string such as ``"10m"``. On a timeout, when the claim
    is lost or cancelled, or when the worker ends, the command and its process group get SIGTERM, and SIGKILL four
    seconds later. Further keywords are policies.

    Each line of its output is logged as it comes (logger ``slotwise.job``, INFO). A non-zero exit code fails the
    attempt; the ledger keeps the end of the output. The command's environment contains SLOTWISE_JOB, SLOTWISE_SLOT,
    SLOTWISE_ATTEMPT, SLOTWISE_TOKEN and SLOTWISE_KEY (the idempotency key).

    Raises InvalidJob for a command that can never run.
    """

    #: What is run.
    command: Invocation
    timeout: timedelta | None

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
        try:
            self.command = Invocation(
                command=command, shell=shell, env=env, inherit_env=inherit_env, cwd=cwd, user=user, stdin=stdin
            )
            timeout = policies.pop("timeout", None)
            self.timeout = None if timeout is None else duration(timeout, "timeout")
        except InvalidJob as error:
            raise InvalidJob(f"CommandJob({name!r}): {error}") from None
        for word, value in policies.items():
            if word not in POLICIES:
                known = [*Invocation.__dataclass_fields__, *POLICIES]
                near = difflib.get_close_matches(word, known, n=1)
                cure = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise InvalidJob(f"CommandJob({name!r}): {word} is not a keyword; {cure}")
            setattr(self, word, value)

    def execute(self, ctx: JobContext, /) -> None:
        """Run the command once. Raises CommandFailed, and JobCancelled if it was asked to stop."""
        run(self.command, ctx, self.timeout)

    def __repr__(self) -> str:
        return f"CommandJob(name={self.name!r}, schedule={self.schedule!r}, command={self.command.command!r:.80})"
