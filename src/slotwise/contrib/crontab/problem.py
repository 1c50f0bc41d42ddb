"""What is wrong with a line, where, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

#: error: the line cannot run. warning: it runs, perhaps not as meant. note: cron does something here that we do not.
Level: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One line: place, level, what is wrong, and the cure. ``line`` is None where the whole file is meant."""

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
    """A problem whose place is known to somebody else."""

    level: Level
    text: str
    cure: str


class Refused(Exception):
    """The line cannot run: why, and what helps."""

    def __init__(self, text: str, cure: str) -> None:
        super().__init__(text)
        self.text = text
        self.cure = cure
