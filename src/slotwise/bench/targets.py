"""The targets of slotwise's figures, and whether a run reached them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from slotwise.bench.readings import Readings, Summary, ratio

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
    """A target, its figure (None: not measured in this run), and the reason for a missing figure, where it is known.

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
    return lambda readings: ratio(_best_of(readings, cell, OURS), _best_of(readings, cell, other))


def _between(cell: str, one: str, other: str) -> Find:
    return lambda readings: ratio(readings.of(cell, one), readings.of(cell, other))


def _median(cell: str, contender: str, name: str) -> Find:
    return lambda readings: readings.of(cell, contender).median(name)


def _cpu(cell: str) -> Find:
    """CPU of client and server together, each of its quietest round."""

    def find(readings: Readings) -> float | None:
        parts = [readings.of(cell, OURS).least(name) for name in ("client_us", "server_us")]
        return sum(part for part in parts if part is not None) if None not in parts else None

    return find


def _latency(cell: str, contender: str, text: str, p50: float, p99: float) -> Iterator[Target]:
    for name, bound in (("p50_ms", p50), ("p99_ms", p99)):
        yield Target(
            cell=cell, text=f"{text}, {name.removesuffix('_ms')}", bound=bound, unit="ms", at_most=True,
            find=_median(cell, contender, name),
        )  # fmt: skip


ALL: tuple[Target, ...] = (
    Target(cell="backlog", text="rate by the raw limit's", bound=0.6, unit="×", find=_by("backlog", "raw")),
    Target(cell="backlog", text="rate by PgQueuer's best", bound=1.8, unit="×", find=_by("backlog", "pgqueuer")),
    Target(
        cell="backlog", text="CPU per execution, client and server", bound=40, unit="µs", at_most=True,
        find=_cpu("backlog"),
    ),
    Target(
        cell="two-workers", text="two workers by one: never slower", bound=1.0, unit="×",
        find=_between("two-workers", "slotwise ×2", "slotwise ×1"),
    ),
    Target(
        cell="two-workers", text="two workers by one, where a core is free", bound=1.3, unit="×",
        find=_between("two-workers", "slotwise ×2", "slotwise ×1"),
    ),
    Target(cell="slots", text="rate by the raw limit's", bound=0.55, unit="×", find=_by("slots", "raw")),
    Target(cell="slots", text="slots per second", bound=10_000, unit="/s", find=_median("slots", OURS, "rate")),
    Target(
        cell="enqueue", text="rows per second, unnest", bound=70_000, unit="/s",
        find=_median("enqueue", "slotwise-many-unnest", "rate"),
    ),
    Target(
        cell="enqueue", text="rows per second, COPY", bound=150_000, unit="/s",
        find=_median("enqueue", "slotwise-many-copy", "rate"),
    ),
    *_latency("latency", OURS, "enqueue to start", 3, 10),
    *_latency("punctuality", OURS, "one worker", 3, 15),
    *_latency("punctuality", "slotwise ×3", "three workers", 3, 15),
    Target(
        cell="nothing-due", text="claim, one priority", bound=0.3, unit="ms", at_most=True,
        find=_median("nothing-due", "1 priority", "server_ms"),
    ),
    Target(
        cell="nothing-due", text="claim, five priorities", bound=0.3, unit="ms", at_most=True,
        find=_median("nothing-due", "5 priorities", "server_ms"),
    ),
    Target(
        cell="blocked", text="claim behind an unknown task", bound=1, unit="ms", at_most=True,
        find=_median("blocked", "unknown task", "server_ms"),
    ),
    Target(
        cell="blocked", text="claim behind a paused task", bound=1, unit="ms", at_most=True,
        find=_median("blocked", "paused task", "server_ms"),
    ),
    Target(
        cell="fairness", text="a row behind a flood of short tasks, the slowest", bound=1000, unit="ms", at_most=True,
        find=_median("fairness", "slotwise, 0 ms", "max_ms"),
    ),
    Target(
        cell="snapshot", text="rate under a held snapshot by before", bound=0.7, unit="×",
        find=_between("snapshot", "held", "before"),
    ),
    Target(
        cell="idle", text="queries per second", bound=0.5, unit="/s", at_most=True,
        find=_median("idle", OURS, "queries_per_s"),
    ),
    Target(cell="idle", text="CPU", bound=0.3, unit="%", at_most=True, find=_median("idle", OURS, "cpu_percent")),
    Target(cell="idle", text="memory", bound=60, unit="MiB", at_most=True, find=_median("idle", OURS, "rss_mib")),
    Target(
        cell="memory", text="peak memory", bound=120, unit="MiB", at_most=True,
        find=_median("memory", OURS, "peak_mib"),
    ),
    Target(
        cell="pages", text="a page of slots, server time", bound=50, unit="ms", at_most=True,
        find=_median("pages", "slots of a job, one page", "server_ms"),
    ),
)  # fmt: skip

#: The contender whose note is the reason for a missing figure, where that is not ``slotwise``.
_NOTES = {
    "rows per second, unnest": "slotwise-many-unnest",
    "rows per second, COPY": "slotwise-many-copy",
    "claim behind a paused task": "paused task",
}


def judge(readings: Readings, cells: set[str], *, is_whole: bool = True) -> list[Verdict]:
    """Return a verdict on each target of these cells."""
    return [
        Verdict(
            target=target,
            value=target.find(readings),
            note=readings.of(target.cell, _NOTES.get(target.text, OURS)).note,
            is_whole=is_whole,
        )
        for target in ALL
        if target.cell in cells
    ]
