"""What happened in a simulated world, and the error that tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tests.kit.laws import Breach

#: How many events of a slot a failure shows.
SHOWN = 50


@dataclass(frozen=True, slots=True)
class Entry:
    number: int
    at: datetime
    who: str
    what: str
    job: str | None = None
    slot: datetime | None = None

    def __str__(self) -> str:
        about = (
            f"{self.job or ''} {self.slot.isoformat() if self.slot else ''}".strip()
        )
        return (
            f"{self.number:5} {self.at:%H:%M:%S} {self.who:6} {self.what:40} {about}"
        )


class LawBroken(AssertionError):
    """A law did not hold; the message has the seed, the law, and the last events of the slot."""


@dataclass
class Trace:
    """Everything, in order."""

    seed: int
    entries: list[Entry] = field(default_factory=list)

    def add(
        self,
        at: datetime,
        who: str,
        what: str,
        job: str | None = None,
        slot: datetime | None = None,
    ) -> None:
        self.entries.append(Entry(len(self.entries), at, who, what, job, slot))

    def fail(self, law: str, text: str, job: str, slot: datetime | None) -> LawBroken:
        """The error, with the last events that concern this slot, its job or everybody."""
        about = [
            entry
            for entry in self.entries
            if entry.job in (None, job) and entry.slot in (None, slot)
        ]
        where = f"{job} {slot.isoformat()}" if slot else job
        lines = [
            f"seed {self.seed}: {law}: {where}: {text}",
            *map(str, about[-SHOWN:]),
        ]
        return LawBroken("\n".join(lines))

    def expect_none(self, breaches: Iterable[Breach]) -> None:
        """Raise LawBroken for the first."""
        for breach in breaches:
            raise self.fail(breach.law, breach.text, breach.job, breach.slot)
