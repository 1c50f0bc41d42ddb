"""The results of a run as tables, JSON and Markdown, and the targets that it reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from tools.bench.cells import ALL
from tools.bench.cells.costs import NEXT_DUE_CASES
from tools.bench.cells.throughput import OPENTELEMETRY, PROMETHEUS
from tools.bench.readings import Reading, Readings, Summary, ratio

#: In the order of the columns; a figure that is not here stands behind them under its own name.
_TITLES = {
    "rate": "per second",
    "client_us": "client µs",
    "server_us": "server µs",
    "p50_ms": "p50 ms",
    "p95_ms": "p95 ms",
    "p99_ms": "p99 ms",
    "max_ms": "max ms",
    "server_ms": "server ms",
    "server_max_ms": "server max ms",
    "trip_ms": "round trip ms",
    "trip_max_ms": "round trip max ms",
    "queries_per_s": "queries/s",
    "with_control_per_s": "with BEGIN/COMMIT/s",
    "cpu_percent": "CPU %",
    "rss_mib": "RSS MiB",
    "peak_mib": "peak MiB",
    "took_s": "all done after s",
    "starts_ms": "first to last start ms",
    "started": "started",
    "not_run": "slots not run",
    "back_s": "on time after s",
    "share": "share of slots run",
    "gaps_per_job": "gap rows per job",
}
#: Noise only adds to these, so that the minimum of the rounds is the best estimate.
_LEAST = ("client_us", "server_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of a run."""

    readings: Readings
    machine: Mapping[str, str]
    command: str
    #: False for a run that was shortened by its scale.
    is_whole: bool = True

    @property
    def cells(self) -> list[str]:
        return list(dict.fromkeys(one.cell for one in self.readings.all))

    def title(self, cell: str) -> str:
        """Return what the cell measures."""
        return ALL[cell].title

    @property
    def verdicts(self) -> list[Verdict]:
        return judge(self.readings, set(self.cells), is_whole=self.is_whole)

    def columns(self, cell: str) -> list[str]:
        """Return the names of the figures that contenders of a cell have."""
        found = [name for one in self.readings.contenders(cell) for name in one.names]
        return [name for name in _TITLES if name in found] + [
            name for name in dict.fromkeys(found) if name not in _TITLES
        ]

    def rows(self, cell: str) -> tuple[list[str], list[list[str]]]:
        """Return a cell as a table: its headings, and a row for each contender."""
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
        return [
            "",
            *(_TITLES.get(name, name) for name in columns or ["figures"]),
        ], rows

    def targets(self) -> list[list[str]]:
        """Return for each target of the measured cells: cell, figure, bound, measured, share,
        verdict.
        """
        return [
            [
                verdict.target.cell,
                verdict.target.text,
                _bound(verdict.target),
                _measured(verdict),
                _share(verdict),
                verdict.word,
            ]
            for verdict in self.verdicts
        ]

    def json(self) -> dict[str, object]:
        """Return everything, with the single values."""
        return {
            "command": self.command,
            "machine": dict(self.machine),
            "readings": [_plain(one) for one in self.readings.all],
            "targets": [
                {
                    "cell": one.target.cell,
                    "figure": one.target.text,
                    "bound": one.target.bound,
                    "at_most": one.target.at_most,
                    "unit": one.target.unit,
                    "value": one.value,
                    "verdict": one.word,
                }
                for one in self.verdicts
            ],
        }

    def markdown(self) -> Iterator[str]:
        """Yield the blocks of a page: machine, targets, a table for each cell."""
        yield f"```text\n{self.command}\n\n{aligned(self.machine)}\n```\n"
        yield markdown_table(
            ["cell", "figure", "target", "measured", "share", ""], self.targets()
        )
        for cell in self.cells:
            yield f"### {cell}: {self.title(cell)}\n"
            yield markdown_table(*self.rows(cell))


def number(value: float) -> str:
    """Format a number with three significant digits, thousands separated."""
    if math.isinf(value):
        return "∞"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return (
        f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
        if abs(value) >= 0.1
        else f"{value:.3f}"
    )


def _spelled(summary: Summary, name: str) -> str:
    """Format the minimum, median and maximum of the rounds; of CPU per execution the minimum
    alone.
    """
    least = summary.least(name)
    middle = summary.median(name)
    most = summary.most(name)
    if least is None or middle is None or most is None:
        return "–"
    if name in _LEAST or len(summary.values(name)) == 1:
        return number(least)
    return " / ".join(map(number, (least, middle, most)))


def _bound(target: Target) -> str:
    return f"{'≤' if target.at_most else '≥'} {_with_unit(target.bound, target.unit)}"


def _measured(verdict: Verdict) -> str:
    return (
        "–"
        if verdict.value is None
        else _with_unit(verdict.value, verdict.target.unit)
    )


def _share(verdict: Verdict) -> str:
    return "–" if verdict.share is None else f"{number(verdict.share)} ×"


def _with_unit(value: float, unit: str) -> str:
    text = f"{value:,g}" if float(value).is_integer() else number(value)
    return f"{text}{unit}" if unit in ("/s", "%") else f"{text} {unit}".strip()


