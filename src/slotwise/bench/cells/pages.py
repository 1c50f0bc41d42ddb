"""What a page of a listing costs when the ledger is long."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from datetime import timedelta

from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import Slotwise, registry_for
from slotwise.clock import elapsed
from slotwise.store.reader import Reader
from slotwise.store.store import Store

ROWS = 1_000_000
JOBS = 100
LOOKS = 20
PAGE = 50

_LEDGER = """
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, attempts, token, worker, started, finished)
SELECT 'bench-' || lpad((i %% %(jobs)s)::text, 5, '0'), 'recurring',
       statement_timestamp() - (i / %(jobs)s) * interval '1 minute', 'succeeded', 1, i, 'host:1:boot',
       statement_timestamp() - (i / %(jobs)s) * interval '1 minute', statement_timestamp()
FROM generate_series(1, %(count)s) AS i"""


def _pages(run: Run) -> Iterator[Reading]:
    url = run.prepared(Slotwise())
    with run.server.connect("slotwise") as connection:
        connection.execute(_LEDGER, {"count": run.scaled(ROWS, JOBS * 10), "jobs": JOBS})
    run.server.settle("slotwise")
    registry = registry_for(url)
    reader = Reader(Store(registry.database, registry.definitions))
    looks: dict[str, Callable[[], object]] = {
        "slots of a job, one page": lambda: list(itertools.islice(reader.slots("bench-00007"), PAGE)),
        "health": lambda: reader.health(timedelta(minutes=1)),
    }
    try:
        for name, look in looks.items():
            run.server.forget_statements("slotwise")
            spread = [_timed(look) for _ in range(run.scaled(LOOKS, 3))]
            figures = {"trip_ms": statistics.median(spread), "trip_max_ms": max(spread)}
            if (spent := run.server.milliseconds("slotwise")) is not None:
                figures = {"server_ms": spent / len(spread), **figures}
            yield Reading(cell="pages", contender=name, figures=figures, spread=tuple(spread))
    finally:
        registry.database.close()


def _timed(look: Callable[[], object]) -> float:
    began = elapsed()
    look()
    return (elapsed() - began) * 1e3


PAGES = Cell(name="pages", title="a page of a listing over 1,000,000 ledger rows", measure=_pages)
