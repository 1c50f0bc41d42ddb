"""One run of the benchmark: the server, how much is measured, how often, and who takes part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from slotwise.bench.contender import Contender
from slotwise.bench.readings import Reading, Readings
from slotwise.bench.server import Server

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
    """What every cell is given."""

    server: Server
    rounds: int = 5
    scale: float = 1.0
    #: Adapters of peers that are installed and were asked for.
    peers: Sequence[Contender] = ()
    tell: Callable[[Reading], None] = field(default=lambda _: None)

    def scaled(self, number: int, least: int = 1) -> int:
        """So many rows, times the scale."""
        return max(round(number * self.scale), least)

    def seconds(self, number: float, least: float = 1.0) -> float:
        """So many seconds, times the scale; never longer than at scale 1."""
        return max(number * min(self.scale, 1.0), least)

    def turns(self, contenders: Sequence[Contender], rounds: int | None = None) -> Iterator[tuple[int, Contender]]:
        """Everybody once per round, each round begun by another: nobody always has the quiet moment."""
        for number in range(rounds or self.rounds):
            first = number % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                yield number + 1, contender

    def prepared(self, contender: Contender) -> str:
        """The address of its database, with its tables, and nothing in them."""
        url = self.server.url(contender.family)
        contender.prepare(url)
        contender.empty(url)
        return url


def measure(run: Run, cells: Iterable[Cell]) -> Readings:
    """Measure these cells, one after the other, telling each reading as it comes."""
    readings = Readings()
    for cell in cells:
        for reading in cell.measure(run):
            readings.add(reading)
            run.tell(reading)
    return readings
