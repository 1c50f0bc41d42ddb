"""What this machine lacks for running crontabs: accounts, shells, files that only the right people can write."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from slotwise.contrib.command.account import account_of
from slotwise.contrib.crontab.entry import Entry
from slotwise.contrib.crontab.problem import Level, Problem, Remark
from slotwise.errors import CommandFailed


def host_problems(entries: Iterable[Entry], level: Level = "error") -> list[Problem]:
    """What is missing, at this level, and what cron does differently here; with the first line that it concerns."""
    found: dict[tuple[str, str], Problem] = {}
    for entry in entries:
        remarks = [Remark(level, *lack) for lack in _lacks(entry)] + list(_zone(entry))
        for its_level, text, cure in remarks:
            problem = Problem(level=its_level, file=entry.file, line=entry.line, text=text, cure=cure)
            found.setdefault((entry.file, text), problem)
    return list(found.values())


def runnable(entry: Entry) -> bool:
    """Whether this machine lacks nothing for the line."""
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


def _zone(entry: Entry) -> Iterator[Remark]:
    """cron goes by the machine's zone; in a cluster that would be as many as there are machines."""
    if not entry.zone_said and (time.timezone or time.daylight):
        text = f"no zone is said: the times are UTC; this machine's cron would take them for {time.tzname[0]}"
        yield Remark("warning", text, "put CRON_TZ=… above the lines, e.g. CRON_TZ=UTC, or name the zone as an option")


def _insecure(file: Path) -> Iterator[tuple[str, str]]:
    """Whoever can write the file could run anything as root; cron does not read such a file either."""
    try:
        mode = file.stat().st_mode
    except OSError:  # the standard input
        return
    if stat.S_ISREG(mode) and mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield "others than its owner can write this file, and its commands run as root", f"chmod go-w {file}"
