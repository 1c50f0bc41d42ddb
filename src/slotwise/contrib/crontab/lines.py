"""The parts of a crontab's lines: variables, time, user, command and input."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from slotwise.contrib.crontab.problems import Refused, Remark
from slotwise.errors import InvalidSchedule
from slotwise.schedules import Cron
from slotwise.schedules.cron import MACROS

_TIME: Final = re.compile(r"(?P<time>@\S+|\S+(?:[ \t]+\S+){4})(?:[ \t]+(?P<rest>.*))?")
_COLUMN: Final = re.compile(r"(?P<user>\S+)(?:[ \t]+(?P<rest>.*))?")
_USER: Final = re.compile(r"[A-Za-z0-9_][\w.@-]*\$?")
#: Options of other crons: -n and -q concern mail and the log; -s forbids two runs at a time, as slotwise always does.
_OPTIONS: Final = re.compile(r"(?:-[nqs][ \t]+)+")


class Line(NamedTuple):
    time: str
    user: str | None
    command: str
    stdin: str | None
    remarks: list[Remark]


def read_line(text: str, *, system: bool) -> Line:
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


#: A name in quotes, or without a blank; a line that begins otherwise is not an assignment.
_VARIABLE: Final = re.compile(r"""(?:"([^"=]*)"|'([^'=]*)'|([^\s='"][^\s=]*))\s*=\s*""")
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
_PIECE: Final = re.compile(r"\\.?|%|[^\\%]+", re.DOTALL)
_PERCENT: Final = re.compile(r"\\?%")


def split_input(text: str) -> tuple[str, str | None]:
    """Split a command at its first percent sign, as cron does: the command, and its standard input.

    In the input, further percent signs are newlines. Without a percent sign, it is None.
    """
    command = ""
    for piece in _PIECE.finditer(text):
        if piece[0] == "%":
            return command, _input(text[piece.end() :])
        command += "%" if piece[0] == r"\%" else piece[0]
    return command, None


def _input(text: str) -> str:
    given = _PERCENT.sub(lambda found: "%" if found[0] == r"\%" else "\n", text)
    return given if not given or given.endswith("\n") else given + "\n"


_MINUTELY: Final = "@every_minute"


def read_schedule(time: str, tz: str) -> Cron:
    """Parse five fields or a macro, with cron's own rule for the two day fields. Raises Refused."""
    if time.startswith("@"):
        _check_macro(time.lower())
    if "~" in time:
        raise Refused(
            f"{time!r} has a ~, a random time: each machine would draw another one", "write the time that you want"
        )
    try:
        return Cron(time, tz=tz, day_rule="vixie")
    except InvalidSchedule as error:
        raise Refused(str(error), "correct the field, or put a # before the line") from None


def _check_macro(time: str) -> None:
    if time == "@reboot":
        raise Refused(
            "@reboot cannot run: a cluster has no moment at which it boots, only machines have",
            "let the machine's own init start it (systemd, the container's command), and put a # before the line",
        )
    if time == _MINUTELY:
        raise Refused("@every_minute is not known", "write * * * * *")
    if time not in MACROS:
        raise Refused(
            f"{time!r:.40} is not a macro of cron", f"write five time fields, or one of {', '.join(sorted(MACROS))}"
        )
