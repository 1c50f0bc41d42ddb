"""What it costs to keep many claims alive: one statement for all that a worker holds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from datetime import timedelta

from slotwise.bench.journal import RanWrong
from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import Slotwise, fill_tasks, registry_for
from slotwise.clock import elapsed
from slotwise.store.store import Store

ROWS = 50_000
BEATS = 5
HOLDER = "bench:1:held"

_HOLD = """
UPDATE scheduled_tasks SET picked = true, picked_by = %(holder)s, last_heartbeat = statement_timestamp(),
    lease = %(lease)s"""


def _held(run: Run) -> Iterator[Reading]:
    """Claims as a worker holds them, renewed by the product's own store; every beat must renew them all."""
    count, url = run.scaled(ROWS, 100), run.prepared(Slotwise())
    fill_tasks(url, count)
    with run.server.connect("slotwise") as connection:
        connection.execute(_HOLD, {"holder": HOLDER, "lease": timedelta(minutes=10)})
    run.server.settle("slotwise")
    registry = registry_for(url)
    store = Store(registry.database, registry.definitions)
    try:
        claims = store.held_by(HOLDER)
        if len(claims) != count:
            raise RanWrong(f"held: {len(claims)} of {count} rows are held; this run proves nothing")
        for number in range(1, run.rounds + 1):
            run.server.forget_statements("slotwise")
            spread = []
            for _ in range(BEATS):
                began = elapsed()
                if lost := store.beat(HOLDER, claims):
                    raise RanWrong(f"held: a heartbeat lost {len(lost)} claims; this run proves nothing")
                spread.append((elapsed() - began) * 1e3)
            figures = {"trip_ms": statistics.median(spread), "trip_max_ms": max(spread)}
            if (spent := run.server.milliseconds("slotwise")) is not None:
                figures = {"server_ms": spent / BEATS, **figures}
            yield Reading(cell="held", contender="slotwise", round=number, figures=figures, spread=tuple(spread))
    finally:
        registry.database.close()


HELD = Cell(name="held", title="a heartbeat for 50,000 held rows", measure=_held)
