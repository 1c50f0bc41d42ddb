"""Reads one crontab: which lines run something, with which variables, and what is wrong with
them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple

from slotwise import CommandFailed, Cron, InvalidSchedule, InvalidSetting
from slotwise.contrib.commands.invocation import account_of
from slotwise.contrib.crontab.debian import (
    Level,
    Remark,
    beyond_the_field,
    command_remarks,
    time_remarks,
)
from slotwise.contrib.crontab.entry import Entry, job_name
from slotwise.spi import OnLost, parse_duration, zone_named


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


class Refused(Exception):
    """The line makes no job: the problem, and its cure."""

    def __init__(self, text: str, cure: str, level: Level = "error") -> None:
        super().__init__(text)
        self.text = text
        self.cure = cure
        self.level: Level = level


def host_problems(entries: Iterable[Entry], level: Level = "error") -> list[Problem]:
    """List what this host lacks, at this level, and what its cron does differently.

    Each problem has the first line that it concerns.
    """
    found: dict[tuple[str, str], Problem] = {}
    for entry in entries:
        remarks = [Remark(level, *lack) for lack in _lacks(entry)] + list(
            _zone_remark(entry)
        )
        for its_level, text, cure in remarks:
            problem = Problem(
                level=its_level, file=entry.file, line=entry.line, text=text, cure=cure
            )
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
        yield (
            f"SHELL {entry.shell} cannot be executed on this host",
            "install it, or name another one",
        )


def _zone_remark(entry: Entry) -> Iterator[Remark]:
    """cron uses the zone of its host; the hosts of a cluster may have different ones."""
    if not entry.zone_said and (time.timezone or time.daylight):
        text = (
            "no time zone is set, so the times are UTC; this machine's cron would "
            f"read them as {time.tzname[0]}"
        )
        yield Remark(
            "warning",
            text,
            "put CRON_TZ=… above the lines, e.g. CRON_TZ=UTC, or name the zone as an option",
        )


_TIME: Final = re.compile(r"(?P<time>@\S+|\S+(?:[ \t]+\S+){4})(?:[ \t]+(?P<rest>.*))?")
_COLUMN: Final = re.compile(r"(?P<user>\S+)(?:[ \t]+(?P<rest>.*))?")
_USER: Final = re.compile(r"[A-Za-z0-9_][\w.@-]*\$?")
#: Options of other crons: -n and -q concern mail and the log; -s forbids two runs at a time, as
#: slotwise always does.
_OPTIONS: Final = re.compile(r"(?:-[nqs][ \t]+)+")


class CrontabLine(NamedTuple):
    time: str
    user: str | None
    command: str
    stdin: str | None
    remarks: list[Remark]


def read_line(text: str, *, system: bool) -> CrontabLine:
    """Parse a line that runs a command; with ``system``, it has a user column. Raises Refused."""
    form = f"minute hour day-of-month month day-of-week{', a user' if system else ''} and a command"
    match = _TIME.fullmatch(text.removeprefix("-"))
    if match is None:
        raise Refused(
            "this is neither a variable nor a command with its time",
            f"write {form}; or a # before it",
        )
    user, rest = _user(match["rest"] or "") if system else (None, match["rest"] or "")
    command, stdin = split_input(_without_options(rest))
    _refuse_sixth_field(command)
    return CrontabLine(
        " ".join(match["time"].split()),
        user,
        command,
        stdin,
        list(_line_remarks(text, rest, system=system)),
    )


def _user(rest: str) -> tuple[str, str]:
    match = _COLUMN.fullmatch(rest)
    if match is None:
        raise Refused(
            "the user and the command are missing", "write both behind the time"
        )
    _refuse_sixth_field(match["user"])
    if not _USER.fullmatch(match["user"]):
        raise Refused(
            f"{match['user']!r:.60} stands where a system crontab names the user",
            "write the user before the command, or say that this file has none: format user",
        )
    return match["user"], match["rest"] or ""


def _refuse_sixth_field(word: str) -> None:
    if word.startswith("*"):
        raise Refused(
            "there are six time fields", "remove one: cron has five, and no seconds"
        )


def _without_options(rest: str) -> str:
    options = _OPTIONS.match(rest)
    return rest[options.end() :] if options else rest


def _line_remarks(text: str, rest: str, *, system: bool) -> Iterator[Remark]:
    if text.startswith("-"):
        yield Remark(
            "note",
            "the - before the time is ignored: it would keep the line out of syslog",
            "remove it",
        )
    if not system and rest.split()[:1] == ["root"]:
        yield Remark(
            "warning",
            "the command is 'root': the file is read as a user's crontab, which has no user column",
            "if it is a system crontab, pass --crontab-format system",
        )
    if text.endswith("\\"):
        yield Remark(
            "warning",
            "the line ends with a backslash: as in cron, it does not go on in the next one",
            "write it on one line, or put it into a script",
        )
    yield from command_remarks(rest)


#: A name in quotes, or without a blank; a line that begins otherwise is not an assignment.
_VARIABLE: Final = re.compile(
    r"""(?:"([^"=]*)"|'([^'=]*)'|([^\s='"][^\s=]*))\s*=\s*"""
)
#: A value in quotes, with nothing behind it.
_QUOTED: Final = re.compile(r"""(["'])(.*?)\1\s*""")


class Assignment(NamedTuple):
    """A variable and its value; None if its quotes are not closed, or if text follows them."""

    name: str
    value: str | None


def read_assignment(line: str) -> Assignment | None:
    """Parse the variable that a line sets; None if it is a line of another kind."""
    match = _VARIABLE.match(line)
    if match is None:
        return None
    name = next(group for group in match.groups() if group is not None)
    value = line[match.end() :]
    if not value.startswith(('"', "'")):
        return Assignment(name, value.rstrip())
    quoted = _QUOTED.fullmatch(value)
    return Assignment(name, quoted[2] if quoted else None)


#: A backslash escapes the next character, so that ``\%`` is not the first percent sign.
_ESCAPED: Final = {r"\%": "%", r"\\": "\\"}
_PIECE: Final = re.compile(r"\\.?|%|[^\\%]+", re.DOTALL)
_PERCENT: Final = re.compile(r"\\?%")


def split_input(text: str) -> tuple[str, str | None]:
    """Split a command at its first percent sign, as Debian's cron does: the command, and its
    standard input.

    In the command, two backslashes are one. In the input, further percent signs are newlines.
    Without a percent sign, it is None.
    """
    command = ""
    for piece in _PIECE.finditer(text):
        if piece[0] == "%":
            return command, _input(text[piece.end() :])
        command += _ESCAPED.get(piece[0], piece[0])
    return command, None


def _input(text: str) -> str:
    given = _PERCENT.sub(lambda found: "%" if found[0] == r"\%" else "\n", text)
    return given if not given or given.endswith("\n") else given + "\n"


_MINUTELY: Final = "@every_minute"


def read_schedule(time: str, tz: str) -> Cron:
    """Parse five fields or a macro, with cron's own rule for the two day fields. Raises
    Refused.
    """
    if time.startswith("@"):
        _check_macro(time.lower())
    if "~" in time:
        raise Refused(
            f"{time!r} has a ~, a random time: each machine would draw another one",
            "write the time that you want",
        )
    try:
        return Cron(time, tz=tz, day_rule="vixie")
    except InvalidSchedule as error:
        cure = "correct the field, or put a # before the line"
        raise Refused(f"{error}{beyond_the_field(time)}", cure) from None


def _check_macro(time: str) -> None:
    if time == "@reboot":
        raise Refused(
            "@reboot cannot run: a cluster has no moment at which it boots, only machines have",
            "let the machine's own init start it (systemd, the container's "
            "command), and put a # before the line",
        )
    if time == _MINUTELY:
        raise Refused("@every_minute is not known", "write * * * * *")
    if time not in Cron.MACROS:
        raise Refused(
            f"{time!r:.40} is not a macro of cron",
            f"write five time fields, or one of {', '.join(sorted(Cron.MACROS))}",
        )


#: Variables about the mail that cron sends.
MAIL: Final = frozenset(
    {"MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"}
)

#: Variables for features of cron that slotwise does not have: the remark, and the alternative.
#: Commands find them in their environment, as under cron; they do not change a line's name.
IGNORED: Final = {
    **dict.fromkeys(
        MAIL,
        (
            "no mail is sent",
            "the output goes to the worker's log, the end of a failed command's "
            "to the ledger: slotwise slots NAME",
        ),
    ),
    "RANDOM_DELAY": (
        "RANDOM_DELAY is ignored: a slot is at the same time on all machines, and "
        "one of them runs it",
        "write another minute, or sleep in the command",
    ),
    "MLS_LEVEL": (
        "MLS_LEVEL is ignored: commands keep the worker's security context",
        "remove it, or set the worker's",
    ),
    "XDG_SESSION_CLASS": (
        "XDG_SESSION_CLASS is ignored: no login session is opened",
        "remove it",
    ),
}

#: Set to the account's name, as by Debian's cron, even if the crontab sets it.
FIXED: Final = frozenset({"LOGNAME"})

#: slotwise's own variables, for the lines below; to cron, they are plain variables.
TIMEOUT: Final = "SLOTWISE_TIMEOUT"
ON_LOST: Final = "SLOTWISE_ON_LOST"
ZONE: Final = "CRON_TZ"

#: Settings of the reader; commands do not get them.
STEERING: Final = frozenset({TIMEOUT, ON_LOST, ZONE})


_ZONE_OF_CRON: Final = Remark(
    "note",
    "CRON_TZ moves the lines below; to Debian's cron it is a plain variable",
    "remove it if the times were meant by the host's clocks",
)
_EMPTY_OF_CRON: Final = Remark(
    "note",
    "a variable without a value: Debian's cron refuses it, and with it the whole file",
    'write ="" behind the name',
)
_MARK_OF_CRON: Final = Remark(
    "note",
    "the file begins with a byte order mark: cron refuses the first line; here it is dropped",
    "save the file without it",
)
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
    """Read all lines that can run, and all problems. ``tz``: the zone of lines without a CRON_TZ
    above; else UTC.
    """
    reader = _Reader(source, tz, tz)
    reader.read(source.text)
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
        if text.removeprefix(_BYTE_ORDER_MARK).startswith("#!"):
            cure = (
                "for a folder of scripts write a line such as: 25 6 * * * root "
                "run-parts /etc/cron.daily"
            )
            self._say("error", "this is a script, not a crontab", cure)
            return
        lines, remarks = _lines(text.removeprefix(_BYTE_ORDER_MARK))
        self._remark([_MARK_OF_CRON] * text.startswith(_BYTE_ORDER_MARK) + remarks)
        for number, line in enumerate(lines, 1):
            self.number = number
            self._read_line(line.lstrip(" \t"))

    def _read_line(self, line: str) -> None:
        if line.startswith("#"):
            self.comment.append(line)
            return
        comment = tuple(self.comment)
        self.comment = []
        if not line.strip():
            return
        if "\0" in line:
            self._say("error", "there is a NUL character in the line", "remove it")
        elif (found := read_assignment(line)) is not None:
            self._assign(found)
            if found.value == "" and line.rstrip().endswith("="):
                self._remark([_EMPTY_OF_CRON])
        else:
            self._enter(line, comment)

    def _assign(self, found: Assignment) -> None:
        name, value = found
        if value is None:
            self._break(
                name,
                f"the quotes around the value of {name} are not closed at its end",
            )
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
                self._remark([_ZONE_OF_CRON] if value else [])
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
            if not line.command.strip():
                raise Refused(
                    "the command is missing: cron runs an empty one, slotwise leaves the line out",
                    "write one behind the time, or remove the line",
                    "warning",
                )
        except Refused as refused:
            self._say(refused.level, refused.text, refused.cure)
            return
        self._remark([*time_remarks(line.time), *line.remarks])
        if not self.broken:
            self.entries.append(self._entry(line, schedule, comment))

    def _entry(
        self, line: CrontabLine, schedule: Cron, comment: tuple[str, ...]
    ) -> Entry:
        user = line.user or self.source.owner
        marks = {
            name: value for name, value in self.env.items() if name not in IGNORED
        }
        return Entry(
            name=job_name(
                time=line.time,
                zone=schedule.zone.key,
                user=user,
                command=line.command,
                stdin=line.stdin,
                env=marks,
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
        """Say them, a note once for the whole file."""
        noted = {problem.text for problem in self.problems if problem.level == "note"}
        for level, text, cure in remarks:
            if level != "note" or text not in noted:
                self._say(level, text, cure)

    def _say(self, level: Level, text: str, cure: str) -> None:
        line = self.number or None
        self.problems.append(
            Problem(
                level=level, file=self.source.file, line=line, text=text, cure=cure
            )
        )


def _lines(text: str) -> tuple[list[str], list[Remark]]:
    """The lines without their line ends, and remarks on those."""
    remarks = []
    *lines, last = text.split("\n")
    if last:
        lines.append(last)
        what = "the last line does not end with a newline: cron would ignore it, or the whole file"
        remarks.append(Remark("note", what, "end it with one"))
    if any(line.endswith("\r") for line in lines):
        what = "lines end with CR LF: as in cron, each command ends with a CR"
        remarks.append(Remark("warning", what, "convert the file, e.g. with dos2unix"))
    return lines, remarks


def _remarks(name: str, value: str) -> Iterator[Remark]:
    """Remarks on a variable."""
    if name in FIXED:
        yield Remark(
            "note",
            f"{name} is ignored, as by cron: it is the name of the account that runs it",
            "remove it",
        )
    if name in IGNORED and value:
        yield Remark("note", *IGNORED[name])
    if name == "TZ":
        yield Remark(
            "note",
            "TZ is for the commands and, as in cron, moves no schedule",
            "write CRON_TZ for that",
        )
    if name not in MAIL and _EXPANSION.search(value):
        text = f"{name} has a $ in it: neither cron nor slotwise puts a variable's value there"
        yield Remark("warning", text, "write the value out")


def _on_lost(value: str) -> OnLost:
    if value not in ("rerun", "give_up"):
        raise InvalidSetting("expected rerun or give_up")
    return "give_up" if value == "give_up" else "rerun"
