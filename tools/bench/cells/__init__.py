"""The cells, which are the things that are measured; ``ALL`` is the order in which they run."""

from __future__ import annotations

from tools.bench.cells.costs import (
    BLOCKED,
    HELD,
    IDLE,
    MEMORY,
    NEXT_DUE,
    NOTHING_DUE,
    PAGES,
)
from tools.bench.cells.latency import FAIRNESS, LATENCY, LOCKS, PUNCTUALITY
from tools.bench.cells.throughput import (
    BACKLOG,
    ENQUEUE,
    IDS,
    LONG,
    MARKS,
    METRICS,
    PAYLOADS,
    RETURN,
    SECONDS,
    SLOTS,
    SNAPSHOT,
    TWO_WORKERS,
)
from tools.bench.run import Cell

ALL: dict[str, Cell] = {
    cell.name: cell
    for cell in (
        BACKLOG,
        METRICS,
        MARKS,
        TWO_WORKERS,
        SLOTS,
        SECONDS,
        RETURN,
        ENQUEUE,
        IDS,
        LATENCY,
        PUNCTUALITY,
        NOTHING_DUE,
        NEXT_DUE,
        BLOCKED,
        FAIRNESS,
        SNAPSHOT,
        IDLE,
        MEMORY,
        PAGES,
        HELD,
        PAYLOADS,
        LONG,
        LOCKS,
    )
}
