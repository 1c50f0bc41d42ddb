"""Who takes part: slotwise, bare psycopg, peers. Each knows how to fill its tables and how its workers are started."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, ClassVar, TypeAlias

from slotwise.bench.crew import Command

#: Enqueues one due task, by its id.
Send: TypeAlias = Callable[[int], object]


class NotYet(Exception):
    """This contender cannot do that; the text says what is missing."""


class Contender(ABC):
    """One way to run tasks, in one setting."""

    #: Which database it works in; the settings of one product share it.
    family: ClassVar[str]
    name: str
    #: Of the tasks that the others get: slow ones would keep everybody waiting.
    share: float = 1.0
    #: Several of its workers must not share a database.
    is_single: bool = False

    @abstractmethod
    def prepare(self, url: str) -> None:
        """Make its tables; called again, it changes nothing."""

    @abstractmethod
    def empty(self, url: str) -> None:
        """Leave no task behind."""

    @abstractmethod
    def fill(self, url: str, count: int) -> None:
        """Tasks 1 to ``count``, all due, each with a payload of two bytes."""

    @abstractmethod
    def command(self, url: str) -> Command:
        """How a worker is started that does what has been filled in."""

    def is_done(self, connection: Any) -> bool:
        """Whether everything that has started is settled, too. Of peers nobody asks: that is in their favour."""
        del connection
        return True

    def sender(self, url: str) -> AbstractContextManager[Send]:
        """A connection that enqueues one due task per call, waking whoever listens. Raises NotYet."""
        raise NotYet("one process only")

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        """Arrange for one start at each of these instants, whose id is the instant in microseconds; the worker."""
        raise NotYet("it cannot be told when")

    def listening(self, url: str) -> Command:
        """The worker that runs what ``sender`` sends."""
        return self.command(url)


def python(module: str, **options: Any) -> Command:
    """A worker that is a program of ours, with its options in the environment."""
    return Command(arguments=["-m", module], environment={"BENCH_OPTIONS": json.dumps(options)})


def micros(instant: datetime) -> int:
    """The instant as an id."""
    return round(instant.timestamp() * 1_000_000)
