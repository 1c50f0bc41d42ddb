"""What a claim costs that finds nothing: among many future rows, and behind many due rows of somebody else's task."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from slotwise.bench.app import TASK
from slotwise.bench.journal import RanWrong
from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import Slotwise, fill_tasks, registry_for
from slotwise.clock import elapsed
from slotwise.store.store import Store

ROWS = 1_000_000
LOOKS = 40
_LEASE = timedelta(minutes=1)

_CLAIMS = """
SELECT mean_exec_time, max_exec_time FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND query ILIKE '%%for update skip locked%%'
ORDER BY total_exec_time DESC LIMIT 1"""


def _nothing_due(run: Run) -> Iterator[Reading]:
    for priorities in (1, 5):
        url = run.prepared(Slotwise())
        fill_tasks(url, run.scaled(ROWS, 100), after=timedelta(hours=1), priorities=priorities)
        word = "priority" if priorities == 1 else "priorities"
        yield from _look(run, url, "nothing-due", f"{priorities} {word}")


def _blocked(run: Run) -> Iterator[Reading]:
    """The worker's own task has rows, too, all in the future: its name alone does not say that nothing is due."""
    count, url = run.scaled(ROWS, 100), run.prepared(Slotwise())
    fill_tasks(url, count, name="somebody-elses")
    fill_tasks(url, count // 10, after=timedelta(hours=1))
    yield from _look(run, url, "blocked", "unknown task")
    fill_tasks(url, (run.rounds + 1) * run.scaled(LOOKS, 5), first=count + 1, after=timedelta(seconds=-1))
    yield from _look(run, url, "blocked", "unknown task, a due row behind", limit=1, wanted=1)
    yield from _paused(run, count)


def _paused(run: Run, count: int) -> Iterator[Reading]:
    """Not even parked: due all the time, and of the worker's own task."""
    url = run.prepared(Slotwise())
    fill_tasks(url, count)
    with run.server.connect("slotwise") as connection:
        connection.execute("UPDATE scheduled_tasks SET state = 'paused'")
    fill_tasks(url, count // 10, first=count + 1, after=timedelta(hours=1))
    yield from _look(run, url, "blocked", "paused task")


def _look(run: Run, url: str, cell: str, contender: str, *, limit: int = 100, wanted: int = 0) -> Iterator[Reading]:
    """Claims by the product's own store; ``server_ms`` is the claim statement, ``trip_ms`` the whole transaction."""
    run.server.settle("slotwise")
    registry = registry_for(url)
    store = Store(registry.database, registry.definitions)
    try:
        _claim(store, limit, wanted)
        for number in range(1, run.rounds + 1):
            run.server.forget_statements("slotwise")
            spread = [_claim(store, limit, wanted) for _ in range(run.scaled(LOOKS, 5))]
            figures = {"trip_ms": statistics.median(spread), "trip_max_ms": max(spread)}
            yield Reading(
                cell=cell, contender=contender, round=number, figures={**_server_side(run), **figures},
                spread=tuple(spread),
            )  # fmt: skip
    finally:
        registry.database.close()


def _claim(store: Store, limit: int, wanted: int) -> float:
    """How long it took, in milliseconds."""
    began = elapsed()
    found, _ = store.claim("bench", limit, lease=_LEASE, names=[TASK])
    if found != wanted:
        raise RanWrong(f"a claim found {found} rows where {wanted} are due; this run proves nothing")
    return (elapsed() - began) * 1e3


def _server_side(run: Run) -> dict[str, Any]:
    if not run.server.counts_statements:
        return {}
    with run.server.connect("slotwise") as connection:
        found = connection.execute(_CLAIMS, ()).fetchone()
    return {"server_ms": found[0], "server_max_ms": found[1]} if found else {}


NOTHING_DUE = Cell(name="nothing-due", title="a claim when nothing is due among 1,000,000 rows", measure=_nothing_due)
BLOCKED = Cell(name="blocked", title="a claim behind 1,000,000 due rows that are not its own", measure=_blocked)
