"""What was measured: a reading for each contender, cell and round, and their summaries."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Figures of one contender in one round of a cell.

    ``rate`` is per second, ``*_us`` microseconds of CPU per execution, ``*_ms`` milliseconds,
    ``*_mib`` memory. ``spread`` are the single values behind the percentiles; ``note`` is the
    reason for missing figures.
    """

    cell: str
    contender: str
    round: int = 1
    figures: dict[str, float] = field(default_factory=dict)
    spread: tuple[float, ...] = ()
    checked: int = 0
    note: str = ""
    statements: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All rounds of one contender in one cell."""

    cell: str
    contender: str
    readings: tuple[Reading, ...]

    @property
    def note(self) -> str:
        return next((one.note for one in self.readings if one.note), "")

    @property
    def names(self) -> list[str]:
        """The names of its figures, in order."""
        return list(
            dict.fromkeys(name for one in self.readings for name in one.figures)
        )

    def values(self, name: str) -> list[float]:
        """Return the figure of each round that has it."""
        return [one.figures[name] for one in self.readings if name in one.figures]

    def median(self, name: str) -> float | None:
        return statistics.median(found) if (found := self.values(name)) else None

    def least(self, name: str) -> float | None:
        return min(self.values(name), default=None)

    def most(self, name: str) -> float | None:
        return max(self.values(name), default=None)

    @property
    def spread(self) -> list[float]:
        """The single values of all rounds, in order of size."""
        return sorted(value for one in self.readings for value in one.spread)


class Readings:
    """All readings of a run."""

    def __init__(self, readings: Iterable[Reading] = ()) -> None:
        self.all: list[Reading] = list(readings)

    def add(self, reading: Reading) -> None:
        self.all.append(reading)

    def summaries(self) -> Iterator[Summary]:
        """Yield the summaries in the order in which they were measured."""
        for cell, contender in dict.fromkeys(
            (one.cell, one.contender) for one in self.all
        ):
            yield self.of(cell, contender)

    def of(self, cell: str, contender: str) -> Summary:
        found = tuple(
            one for one in self.all if (one.cell, one.contender) == (cell, contender)
        )
        return Summary(cell=cell, contender=contender, readings=found)

    def contenders(self, cell: str, prefix: str = "") -> list[Summary]:
        """Return the summaries of a cell that have figures and whose contender begins with
        ``prefix``.
        """
        return [
            one
            for one in self.summaries()
            if one.cell == cell and one.contender.startswith(prefix) and one.names
        ]

    def best(self, cell: str, prefix: str, name: str = "rate") -> Summary | None:
        """Return the setting of a contender that has the highest median."""
        found = [
            one
            for one in self.contenders(cell, prefix)
            if one.median(name) is not None
        ]
        return max(found, key=lambda one: one.median(name) or 0.0, default=None)


def ratio(
    one: Summary | None, other: Summary | None, name: str = "rate"
) -> float | None:
    """Return the median of one's figure by the other's of the same round, over the rounds that
    both have.
    """
    if one is None or other is None:
        return None
    theirs = {reading.round: reading.figures.get(name) for reading in other.readings}
    found = [
        reading.figures[name] / value
        for reading in one.readings
        if name in reading.figures and (value := theirs.get(reading.round))
    ]
    return statistics.median(found) if found else None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of them do not exceed; ``values`` are sorted, not empty."""
    return values[min(int(len(values) * share), len(values) - 1)]


def distribution(values: Iterable[float]) -> dict[str, float]:
    """Return p50, p95, p99 and maximum of milliseconds."""
    ordered = sorted(values)
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
    return {
        **{name: percentile(ordered, share) for name, share in shares.items()},
        "max_ms": ordered[-1],
    }
