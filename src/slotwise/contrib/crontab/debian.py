"""What Debian's cron does otherwise with a line that runs here: remarks for the crontab check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

#: error: the line cannot run. warning: it runs, perhaps not as meant. note: cron does something
#: here that we do not.
Level: TypeAlias = Literal["error", "warning", "note"]


class Remark(NamedTuple):
    """A problem whose place the caller knows."""

    level: Level
    text: str
    cure: str


_MONTHS: Final = [
    "JAN",
    "FEB",
    "MAR",
    "APR",
    "MAY",
    "JUN",
    "JUL",
    "AUG",
    "SEP",
    "OCT",
    "NOV",
    "DEC",
]
_WEEKDAYS: Final = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_NUMBERS: Final = {
    **{name: number for number, name in enumerate(_MONTHS, 1)},
    **{name: number for number, name in enumerate(_WEEKDAYS)},
}
_RANGE: Final = re.compile(r"(\w+)-(\w+)(?:/[0-9]+)?")
_ADDED: Final = re.compile(
    r"[0-9A-Z]+/[0-9]+|\?|L(-[0-9]+)?|([0-9]+|L)W|([0-7]|[A-Z]{3})L|L[0-7]|H(\(.*\))?(/[0-9]+)?"
)
_STEP: Final = re.compile(r"\*/([0-9]+)")
_HIGHEST: Final = (59, 23, 31, 12, 7)


def time_remarks(time: str) -> Iterator[Remark]:
    """Remarks on times that Debian's cron reads otherwise, or refuses."""
    if time.startswith("@"):
        if time != time.lower():
            yield _refused(time)
        return
    for item in re.split(r"[ ,]", time.upper()):
        if "#" in item:
            text = f"{item}: Debian's cron skips # and what follows, so it fires each week"
            yield Remark("warning", text, "leave the # out if each week is meant")
        elif (match := _RANGE.fullmatch(item)) and _number(match[1]) > _number(
            match[2]
        ):
            text = f"{item} ends before it begins: Debian's cron never runs the line, slotwise does"
            yield Remark("warning", text, "remove the line if it is not to run")
        elif _ADDED.fullmatch(item):
            yield _refused(item)


def _refused(form: str) -> Remark:
    text = f"{form}: Debian's cron refuses this form, and with it the whole file"
    return Remark(
        "note", text, "write it as a list or a range if cron reads the file, too"
    )


def _number(name: str) -> int:
    return _NUMBERS[name] if name in _NUMBERS else int(name) if name.isdecimal() else 0


def beyond_the_field(time: str) -> str:
    """What cron does with a step that is larger than its field; empty if there is none."""
    for field, highest in zip(time.split(), _HIGHEST, strict=False):
        match = _STEP.fullmatch(field)
        if match and int(match[1]) > highest:
            return f"; cron would fire at the first value of the field only, as without {field}"
    return ""


_GUARD: Final = re.compile(r"(?:\[|test) +-[a-z] [^&|;]+&& ")
#: What stands before the first percent sign that is not escaped.
_COMMAND: Final = re.compile(r"(?:[^\\%]|\\.?)*")
_CLOSED: Final = re.compile(r"\\.|'[^']*'")


def command_remarks(command: str) -> Iterator[Remark]:
    """Remarks on commands that cron changes before the shell sees them."""
    match = _COMMAND.match(command)
    before = match[0] if match else ""
    if len(before) < len(command) and _is_open(before):
        text = (
            "the first % ends the command within quotes or a substitution: as in cron, what "
            "follows is its standard input"
        )
        yield Remark("warning", text, r"write \% for a percent sign")
    if "\\\\" in before:
        text = "two backslashes are one, as for Debian's cron; other crons keep both"
        yield Remark("warning", text, "put the command into a script")
    if _GUARD.match(command):
        text = (
            "where the test before && fails, cron is silent; here the slot is failed"
        )
        yield Remark("note", text, "write the test with || exit 0; instead of &&")


def _is_open(command: str) -> bool:
    """Whether a quote or a substitution is not closed."""
    left = _CLOSED.sub("", command)
    odd = any(left.count(mark) % 2 for mark in ('"', "'", "`"))
    return odd or left.count("$(") > left.count(")")
