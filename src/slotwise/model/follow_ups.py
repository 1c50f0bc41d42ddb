"""What a handler leaves behind besides its success: further tasks, arrivals, a result. Written with its settlement."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

from slotwise.model.records import Key

IfExists: TypeAlias = Literal["raise", "keep", "replace", "reschedule"]


class When(NamedTuple):
    """Due ``at``, or else ``delay`` after now."""

    at: datetime | None
    delay: timedelta = timedelta(0)


class Wanted(NamedTuple):
    """A row that shall be; with ``waits_for`` it is blocked until so many others have arrived."""

    instance: str
    data: bytes | None
    when: When
    priority: int
    waits_for: int = 0


class Follow(NamedTuple):
    """A task that follows."""

    task: str
    wanted: Wanted
    if_exists: IfExists


@dataclass(slots=True)
class FollowUps:
    """Gathered while a handler runs, also from several threads of it."""

    follows: list[Follow] = field(default_factory=list)
    arrivals: list[Key] = field(default_factory=list)
    result: bytes | None = None
    #: Why the result is not kept.
    problem: str | None = None


#: Race: two threads of one handler may both be the first to leave something behind.
BEGINNING = threading.Lock()
