"""One call of the benchmark, from its options to the report."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slotwise import ConfigurationError
from tools.bench import machine, peers, pictures
from tools.bench.cells import ALL
from tools.bench.readings import Reading
from tools.bench.report import Report, number
from tools.bench.run import Cell, Run, measure
from tools.bench.server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The options of a run; ``cells`` and ``peers`` are names separated by commas, no cells means
    all.
    """

    cells: str = ""
    rounds: int = 5
    scale: float = 1.0
    peers: str = ""
    database_url: str | None = None
    pictures: Path | None = None

    @property
    def command(self) -> str:
        """The command that runs the same again."""
        words = [
            "python3 dev.py bench",
            f"--rounds {self.rounds}",
            f"--scale {self.scale:g}",
        ]
        words += [
            f"--{name} {value}"
            for name in ("cells", "peers")
            if (value := getattr(self, name))
        ]
        return " ".join(words)


def fulfil(wish: Wish, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Measure, and report each reading as it comes. Raises ConfigurationError, RanWrong, and
    errors of the database.
    """
    cells = list(_known(split(wish.cells))) or list(ALL.values())
    found, versions = peers.find(split(wish.peers))
    with ends_cleanly(), Server(wish.database_url) as server:
        facts = machine.describe(server, versions)
        run = Run(
            server=server,
            rounds=wish.rounds,
            scale=wish.scale,
            peers=found,
            tell=lambda one: tell(line_of(one)),
        )
        readings = measure(run, cells)
    if wish.pictures is not None:
        pictures.draw(readings, wish.pictures)
    return Report(
        readings=readings,
        machine=facts,
        command=wish.command,
        is_whole=wish.scale >= 1,
    )


def cells() -> list[list[str]]:
    """Return each cell's name, and what it measures."""
    return [[cell.name, cell.title] for cell in ALL.values()]


def line_of(reading: Reading) -> str:
    """Format a reading on one line."""
    figures = "  ".join(
        f"{name}={number(value)}" for name, value in reading.figures.items()
    )
    return f"{reading.cell:<12} {reading.contender:<34} {reading.round}  {figures or reading.note}"


def split(text: str) -> list[str]:
    """Return the names of a string in which commas separate them."""
    return [name for part in text.split(",") if (name := part.strip())]


def _known(names: Iterable[str]) -> Iterator[Cell]:
    for name in names:
        if name not in ALL:
            raise ConfigurationError(f"--cells {name}: known are {', '.join(ALL)}")
        yield ALL[name]


@contextmanager
def ends_cleanly() -> Iterator[None]:
    """Make SIGTERM end the run as Ctrl-C does: workers, databases and the server are removed."""
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
