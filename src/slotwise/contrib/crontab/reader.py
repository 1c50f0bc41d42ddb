"""Reads one crontab: which lines run something, with which variables, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple

from slotwise.contrib.crontab.entry import Entry, job_name
from slotwise.contrib.crontab.lines import Assignment, Line, read_assignment, read_line, read_schedule
from slotwise.contrib.crontab.problems import Level, Problem, Refused, Remark
from slotwise.errors import InvalidSchedule, InvalidSetting
from slotwise.jobs.policies import OnLost
from slotwise.model.durations import parse_duration
from slotwise.schedules import Cron
from slotwise.schedules.timeline import zone_named

#: Variables about the mail that cron sends.
MAIL: Final = frozenset({"MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"})

#: Variables for features of cron that slotwise does not have: the remark, and the alternative. Commands find them in
#: their environment, as under cron; they do not change a line's name.
IGNORED: Final = {
    **dict.fromkeys(
        MAIL,
        (
            "no mail is sent",
            "the output goes to the worker's log, the end of a failed command's to the ledger: slotwise slots NAME",
        ),
    ),
    "RANDOM_DELAY": (
        "RANDOM_DELAY is ignored: a slot is at the same time on all machines, and one of them runs it",
        "write another minute, or sleep in the command",
    ),
    "MLS_LEVEL": (
        "MLS_LEVEL is ignored: commands keep the worker's security context",
        "remove it, or set the worker's",
    ),
    "XDG_SESSION_CLASS": ("XDG_SESSION_CLASS is ignored: no login session is opened", "remove it"),
}

#: Set to the account's name, as by cron, even if the crontab sets them.
FIXED: Final = frozenset({"LOGNAME", "USER"})

#: slotwise's own variables, for the lines below; to cron, they are plain variables.
TIMEOUT: Final = "SLOTWISE_TIMEOUT"
ON_LOST: Final = "SLOTWISE_ON_LOST"
ZONE: Final = "CRON_TZ"

#: Settings of the reader; commands do not get them.
STEERING: Final = frozenset({TIMEOUT, ON_LOST, ZONE})


_EXPANSION: Final = re.compile(r"\$(?:\w|\{)")
_BYTE_ORDER_MARK: Final = "\ufeff"


class Source(NamedTuple):
    """The text of a crontab, its place and its format."""

    file: str
    text: str
    #: Whether each line has a user column.
    system: bool
    #: The account that owns it, if its place names one.
    owner: str | None


class Parsed(NamedTuple):
    entries: list[Entry]
    problems: list[Problem]


def read_source(source: Source, tz: str | None) -> Parsed:
    """Read all lines that can run, and all problems. ``tz``: the zone of lines without a CRON_TZ above; else UTC."""
    reader = _Reader(source, tz, tz)
    reader.read(source.text.removeprefix(_BYTE_ORDER_MARK))
    return Parsed(reader.entries, reader.problems)


@dataclass(slots=True)
class _Reader:
    source: Source
    default_tz: str | None
    tz: str | None
    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    number: int = 0
    env: dict[str, str] = field(default_factory=dict)
    timeout: timedelta | None = None
    on_lost: OnLost = "rerun"
    comment: list[str] = field(default_factory=list)
    #: Variables with errors: without them, the lines below would not run as intended.
    broken: set[str] = field(default_factory=set)

    def read(self, text: str) -> None:
        if text.startswith("#!"):
            cure = "for a folder of scripts write a line such as: 25 6 * * * root run-parts /etc/cron.daily"
            self._say("error", "this is a script, not a crontab", cure)
            return
        lines, remarks = _lines(text)
        self._remark(remarks)
        for number, line in enumerate(lines, 1):
            self.number = number
            self._read_line(line.lstrip(" \t"))

    def _read_line(self, line: str) -> None:
        if line.startswith("#"):
            self.comment.append(line)
            return
        comment, self.comment = tuple(self.comment), []
        if not line.strip():
            return
        if "\0" in line:
            self._say("error", "there is a NUL character in the line", "remove it")
        elif (found := read_assignment(line)) is not None:
            self._assign(found)
        else:
            self._enter(line, comment)

    def _assign(self, found: Assignment) -> None:
        name, value = found
        if value is None:
            self._break(name, f"the quotes around the value of {name} are not closed at its end")
            return
        self.broken.discard(name)
        if name in STEERING:
            self._steer(name, value)
            return
        self._remark(_remarks(name, value))
        if name not in FIXED:
            self.env[name] = value

    def _steer(self, name: str, value: str) -> None:
        try:
            if name == ZONE:
                self.tz = zone_named(value).key if value else self.default_tz
            elif name == TIMEOUT:
                self.timeout = (parse_duration(value) or None) if value else None
            else:
                self.on_lost = _on_lost(value or "rerun")
        except (InvalidSchedule, InvalidSetting) as error:
            self._break(name, f"{name}={value}: {error}")

    def _break(self, name: str, text: str) -> None:
        self.broken.add(name)
        self._say("error", text, "correct it: the lines below do not run before")

    def _enter(self, text: str, comment: tuple[str, ...]) -> None:
        try:
            line = read_line(text, system=self.source.system)
            schedule = read_schedule(line.time, self.tz or "UTC")
        except Refused as refused:
            self._say("error", refused.text, refused.cure)
            return
        self._remark(line.remarks)
        if not self.broken:
            self.entries.append(self._entry(line, schedule, comment))

    def _entry(self, line: Line, schedule: Cron, comment: tuple[str, ...]) -> Entry:
        user = line.user or self.source.owner
        marks = {name: value for name, value in self.env.items() if name not in IGNORED}
        return Entry(
            name=job_name(
                time=line.time, zone=schedule.zone.key, user=user, command=line.command, stdin=line.stdin, env=marks
            ),
            file=self.source.file,
            line=self.number,
            time=line.time,
            schedule=schedule,
            zone_said=self.tz is not None,
            user=user,
            command=line.command,
            stdin=line.stdin,
            env=dict(self.env),
            timeout=self.timeout,
            on_lost=self.on_lost,
            comment=comment,
        )

    def _remark(self, remarks: Iterable[Remark]) -> None:
        for level, text, cure in remarks:
            self._say(level, text, cure)

    def _say(self, level: Level, text: str, cure: str) -> None:
        line = self.number or None
        self.problems.append(Problem(level=level, file=self.source.file, line=line, text=text, cure=cure))


def _lines(text: str) -> tuple[list[str], list[Remark]]:
    """The lines without their line ends, and remarks on those."""
    remarks = []
    *lines, last = text.split("\n")
    if last:
        lines.append(last)
        what = "the last line does not end with a newline: cron would ignore it, or the whole file"
        remarks.append(Remark("note", what, "end it with one"))
    if any(line.endswith("\r") for line in lines):
        what = "lines end with CR LF: cron would give the CR to the commands; here it is dropped"
        remarks.append(Remark("note", what, "convert the file, e.g. with dos2unix"))
    return [line.removesuffix("\r") for line in lines], remarks


def _remarks(name: str, value: str) -> Iterator[Remark]:
    """Remarks on a variable."""
    if name in FIXED:
        yield Remark("note", f"{name} is ignored, as by cron: it is the name of the account that runs it", "remove it")
    if name in IGNORED and value:
        yield Remark("note", *IGNORED[name])
    if name == "TZ":
        yield Remark("note", "TZ is for the commands and, as in cron, moves no schedule", "write CRON_TZ for that")
    if name not in MAIL and _EXPANSION.search(value):
        text = f"{name} has a $ in it: neither cron nor slotwise puts a variable's value there"
        yield Remark("warning", text, "write the value out")


def _on_lost(value: str) -> OnLost:
    if value not in ("rerun", "give_up"):
        raise InvalidSetting("expected rerun or give_up")
    return "give_up" if value == "give_up" else "rerun"
