"""CommandJob: a job that runs a command."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from slotwise.contrib.command.attempt import run
from slotwise.contrib.command.invocation import Invocation, invocation
from slotwise.errors import InvalidJob, InvalidSetting
from slotwise.jobs.context import JobContext
from slotwise.jobs.declaration import POLICIES
from slotwise.jobs.job import DistributedJob
from slotwise.model.durations import parse_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import timedelta
    from pathlib import PurePath

    from slotwise.schedules import Schedule


class CommandJob(DistributedJob):
    """A job that runs a command: a text for a shell, or a list of a program and its arguments.

    >>> from slotwise import CommandJob, Cron
    >>> nightly = CommandJob(
    ...     name="nightly-dump",
    ...     schedule=Cron("0 2 * * *", tz="Europe/Vienna"),
    ...     command="pg_dump shop | gzip > /backup/shop.gz",
    ...     timeout="1h",
    ... )

    ``shell``: who runs a text; default /bin/sh. ``env``: variables that are added. ``inherit_env``: whether the
    worker's environment is, too, or the names of what is; by default it is, unless ``user`` is given. ``cwd``: the
    directory; ``"~"`` is the command's HOME, or / where that is missing; default: the worker's. ``user``: whom it
    runs as, with all groups; the worker must be root, or that user. ``stdin``: what it can read; default: nothing.
    ``timeout``: a timedelta or a text such as ``"10m"``; then, as when the claim is lost, cancelled or the worker ends,
    the command and all that it started get SIGTERM, and SIGKILL four seconds later. Further keywords are policies.

    Each line of its output goes to the log as it comes (logger ``slotwise.job``, INFO). Another exit status than 0
    fails the attempt; the ledger keeps the end of the output. The command finds SLOTWISE_JOB, SLOTWISE_SLOT,
    SLOTWISE_ATTEMPT, SLOTWISE_TOKEN and SLOTWISE_KEY (the idempotency key) in its environment.

    Raises InvalidJob for what could never run.
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
        timeout: timedelta | str | None = None,
        **policies: Any,
    ) -> None:
        self.name = name
        self.schedule = schedule
        try:
            self.command = invocation(
                command, shell=shell, env=env, inherit_env=inherit_env, cwd=cwd, user=user, stdin=stdin
            )
            self.timeout = _timeout(timeout)
        except InvalidJob as error:
            raise InvalidJob(f"CommandJob({name!r}): {error}") from None
        for word, value in policies.items():
            if word not in POLICIES:
                raise InvalidJob(f"CommandJob({name!r}): {_unknown(word)}")
            setattr(self, word, value)

    def execute(self, ctx: JobContext, /) -> None:
        """Run the command once. Raises CommandFailed, and JobCancelled if it was asked to stop."""
        run(self.command, ctx, self.timeout)

    def __repr__(self) -> str:
        return f"CommandJob(name={self.name!r}, schedule={self.schedule!r}, command={self.command.command!r:.80})"


def _timeout(given: timedelta | str | None) -> timedelta | None:
    if given is None:
        return None
    try:
        timeout = parse_duration(given)
    except InvalidSetting as error:
        raise InvalidJob(f"timeout: {error}") from None
    if not timeout:
        raise InvalidJob("timeout is zero; expected a duration such as '10m', or None for no deadline")
    return timeout


def _unknown(word: str) -> str:
    known = [*Invocation.__dataclass_fields__, *POLICIES]
    near = difflib.get_close_matches(word, known, n=1)
    return f"{word} is not a keyword; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}")
