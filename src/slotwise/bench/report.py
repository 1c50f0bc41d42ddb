"""A run for people, for a page of the documentation, and for programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slotwise.bench.cells import ALL
from slotwise.bench.readings import Reading, Readings, Summary
from slotwise.bench.targets import Target, Verdict, judge

#: In the order of the columns; a figure that is not here stands behind them under its own name.
_TITLES = {
    "rate": "per second", "client_us": "client µs", "server_us": "server µs", "p50_ms": "p50 ms", "p95_ms": "p95 ms",
    "p99_ms": "p99 ms", "max_ms": "max ms", "server_ms": "server ms", "server_max_ms": "server max ms",
    "trip_ms": "round trip ms", "trip_max_ms": "round trip max ms", "queries_per_s": "queries/s",
    "with_control_per_s": "with BEGIN/COMMIT/s", "cpu_percent": "CPU %", "rss_mib": "RSS MiB", "peak_mib": "peak MiB",
    "took_s": "all done after s", "starts_ms": "first to last start ms",
    "started": "started", "ran": "slots run", "not_run": "slots not run",
}  # fmt: skip
#: What noise only ever makes larger: the least of the rounds is the truest.
_LEAST = ("client_us", "server_us")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a run found out."""

    readings: Readings
    machine: Mapping[str, str]
    command: str
    #: Not shortened.
    is_whole: bool = True

    @property
    def cells(self) -> list[str]:
        return list(dict.fromkeys(one.cell for one in self.readings.all))

    def title(self, cell: str) -> str:
        """What the cell measures."""
        return ALL[cell].title

    @property
    def verdicts(self) -> list[Verdict]:
        return judge(self.readings, set(self.cells), is_whole=self.is_whole)

    def columns(self, cell: str) -> list[str]:
        """Which figures the contenders of a cell have."""
        found = [name for one in self.readings.contenders(cell) for name in one.names]
        return [name for name in _TITLES if name in found] + [
            name for name in dict.fromkeys(found) if name not in _TITLES
        ]

    def rows(self, cell: str) -> tuple[list[str], list[list[str]]]:
        """A cell as a table: its headings, and a row for each contender."""
        columns = self.columns(cell)
        rows = [
            [one.contender, *(_spelled(one, name) for name in columns)]
            for one in self.readings.summaries()
            if one.cell == cell and one.names
        ]
        rows += [
            [one.contender, one.note, *[""] * (len(columns) - 1)]
            for one in self.readings.summaries()
            if one.cell == cell and not one.names
        ]
        return ["", *(_TITLES.get(name, name) for name in columns or ["figures"])], rows

    def targets(self) -> list[list[str]]:
        """Each target of the measured cells: cell, figure, wanted, measured, share, reached or not."""
        return [
            [
                verdict.target.cell, verdict.target.text, _bound(verdict.target), _measured(verdict),
                _share(verdict), verdict.word,
            ]
            for verdict in self.verdicts
        ]  # fmt: skip

    def json(self) -> dict[str, Any]:
        """For programs; the single values are in it."""
        return {
            "command": self.command,
            "machine": dict(self.machine),
            "readings": [_plain(one) for one in self.readings.all],
            "targets": [
                {
                    "cell": one.target.cell, "figure": one.target.text, "bound": one.target.bound,
                    "at_most": one.target.at_most, "unit": one.target.unit, "value": one.value, "verdict": one.word,
                }
                for one in self.verdicts
            ],
        }  # fmt: skip

    def markdown(self) -> Iterator[str]:
        """The blocks of a page: machine, targets, a table for each cell."""
        yield f"```text\n{self.command}\n\n{aligned(self.machine)}\n```\n"
        yield markdown_table(["cell", "figure", "target", "measured", "share", ""], self.targets())
        for cell in self.cells:
            yield f"### {cell}: {self.title(cell)}\n"
            yield markdown_table(*self.rows(cell))


def number(value: float) -> str:
    """Three digits that mean something, thousands set apart."""
    if math.isinf(value):
        return "∞"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def _spelled(summary: Summary, name: str) -> str:
    """Least/median/most of the rounds; of CPU per execution the least alone."""
    least, middle, most = summary.least(name), summary.median(name), summary.most(name)
    if least is None or middle is None or most is None:
        return "–"
    if name in _LEAST or len(summary.values(name)) == 1:
        return number(least)
    return " / ".join(map(number, (least, middle, most)))


def _bound(target: Target) -> str:
    return f"{'≤' if target.at_most else '≥'} {_with_unit(target.bound, target.unit)}"


def _measured(verdict: Verdict) -> str:
    return "–" if verdict.value is None else _with_unit(verdict.value, verdict.target.unit)


def _share(verdict: Verdict) -> str:
    return "–" if verdict.share is None else f"{number(verdict.share)} ×"


def _with_unit(value: float, unit: str) -> str:
    text = f"{value:,g}" if value == round(value) else number(value)
    return f"{text}{unit}" if unit in ("/s", "%") else f"{text} {unit}".strip()


def _plain(reading: Reading) -> dict[str, Any]:
    found = dataclasses.asdict(reading)
    found["spread"] = [round(value, 4) for value in reading.spread]
    return {name: value for name, value in found.items() if value not in ("", [], (), {}) or name == "figures"}


def aligned(fields: Mapping[str, str]) -> str:
    """One line for each field, their values below each other."""
    width = max(map(len, fields))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in fields.items())


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
