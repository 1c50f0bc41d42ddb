"""The parts of a line that runs something: time, user, command, input."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from slotwise.contrib.crontab.command_text import split_input
from slotwise.contrib.crontab.problem import Refused, Remark

_TIME: Final = re.compile(r"(?P<time>@\S+|\S+(?:[ \t]+\S+){4})(?:[ \t]+(?P<rest>.*))?")
_COLUMN: Final = re.compile(r"(?P<user>\S+)(?:[ \t]+(?P<rest>.*))?")
_USER: Final = re.compile(r"[A-Za-z0-9_][\w.@-]*\$?")
#: Of other crons. -n and -q are about mail and the log; -s means never two at a time, which holds here for all.
_OPTIONS: Final = re.compile(r"(?:-[nqs][ \t]+)+")


class Line(NamedTuple):
    time: str
    user: str | None
    command: str
    stdin: str | None
    remarks: list[Remark]


def read_line(text: str, *, system: bool) -> Line:
    """``system``: with a user column. Raises Refused."""
    form = f"minute hour day-of-month month day-of-week{', a user' if system else ''} and a command"
    match = _TIME.fullmatch(text.removeprefix("-"))
    if match is None:
        raise Refused(
            "this is neither a variable nor a command with its time",
            f"write {form}; or a # before it",
        )
    user, rest = _user(match["rest"] or "") if system else (None, match["rest"] or "")
    command, stdin = split_input(_without_options(rest))
    if not command.strip():
        raise Refused("the command is missing", f"write {form}")
    _refuse_sixth_field(command)
    return Line(" ".join(match["time"].split()), user, command, stdin, list(_remarks(text, rest, system=system)))


def _user(rest: str) -> tuple[str, str]:
    match = _COLUMN.fullmatch(rest)
    if match is None:
        raise Refused("the user and the command are missing", "write both behind the time")
    _refuse_sixth_field(match["user"])
    if not _USER.fullmatch(match["user"]):
        raise Refused(
            f"{match['user']!r:.60} stands where a system crontab names the user",
            "write the user before the command, or say that this file has none: format user",
        )
    return match["user"], match["rest"] or ""


def _refuse_sixth_field(word: str) -> None:
    if word.startswith("*"):
        raise Refused("there are six time fields", "remove one: cron has five, and no seconds")


def _without_options(rest: str) -> str:
    options = _OPTIONS.match(rest)
    return rest[options.end() :] if options else rest


def _remarks(text: str, rest: str, *, system: bool) -> Iterator[Remark]:
    if text.startswith("-"):
        yield Remark("note", "the - before the time is ignored: it would keep the line out of syslog", "remove it")
    if not system and rest.split()[:1] == ["root"]:
        yield Remark(
            "warning",
            "the command is 'root': the file is read as a user's crontab, which has no user column",
            "if it is one, say so: format system",
        )
    if text.endswith("\\"):
        yield Remark(
            "warning",
            "the line ends with a backslash: as in cron, it does not go on in the next one",
            "write it on one line, or put it into a script",
        )
