"""What a run is made of: contenders, cells, the server, and how much is measured how often."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, TypeAlias

from tools.bench.crew import Command
from tools.bench.readings import Reading, Readings
from tools.bench.server import Server

#: Enqueues one due task, by its id.
Send: TypeAlias = Callable[[int], object]


class NotYet(Exception):
    """This contender cannot do that; the message names what is missing."""


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
        """Make its tables, unless they exist."""

    @abstractmethod
    def empty(self, url: str) -> None:
        """Remove all tasks."""

    @abstractmethod
    def fill(self, url: str, count: int) -> None:
        """Add tasks 1 to ``count``, all due, each with a payload of two bytes."""

    @abstractmethod
    def command(self, url: str) -> Command:
        """Return how to start a worker that runs the tasks of ``fill``."""

    def is_done(self, connection: object) -> bool:
        """Return whether everything that has started is settled. Peers are not asked, which is in
        their favour.
        """
        del connection
        return True

    def sender(self, url: str) -> AbstractContextManager[Send]:
        """Open a connection that enqueues one due task per call and wakes its worker. Raises
        NotYet.
        """
        raise NotYet("one process only")

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        """Plan one start at each of these instants, with the instant in microseconds as its id.
        Return the worker.

        Raises NotYet.
        """
        raise NotYet("no start at a given time")

    def listening(self, url: str) -> Command:
        """Return how to start a worker that runs the tasks of ``sender``."""
        return self.command(url)


def python(module: str, **options: object) -> Command:
    """Return how to start a worker that is a module of ours, with its options in the
    environment.
    """
    return Command(
        arguments=["-m", module], environment={"BENCH_OPTIONS": json.dumps(options)}
    )


def micros(instant: datetime) -> int:
    """Return the instant as an id."""
    return round(instant.timestamp() * 1_000_000)


Measure: TypeAlias = "Callable[[Run], Iterator[Reading]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One thing that is measured."""

    name: str
    #: For people, in a few words.
    title: str
    measure: Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The arguments of every cell."""

    server: Server
    rounds: int = 5
    scale: float = 1.0
    #: Adapters of peers that are installed and were asked for.
    peers: Sequence[Contender] = ()
    tell: Callable[[Reading], None] = field(default=lambda _: None)

    def scaled(self, number: int, least: int = 1) -> int:
        """Return a number of rows, times the scale."""
        return max(round(number * self.scale), least)

    def seconds(self, number: float, least: float = 1.0) -> float:
        """Return seconds, times the scale; never more than at scale 1."""
        return max(number * min(self.scale, 1.0), least)

    def turns(
        self, contenders: Sequence[Contender], rounds: int | None = None
    ) -> Iterator[tuple[int, Contender]]:
        """Yield each contender once per round; another one begins each round, so that none is
        always the first.
        """
        for number in range(rounds or self.rounds):
            first = number % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                yield number + 1, contender

    def prepared(self, contender: Contender) -> str:
        """Return the URL of its database, with empty tables."""
        url = self.server.url(contender.family)
        contender.prepare(url)
        contender.empty(url)
        return url


def measure(run: Run, cells: Iterable[Cell]) -> Readings:
    """Measure these cells, one after the other, and report each reading as it comes."""
    readings = Readings()
    for cell in cells:
        for reading in cell.measure(run):
            readings.add(reading)
            run.tell(reading)
    return readings