def _plain(reading: Reading) -> dict[str, object]:
    found = asdict(reading)
    found["spread"] = [round(value, 4) for value in reading.spread]
    return {
        name: value
        for name, value in found.items()
        if value not in ("", [], (), {}) or name == "figures"
    }


def aligned(fields: Mapping[str, str]) -> str:
    """Format one line for each field, with their values aligned."""
    width = max(map(len, fields))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in fields.items())


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# -- targets --------------------------------------------------------------------------------------


Find: TypeAlias = Callable[[Readings], "float | None"]

OURS = "slotwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure and its bound. ``share`` is at least 1 where the target is reached."""

    cell: str
    text: str
    bound: float
    find: Find
    unit: str = ""
    at_most: bool = False

    def share(self, value: float) -> float:
        if self.at_most:
            return self.bound / value if value else float("inf")
        return value / self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target, its figure (None: not measured in this run), and the reason for a missing figure,
    where it is known.

    A shortened run is not judged: its rates are those of starting and ending.
    """

    target: Target
    value: float | None
    note: str = ""
    is_whole: bool = True

    @property
    def share(self) -> float | None:
        return None if self.value is None else self.target.share(self.value)

    @property
    def word(self) -> str:
        if self.share is None:
            return self.note.partition(":")[0] or "not measured"
        if not self.is_whole:
            return "not judged: a short run"
        return "reached" if self.share >= 1 else "not reached"


def _best_of(readings: Readings, cell: str, prefix: str) -> Summary | None:
    """Return ``slotwise``, which is its best setting; of other contenders the fastest setting."""
    return readings.of(cell, OURS) if prefix == OURS else readings.best(cell, prefix)


def _by(cell: str, other: str) -> Find:
    """Our rate by the best of another contender, round by round."""
    return lambda readings: ratio(
        _best_of(readings, cell, OURS), _best_of(readings, cell, other)
    )


def _between(cell: str, one: str, other: str) -> Find:
    return lambda readings: ratio(readings.of(cell, one), readings.of(cell, other))


def _late_by_slots(readings: Readings) -> float | None:
    """The rate of late slots by that of slots on time, or by what was due if that is less, in the
    median of rounds.
    """
    late, on_time = (
        readings.of(cell, OURS).median("rate") for cell in ("seconds", "slots")
    )
    share = readings.of("seconds", OURS).median("share")
    return (
        max(late / on_time, share) if late and on_time and share is not None else None
    )


def _median(cell: str, contender: str, name: str) -> Find:
    return lambda readings: readings.of(cell, contender).median(name)


def _cpu(cell: str) -> Find:
    """CPU of client and server together, each of its quietest round."""

    def find(readings: Readings) -> float | None:
        parts = [
            readings.of(cell, OURS).least(name) for name in ("client_us", "server_us")
        ]
        return (
            sum(part for part in parts if part is not None)
            if None not in parts
            else None
        )

    return find


def _extra(contender: str, *, as_share: bool = False) -> Find:
    """CPU that a worker with metrics takes more of each execution than one without in the same
    round, in the median.

    ``as_share``: by the CPU of client and server without. The server does the same for both, and
    is left out.
    """

    def find(readings: Readings) -> float | None:
        plain = {
            one.round: one.figures
            for one in readings.of("metrics", OURS).readings
            if "server_us" in one.figures
        }
        found = [
            (one.figures["client_us"] - mine["client_us"])
            / (mine["client_us"] + mine["server_us"] if as_share else 1)
            for one in readings.of("metrics", contender).readings
            if "client_us" in one.figures and (mine := plain.get(one.round))
        ]
        return (
            max(statistics.median(found), 0.0) * (100 if as_share else 1)
            if found
            else None
        )

    return find


def _latency(
    cell: str, contender: str, text: str, p50: float, p99: float
) -> Iterator[Target]:
    for name, bound in (("p50_ms", p50), ("p99_ms", p99)):
        yield Target(
            cell=cell,
            text=f"{text}, {name.removesuffix('_ms')}",
            bound=bound,
            unit="ms",
            at_most=True,
            find=_median(cell, contender, name),
        )


TARGETS: tuple[Target, ...] = (
    Target(
        cell="backlog",
        text="rate by the raw limit's",
        bound=0.6,
        unit="×",
        find=_by("backlog", "raw"),
    ),
    Target(
        cell="backlog",
        text="rate by PgQueuer's best",
        bound=1.8,
        unit="×",
        find=_by("backlog", "pgqueuer"),
    ),
    Target(
        cell="backlog",
        text="CPU per execution, client and server",
        bound=40,
        unit="µs",
        at_most=True,
        find=_cpu("backlog"),
    ),
    Target(
        cell="metrics",
        text="more CPU per execution with Prometheus",
        bound=3,
        unit="%",
        at_most=True,
        find=_extra(PROMETHEUS, as_share=True),
    ),
    Target(
        cell="metrics",
        text="more CPU per execution with OpenTelemetry's API",
        bound=5,
        unit="µs",
        at_most=True,
        find=_extra(OPENTELEMETRY),
    ),
    Target(
        cell="two-workers",
        text="two workers by one: never slower",
        bound=1.0,
        unit="×",
        find=_between("two-workers", "slotwise ×2", "slotwise ×1"),
    ),
    Target(
        cell="two-workers",
        text="two workers by one, where a core is free",
        bound=1.3,
        unit="×",
        find=_between("two-workers", "slotwise ×2", "slotwise ×1"),
    ),
    Target(
        cell="slots",
        text="rate by the raw limit's",
        bound=0.55,
        unit="×",
        find=_by("slots", "raw"),
    ),
    Target(
        cell="slots",
        text="slots per second",
        bound=10_000,
        unit="/s",
        find=_median("slots", OURS, "rate"),
    ),
    Target(
        cell="seconds",
        text="back on time after",
        bound=30,
        unit="s",
        at_most=True,
        find=_median("seconds", OURS, "back_s"),
    ),
    Target(
        cell="seconds",
        text="rate by that of slots, or by what is due",
        bound=0.65,
        unit="×",
        find=_late_by_slots,
    ),
    Target(
        cell="seconds",
        text="gap rows per job",
        bound=1,
        at_most=True,
        find=_median("seconds", OURS, "gaps_per_job"),
    ),
    Target(
        cell="return",
        text="late by on time, one worker",
        bound=0.65,
        unit="×",
        find=_between("return", "slotwise ×1", "slotwise, on time"),
    ),
    Target(
        cell="enqueue",
        text="rows per second, unnest",
        bound=70_000,
        unit="/s",
        find=_median("enqueue", "slotwise-many-unnest", "rate"),
    ),
    Target(
        cell="enqueue",
        text="rows per second, COPY",
        bound=150_000,
        unit="/s",
        find=_median("enqueue", "slotwise-many-copy", "rate"),
    ),
    *_latency("latency", OURS, "enqueue to start", 3, 10),
    *_latency("punctuality", OURS, "one worker", 3, 15),
    *_latency("punctuality", "slotwise ×3", "three workers", 3, 15),
    Target(
        cell="nothing-due",
        text="claim, one priority",
        bound=0.3,
        unit="ms",
        at_most=True,
        find=_median("nothing-due", "1 priority", "server_ms"),
    ),
    Target(
        cell="nothing-due",
        text="claim, five priorities",
        bound=0.3,
        unit="ms",
        at_most=True,
        find=_median("nothing-due", "5 priorities", "server_ms"),
    ),
    *(
        Target(
            cell="next-due",
            text=f"look, {case}",
            bound=1,
            unit="ms",
            at_most=True,
            find=_median("next-due", case, "server_ms"),
        )
        for case in NEXT_DUE_CASES
    ),
    Target(
        cell="blocked",
        text="claim behind an unknown task",
        bound=1,
        unit="ms",
        at_most=True,
        find=_median("blocked", "unknown task", "server_ms"),
    ),
    Target(
        cell="blocked",
        text="claim behind a paused task",
        bound=1,
        unit="ms",
        at_most=True,
        find=_median("blocked", "paused task", "server_ms"),
    ),
    Target(
        cell="fairness",
        text="a row behind a flood of short tasks, the slowest",
        bound=1000,
        unit="ms",
        at_most=True,
        find=_median("fairness", "slotwise, 0 ms", "max_ms"),
    ),
    Target(
        cell="snapshot",
        text="rate under a held snapshot by before",
        bound=0.7,
        unit="×",
        find=_between("snapshot", "held", "before"),
    ),
    Target(
        cell="idle",
        text="queries per second",
        bound=0.5,
        unit="/s",
        at_most=True,
        find=_median("idle", OURS, "queries_per_s"),
    ),
    Target(
        cell="idle",
        text="CPU",
        bound=0.3,
        unit="%",
        at_most=True,
        find=_median("idle", OURS, "cpu_percent"),
    ),
    Target(
        cell="idle",
        text="memory",
        bound=60,
        unit="MiB",
        at_most=True,
        find=_median("idle", OURS, "rss_mib"),
    ),
    Target(
        cell="memory",
        text="peak memory",
        bound=120,
        unit="MiB",
        at_most=True,
        find=_median("memory", OURS, "peak_mib"),
    ),
    Target(
        cell="pages",
        text="a page of slots, server time",
        bound=50,
        unit="ms",
        at_most=True,
        find=_median("pages", "slots of a job, one page", "server_ms"),
    ),
)

#: The contender whose note is the reason for a missing figure, where that is not ``slotwise``.
_NOTES = {
    "rows per second, unnest": "slotwise-many-unnest",
    "rows per second, COPY": "slotwise-many-copy",
    "claim behind a paused task": "paused task",
    **{f"look, {case}": case for case in NEXT_DUE_CASES},
}


def judge(
    readings: Readings, cells: set[str], *, is_whole: bool = True
) -> list[Verdict]:
    """Return a verdict on each target of these cells."""
    return [
        Verdict(
            target=target,
            value=target.find(readings),
            note=readings.of(target.cell, _NOTES.get(target.text, OURS)).note,
            is_whole=is_whole,
        )
        for target in TARGETS
        if target.cell in cells
    ]
