"""What is wrong with a crontab: in its lines, and on this host."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from slotwise.contrib.command.invocation import account_of
from slotwise.contrib.crontab.entry import Entry
from slotwise.errors import CommandFailed

#: error: the line cannot run. warning: it runs, perhaps not as meant. note: cron does something here that we do not.
Level: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem with its place and its cure. ``line`` is None if the whole file is concerned."""

    level: Level
    file: str
    line: int | None
    text: str
    cure: str

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.level}: {self.text}; {self.cure}"


class Remark(NamedTuple):
    """A problem whose place the caller knows."""

    level: Level
    text: str
    cure: str


class Refused(Exception):
    """The line cannot run: the problem, and its cure."""

    def __init__(self, text: str, cure: str) -> None:
        super().__init__(text)
        self.text = text
        self.cure = cure


def host_problems(entries: Iterable[Entry], level: Level = "error") -> list[Problem]:
    """List what this host lacks, at this level, and what its cron does differently.

    Each problem has the first line that it concerns.
    """
    found: dict[tuple[str, str], Problem] = {}
    for entry in entries:
        remarks = [Remark(level, *lack) for lack in _lacks(entry)] + list(_zone_remark(entry))
        for its_level, text, cure in remarks:
            problem = Problem(level=its_level, file=entry.file, line=entry.line, text=text, cure=cure)
            found.setdefault((entry.file, text), problem)
    return list(found.values())


def runnable(entry: Entry) -> bool:
    """Whether this host can run the line."""
    return not any(_lacks(entry))


def _lacks(entry: Entry) -> Iterator[tuple[str, str]]:
    try:
        account_of(entry.user)
    except CommandFailed as error:
        text, _, cure = str(error).partition("; ")
        yield text, cure
    if not os.access(entry.shell, os.X_OK):
        yield f"SHELL {entry.shell} cannot be executed on this host", "install it, or name another one"
    if os.geteuid() == 0:
        yield from _insecure(Path(entry.file))


def _zone_remark(entry: Entry) -> Iterator[Remark]:
    """cron uses the zone of its host; the hosts of a cluster may have different ones."""
    if not entry.zone_said and (time.timezone or time.daylight):
        text = f"no time zone is set, so the times are UTC; this machine's cron would read them as {time.tzname[0]}"
        yield Remark("warning", text, "put CRON_TZ=… above the lines, e.g. CRON_TZ=UTC, or name the zone as an option")


def _insecure(file: Path) -> Iterator[tuple[str, str]]:
    """An account that can write the file could run any command as root; cron rejects such a file, too."""
    try:
        mode = file.stat().st_mode
    except OSError:  # the standard input
        return
    if stat.S_ISREG(mode) and mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield "users other than its owner can write this file, and its commands run as root", f"chmod go-w {file}"
