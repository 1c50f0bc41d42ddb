"""The cells: one file per thing that is measured, ``ALL`` in the order in which they run."""

from __future__ import annotations

from slotwise.bench.cells.drain import BACKLOG, PAYLOADS, SLOTS, TWO_WORKERS
from slotwise.bench.cells.enqueue import ENQUEUE
from slotwise.bench.cells.fairness import FAIRNESS
from slotwise.bench.cells.held import HELD
from slotwise.bench.cells.idle import IDLE
from slotwise.bench.cells.latency import LATENCY
from slotwise.bench.cells.long import LONG
from slotwise.bench.cells.lookup import BLOCKED, NOTHING_DUE
from slotwise.bench.cells.memory import MEMORY
from slotwise.bench.cells.pages import PAGES
from slotwise.bench.cells.punctuality import PUNCTUALITY
from slotwise.bench.cells.seconds import SECONDS
from slotwise.bench.cells.snapshot import SNAPSHOT
from slotwise.bench.run import Cell

ALL: dict[str, Cell] = {
    cell.name: cell
    for cell in (
        BACKLOG, TWO_WORKERS, SLOTS, SECONDS, ENQUEUE, LATENCY, PUNCTUALITY, NOTHING_DUE, BLOCKED, FAIRNESS, SNAPSHOT,
        IDLE, MEMORY, PAGES, HELD, PAYLOADS, LONG,
    )
}  # fmt: skip
