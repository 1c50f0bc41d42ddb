"""One line of a crontab that runs something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from slotwise.contrib.command import CommandJob
from slotwise.contrib.command.invocation import DEFAULT_SHELL
from slotwise.jobs.policies import OnLost
from slotwise.schedules import Cron


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What stands in the line, and what the lines above it have set for it."""

    name: str
    file: str
    line: int
    #: The time fields, or the macro, as written.
    time: str
    schedule: Cron
    #: Whether its zone was said, in the file or by who reads it.
    zone_said: bool
    #: Whom the user column, or the file's place, names; None: whoever runs the worker.
    user: str | None
    command: str
    #: What follows the first %.
    stdin: str | None
    env: Mapping[str, str]
    timeout: timedelta | None
    on_lost: OnLost
    #: The comment right above it.
    comment: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def shell(self) -> str:
        return self.env.get("SHELL", DEFAULT_SHELL)

    def job(self, inherit_env: tuple[str, ...] = ()) -> CommandJob:
        """The job that runs it as cron would: a clean environment but for these names, in the user's home."""
        return CommandJob(
            name=self.name,
            schedule=self.schedule,
            command=self.command,
            shell=self.shell,
            env=self.env,
            inherit_env=inherit_env,
            cwd="~",
            user=self.user,
            stdin=self.stdin,
            timeout=self.timeout,
            on_lost=self.on_lost,
        )
