"""The cells, which are the things that are measured; ``ALL`` is the order in which they run.
Imports as ``bench``.
"""

from __future__ import annotations

from slotwise.bench.cells.costs import (
    BLOCKED,
    HELD,
    IDLE,
    MEMORY,
    NEXT_DUE,
    NOTHING_DUE,
    PAGES,
)
from slotwise.bench.cells.latency import FAIRNESS, LATENCY, LOCKS, PUNCTUALITY
from slotwise.bench.cells.throughput import (
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
from slotwise.bench.run import Cell

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
