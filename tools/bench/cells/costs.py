"""What single operations cost among many rows, and a worker at rest and at work."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Any

from slotwise import JobRegistry
from tools.bench.app import TASK, make_jobs
from tools.bench.cells.throughput import BEST
from tools.bench.crew import Crew
from tools.bench.inside import Store
from tools.bench.journal import RanWrong
from tools.bench.machine import memory_of
from tools.bench.readings import Reading
from tools.bench.run import Cell, Run
from tools.bench.slotwise_contender import Slotwise, fill_tasks, registry_for

# -- claims that find nothing ---------------------------------------------------------------------


ROWS = 1_000_000
LOOKS = 40
_CLAIM_LEASE = timedelta(minutes=1)

_CLAIMS = """
SELECT mean_exec_time, max_exec_time FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND query ILIKE '%%for update skip locked%%'
ORDER BY total_exec_time DESC LIMIT 1"""


def _nothing_due(run: Run) -> Iterator[Reading]:
    for priorities in (1, 5):
        url = run.prepared(Slotwise())
        fill_tasks(
            url, run.scaled(ROWS, 100), after=timedelta(hours=1), priorities=priorities
        )
        word = "priority" if priorities == 1 else "priorities"
        yield from _look(run, url, "nothing-due", f"{priorities} {word}")


def _blocked(run: Run) -> Iterator[Reading]:
    """The worker's own task has future rows, so that its name alone does not show that nothing is
    due.
    """
    count = run.scaled(ROWS, 100)
    url = run.prepared(Slotwise())
    fill_tasks(url, count, name="somebody-elses")
    fill_tasks(url, count // 10, after=timedelta(hours=1))
    yield from _look(run, url, "blocked", "unknown task")
    fill_tasks(
        url,
        (run.rounds + 1) * run.scaled(LOOKS, 5),
        first=count + 1,
        after=timedelta(seconds=-1),
    )
    yield from _look(
        run, url, "blocked", "unknown task, a due row behind", limit=1, wanted=1
    )
    yield from _paused(run, count)


def _paused(run: Run, count: int) -> Iterator[Reading]:
    """Paused rows of the worker's own task that are due, and not parked."""
    url = run.prepared(Slotwise())
    fill_tasks(url, count)
    with run.server.connect("slotwise") as connection:
        connection.execute("UPDATE scheduled_tasks SET state = 'paused'")
    fill_tasks(url, count // 10, first=count + 1, after=timedelta(hours=1))
    yield from _look(run, url, "blocked", "paused task")


def _look(
    run: Run, url: str, cell: str, contender: str, *, limit: int = 100, wanted: int = 0
) -> Iterator[Reading]:
    """Claim by slotwise's store; ``server_ms`` is the claim statement, ``trip_ms`` the whole
    transaction.
    """
    run.server.settle("slotwise")
    registry = registry_for(url)
    store = Store(registry.database, registry.definitions)
    try:
        _claim(store, limit, wanted)
        for number in range(1, run.rounds + 1):
            run.server.forget_statements("slotwise")
            spread = [
                _claim(store, limit, wanted) for _ in range(run.scaled(LOOKS, 5))
            ]
            figures = {
                "trip_ms": statistics.median(spread),
                "trip_max_ms": max(spread),
            }
            yield Reading(
                cell=cell,
                contender=contender,
                round=number,
                figures={**_server_side(run), **figures},
                spread=tuple(spread),
            )
    finally:
        registry.database.close()


def _claim(store: Store, limit: int, wanted: int) -> float:
    """Return the duration of a claim, in milliseconds."""
    began = perf_counter()
    found = store.claims.claim_slots(
        "bench", limit, lease=_CLAIM_LEASE, names=[TASK]
    ).found
    found += len(
        store.claims.claim_tasks(
            "bench", limit - found, lease=_CLAIM_LEASE, names=[TASK]
        )
    )
    if found != wanted:
        raise RanWrong(
            f"a claim found {found} rows where {wanted} are due; this run proves nothing"
        )
    return (perf_counter() - began) * 1e3


def _server_side(run: Run, query: str = _CLAIMS) -> dict[str, Any]:
    if not run.server.counts_statements:
        return {}
    with run.server.connect("slotwise") as connection:
        found = connection.execute(query, ()).fetchone()
    return {"server_ms": found[0], "server_max_ms": found[1]} if found else {}


NOTHING_DUE = Cell(
    name="nothing-due",
    title="a claim when nothing is due among 1,000,000 rows",
    measure=_nothing_due,
)
BLOCKED = Cell(
    name="blocked",
    title="a claim behind 1,000,000 due rows that are not its own",
    measure=_blocked,
)


# -- looks for what is due next -------------------------------------------------------------------


OWN_SLOTS = 100_000
OWN_JOBS = 10_000
FOREIGN_SLOTS = 50_000
NEXT_DUE_CASES = (
    "100,000 slots of one job",
    "10,000 jobs",
    "10,000 jobs, 50,000 due slots of others in front",
)

#: Slots of ``jobs`` jobs, each due a millisecond after the one before.
_SLOTS = """
INSERT INTO scheduled_tasks
    (task_name, task_instance, kind, execution_time, picked, version, created_version, slot, next_slot, schedule)
SELECT %(prefix)s || lpad((i %% %(jobs)s + 1)::text, 6, '0'), i::text, 'plan', due, false, 1, 1, due,
       due + interval '1 day', 'EVERY|1d'
FROM generate_series(1, %(count)s) AS i,
     LATERAL (SELECT statement_timestamp() + %(after)s + i * interval '1 millisecond') AS t(due)"""
_LOOKS = """
SELECT total_exec_time / calls, max_exec_time FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query ILIKE '%%scheduled_tasks%%'
ORDER BY calls DESC LIMIT 1"""


def _next_due(run: Run) -> Iterator[Reading]:
    """Measure the store's look. Behind due slots that no worker runs, one look per second is a
    full one.
    """
    many = run.scaled(OWN_SLOTS, 100)
    jobs = run.scaled(OWN_JOBS, 10)
    foreign = run.scaled(FOREIGN_SLOTS, 50)
    cases = ((1, many, 0), (jobs, jobs, 0), (jobs, jobs, foreign))
    for contender, (own, rows, in_front) in zip(NEXT_DUE_CASES, cases, strict=True):
        url = run.prepared(Slotwise())
        with run.server.connect("slotwise") as connection:
            hour = timedelta(hours=1)
            fill = {"prefix": "bench-", "jobs": own, "count": rows}
            connection.execute(_SLOTS, {**fill, "after": hour})
            connection.execute(
                _SLOTS,
                {"prefix": "other-", "jobs": 1, "count": in_front, "after": -hour},
            )
        run.server.settle("slotwise")
        registry = JobRegistry(
            jobs=make_jobs(
                [(86_400.0, 0.0)] * own, lambda _number: None, lambda _ctx: 0
            ),
            database_url=url,
            process_hook=False,
        )
        due = Store(registry.database, registry.definitions).due
        names = sorted(registry.definitions)
        look = partial(due.next_due, names, ())
        try:
            for number in range(1, run.rounds + 1):
                yield Reading(
                    cell="next-due",
                    contender=contender,
                    round=number,
                    **_looked(run, look),
                )
        finally:
            registry.database.close()


def _looked(run: Run, look: Callable[[], timedelta | None]) -> dict[str, Any]:
    for _ in range(6):  # from the sixth on, the statement is prepared
        look()
    run.server.forget_statements("slotwise")
    spread = []
    for _ in range(run.scaled(LOOKS, 5)):
        began = perf_counter()
        if (due := look()) is None or due <= timedelta(0):
            raise RanWrong(
                f"a look found {due} where slots are due in an hour; this run proves nothing"
            )
        spread.append((perf_counter() - began) * 1e3)
    figures = {"trip_ms": statistics.median(spread), "trip_max_ms": max(spread)}
    return {
        "figures": {**_server_side(run, _LOOKS), **figures},
        "spread": tuple(spread),
    }


NEXT_DUE = Cell(
    name="next-due", title="a look for the next due slot", measure=_next_due
)


# -- heartbeats for many claims -------------------------------------------------------------------


HELD_ROWS = 50_000
BEATS = 5
HOLDER = "bench:1:held"

_HOLD = """
UPDATE scheduled_tasks SET picked = true, picked_by = %(holder)s, last_heartbeat = statement_timestamp(),
    lease = %(lease)s"""


def _held(run: Run) -> Iterator[Reading]:
    """Renew claims by slotwise's store; every heartbeat must renew them all."""
    count = run.scaled(HELD_ROWS, 100)
    url = run.prepared(Slotwise())
    fill_tasks(url, count)
    with run.server.connect("slotwise") as connection:
        connection.execute(_HOLD, {"holder": HOLDER, "lease": timedelta(minutes=10)})
    run.server.settle("slotwise")
    registry = registry_for(url)
    store = Store(registry.database, registry.definitions)
    try:
        claims = store.held.held_by(HOLDER)
        if len(claims) != count:
            raise RanWrong(
                f"held: {len(claims)} of {count} rows are held; this run proves nothing"
            )
        for number in range(1, run.rounds + 1):
            run.server.forget_statements("slotwise")
            spread = []
            for _ in range(BEATS):
                began = perf_counter()
                if lost := store.held.beat(HOLDER, claims):
                    raise RanWrong(
                        f"held: a heartbeat lost {len(lost)} claims; this run proves nothing"
                    )
                spread.append((perf_counter() - began) * 1e3)
            figures = {
                "trip_ms": statistics.median(spread),
                "trip_max_ms": max(spread),
            }
            if (spent := run.server.milliseconds("slotwise")) is not None:
                figures = {"server_ms": spent / BEATS, **figures}
            yield Reading(
                cell="held",
                contender="slotwise",
                round=number,
                figures=figures,
                spread=tuple(spread),
            )
    finally:
        registry.database.close()


HELD = Cell(name="held", title="a heartbeat for 50,000 held rows", measure=_held)


# -- pages of listings ----------------------------------------------------------------------------


PAGE_JOBS = 100
PAGE_LOOKS = 20
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
        connection.execute(
            _LEDGER, {"count": run.scaled(ROWS, PAGE_JOBS * 10), "jobs": PAGE_JOBS}
        )
    run.server.settle("slotwise")
    registry = registry_for(url)
    looks: dict[str, Callable[[], object]] = {
        "slots of a job, one page": lambda: list(
            itertools.islice(registry.inspect.slots("bench-00007"), PAGE)
        ),
        "health": lambda: registry.inspect.health(),
    }
    try:
        for name, look in looks.items():
            run.server.forget_statements("slotwise")
            spread = [_milliseconds(look) for _ in range(run.scaled(PAGE_LOOKS, 3))]
            figures = {
                "trip_ms": statistics.median(spread),
                "trip_max_ms": max(spread),
            }
            if (spent := run.server.milliseconds("slotwise")) is not None:
                figures = {"server_ms": spent / len(spread), **figures}
            yield Reading(
                cell="pages", contender=name, figures=figures, spread=tuple(spread)
            )
    finally:
        registry.database.close()


def _milliseconds(look: Callable[[], object]) -> float:
    began = perf_counter()
    look()
    return (perf_counter() - began) * 1e3


PAGES = Cell(
    name="pages",
    title="a page of a listing over 1,000,000 ledger rows",
    measure=_pages,
)


# -- an idle worker -------------------------------------------------------------------------------


IDLE_SECONDS = 60.0


def _idle(run: Run) -> Iterator[Reading]:
    contender = Slotwise()
    url = run.prepared(contender)
    fill_tasks(url, 1)
    with Crew(run.server, contender.command(url), 1, capacity=10) as crew:
        crew.wait(lambda: crew.done() == 1, "the worker was up")
        crew.rest(1.5)
        run.server.forget_statements("slotwise")
        before = crew.sample()
        crew.rest(run.seconds(IDLE_SECONDS))
        after = crew.sample()
        calls = run.server.calls("slotwise")
        memory = memory_of(crew.pids[0])
        statements = run.server.statements("slotwise")
    length = after.at - before.at
    figures: dict[str, float] = {}
    if calls is not None:
        figures |= {
            "queries_per_s": calls[0] / length,
            "with_control_per_s": calls[1] / length,
        }
    if after.client is not None and before.client is not None:
        figures["cpu_percent"] = (after.client - before.client) / length * 100
    if memory is not None:
        figures["rss_mib"] = memory
    yield Reading(
        cell="idle",
        contender="slotwise",
        figures=figures,
        statements=tuple(statements),
    )


IDLE = Cell(name="idle", title="a worker with nothing to do", measure=_idle)


# -- a worker's memory ----------------------------------------------------------------------------


MEMORY_SECONDS = 15.0


def _memory(run: Run) -> Iterator[Reading]:
    """Measure the peak memory of a worker at work; it does not drain the queue."""
    count = run.scaled(ROWS, 500)
    url = run.prepared(BEST)
    BEST.fill(url, count)
    run.server.settle("slotwise")
    with Crew(run.server, BEST.command(url), 1, capacity=2 * count + 1000) as crew:
        crew.wait(lambda: crew.done() > 0, "the worker was up")
        end = crew.sample().at + run.seconds(MEMORY_SECONDS)
        crew.wait(
            lambda: crew.done() >= count or crew.sample().at > end,
            "it had worked for a while",
        )
        peak = crew.peak()
        crew.stop()
        counted = Counter(crew.journals[0].ids())
    if len(counted) != counted.total():
        raise RanWrong("memory: a task started twice; this run proves nothing")
    figures = {"started": float(len(counted))} | (
        {} if peak is None else {"peak_mib": peak}
    )
    yield Reading(
        cell="memory", contender=BEST.name, figures=figures, checked=len(counted)
    )


MEMORY = Cell(
    name="memory",
    title="memory of a worker before 1,000,000 due rows",
    measure=_memory,
)
