"""How fast rows are enqueued and run, and for how much CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any, TypeAlias

import psycopg
import sqlalchemy as sa

from slotwise import Item
from tools.bench.app import TASK
from tools.bench.crew import Crew, Sample
from tools.bench.inside import database_url
from tools.bench.journal import RanWrong, expect_once
from tools.bench.raw import Raw
from tools.bench.readings import Reading
from tools.bench.run import Cell, Contender, Run
from tools.bench.slotwise_contender import (
    Slotwise,
    SlotwiseFlood,
    SlotwiseJobs,
    SlotwiseSeconds,
    SlotwiseTraced,
    fill_tasks,
    registry_for,
)

# -- backlogs of tasks, and due slots -------------------------------------------------------------


TASKS = 50_000
JOBS = 10_000
#: With payloads of 100 KB: 500 MB.
LARGE = 5_000
#: Tasks with start marks, and tasks that are enqueued one by one: a commit for each.
MARKED = 10_000
NAMED = 2_000

#: slotwise with its defaults, and in the setting that suits handlers that do nothing.
DEFAULT = Slotwise("slotwise-default")
BEST = Slotwise("slotwise", threads="100")
#: With ``worker --http``, and with ``instrument(registry)`` where there is no SDK.
PROMETHEUS = "slotwise, Prometheus"
OPENTELEMETRY = "slotwise, OpenTelemetry"


def drain(
    run: Run,
    cell: str,
    contender: Contender,
    number: int,
    count: int,
    processes: int = 1,
) -> Reading:
    """Fill, start the workers, and measure from the moment all are warm until the last row is
    settled.
    """
    count = max(round(count * contender.share), 20)
    family = contender.family
    url = run.prepared(contender)
    contender.fill(url, count)
    run.server.settle(family)
    run.server.forget_statements(family)
    with (
        run.server.connect(family) as connection,
        Crew(
            run.server, contender.command(url), processes, capacity=2 * count + 1000
        ) as crew,
    ):
        crew.warm(count)
        before = crew.sample()
        crew.wait(lambda: crew.done() >= count, "all had started")
        crew.wait(lambda: contender.is_done(connection), "all were settled")
        after = crew.sample()
        statements = run.server.statements(family)
        crew.stop()
        checked = expect_once(
            crew.journals, range(1, count + 1), f"{cell}, {contender.name}"
        )
    is_long_enough = after.done - before.done >= count // 4
    return Reading(
        cell=cell,
        contender=contender.name,
        round=number,
        figures=after.since(before) if is_long_enough else {},
        checked=checked,
        note=""
        if is_long_enough
        else "too short: most was done before all workers were warm",
        statements=tuple(statements),
    )


def _backlog(run: Run) -> Iterator[Reading]:
    for number, contender in run.turns(
        [Raw(100), Raw(500), BEST, DEFAULT, *run.peers]
    ):
        yield drain(run, "backlog", contender, number, run.scaled(TASKS, 200))


def _payloads(run: Run) -> Iterator[Reading]:
    large = Slotwise("slotwise, 100 KB", size=100_000, threads="100")
    for number, contender in run.turns([large, BEST]):
        yield drain(run, "payloads", contender, number, run.scaled(LARGE, 20))


def _metrics(run: Run) -> Iterator[Reading]:
    contenders = [BEST, Slotwise(PROMETHEUS, threads="100", http="127.0.0.1:0")]
    if find_spec("opentelemetry") is not None:
        contenders.append(SlotwiseTraced(OPENTELEMETRY, threads="100"))
    for number, contender in run.turns(contenders):
        yield drain(run, "metrics", contender, number, run.scaled(TASKS, 200))


def _marks(run: Run) -> Iterator[Reading]:
    for number, contender in run.turns(
        [BEST, Slotwise("slotwise, give_up", on_lost="give_up", threads="100")]
    ):
        yield drain(run, "marks", contender, number, run.scaled(MARKED, 200))


def _two_workers(run: Run) -> Iterator[Reading]:
    """Two workers, and one in the same rounds: the ratio is what counts."""
    pairs: Sequence[tuple[Contender, int, str]] = [
        *(
            (one, processes, f"{one.name} ×{processes}")
            for one in (Raw(500), BEST)
            for processes in (1, 2)
        ),
        *((peer, 2, f"{peer.name} ×2") for peer in run.peers if not peer.is_single),
    ]
    for number in range(1, run.rounds + 1):
        for contender, processes, name in pairs:
            found = drain(
                run,
                "two-workers",
                contender,
                number,
                run.scaled(TASKS, 200),
                processes,
            )
            yield _renamed(found, name)


def _renamed(reading: Reading, name: str) -> Reading:
    return replace(reading, contender=name)


def _slots(run: Run) -> Iterator[Reading]:
    contenders = [
        Raw(100, "slots"),
        Raw(500, "slots"),
        SlotwiseJobs(threads="1000"),
        SlotwiseJobs("slotwise-100", threads="100"),
        SlotwiseJobs("slotwise-10", threads="10"),
    ]
    for number, contender in run.turns(contenders):
        yield drain(run, "slots", contender, number, run.scaled(JOBS, 100))


BACKLOG = Cell(
    name="backlog",
    title="backlog of one-time tasks, one worker process",
    measure=_backlog,
)
METRICS = Cell(
    name="metrics",
    title="the same backlog, with and without metrics and traces",
    measure=_metrics,
)
MARKS = Cell(
    name="marks",
    title="10,000 tasks with a start mark each, and without",
    measure=_marks,
)
TWO_WORKERS = Cell(
    name="two-workers",
    title="the same backlog, two worker processes",
    measure=_two_workers,
)
PAYLOADS = Cell(
    name="payloads",
    title="5,000 tasks with payloads of 100 KB, and of two bytes",
    measure=_payloads,
)
SLOTS = Cell(
    name="slots",
    title="due slots of 10,000 jobs, with their ledger rows, one process",
    measure=_slots,
)


# -- slots that are late --------------------------------------------------------------------------


#: How late jobs that are due each second begin, and how long they are watched from the first start
#: on, in seconds.
BEGIN_LATE = 30
WATCHED = 60.0
_OUTCOMES = "SELECT count(*) FROM scheduled_slots WHERE outcome = 'succeeded' /* bench:watch */"
_GAPS = "SELECT count(*) FROM scheduled_gaps /* bench:watch */"
#: How long the oldest due row has waited, in seconds.
_OLDEST = """
SELECT coalesce(extract(epoch FROM statement_timestamp() - min(execution_time)), 0) FROM scheduled_tasks
WHERE NOT picked AND state IS NULL AND kind <> 'task' AND execution_time <= statement_timestamp() /* bench:watch */"""
_WATCH = 0.25


def _seconds(run: Run) -> Iterator[Reading]:
    """Measure how jobs that are due each second, and begin late, come back on time, and how many
    slots run.
    """
    for number in range(1, run.rounds + 1):
        contender = SlotwiseSeconds(missed=BEGIN_LATE, threads="100")
        count = run.scaled(JOBS, 20)
        url = run.prepared(contender)
        length = run.seconds(WATCHED, 3)
        contender.fill(url, count)
        run.server.settle("slotwise")
        run.server.forget_statements("slotwise")
        with (
            run.server.connect("slotwise") as connection,
            Crew(
                run.server, contender.command(url), 1, capacity=count * 240 + 1000
            ) as crew,
        ):
            crew.wait(lambda: crew.done() > 0, "the first had started")
            before = crew.sample()
            back = float("inf")
            while (passed := perf_counter() - before.at) < length:
                crew.rest(min(_WATCH, length - passed))
                if (
                    connection.execute(_OLDEST).fetchone()[0]
                    >= contender.interval.total_seconds()
                ):
                    back = float("inf")
                elif back == float("inf"):
                    back = perf_counter() - before.at
            after = crew.sample()
            ran, gaps = (
                connection.execute(one).fetchone()[0] for one in (_OUTCOMES, _GAPS)
            )
            statements = run.server.statements("slotwise")
        figures = {
            **after.since(before),
            "back_s": back,
            "share": ran / (count * (after.at - before.at)),
            "gaps_per_job": gaps / count,
        }
        yield Reading(
            cell="seconds",
            contender=contender.name,
            round=number,
            figures=figures,
            statements=tuple(statements),
        )


SECONDS = Cell(
    name="seconds",
    title="10,000 jobs, each due every second, 30 s late, one process",
    measure=_seconds,
)

RETURNING = 100_000


def _return(run: Run) -> Iterator[Reading]:
    """Compare jobs that missed several slots in an outage with jobs on time: each runs once."""
    missed = {"slotwise, on time": 0, "slotwise ×1": 3, "slotwise ×4": 3}
    for number in range(1, run.rounds + 1):
        for name, some in missed.items():
            contender = SlotwiseJobs(name, missed=some, threads="100")
            processes = 4 if name.endswith("4") else 1
            yield drain(
                run, "return", contender, number, run.scaled(RETURNING, 100), processes
            )


RETURN = Cell(
    name="return",
    title="100,000 jobs that are due at once after an outage",
    measure=_return,
)


# -- handlers that take a second ------------------------------------------------------------------


LONG_TASKS = 200
LONG_MILLISECONDS = 1_000


def _long(run: Run) -> Iterator[Reading]:
    """Measure from the first start to the last settlement: one handler's time, if none waits for
    another.
    """
    contender = SlotwiseFlood(
        "slotwise", takes=LONG_MILLISECONDS, threads=str(LONG_TASKS)
    )
    count = run.scaled(LONG_TASKS, 20)
    for number in range(1, run.rounds + 1):
        url = run.prepared(contender)
        contender.fill(url, count)
        run.server.settle("slotwise")
        with (
            run.server.connect("slotwise") as connection,
            Crew(
                run.server, contender.command(url), 1, capacity=2 * count + 100
            ) as crew,
        ):
            crew.wait(lambda: crew.done() > 0, "the first had started")
            before = crew.sample()
            crew.wait(lambda: contender.is_done(connection), "all were settled")
            took = crew.sample().at - before.at
            crew.stop()
            checked = expect_once(crew.journals, range(1, count + 1), "long")
            starts = sorted(crew.journals[0].starts().values())
        figures = {"took_s": took, "starts_ms": (starts[-1] - starts[0]) / 1e6}
        yield Reading(
            cell="long",
            contender=contender.name,
            round=number,
            figures=figures,
            checked=checked,
        )


LONG = Cell(
    name="long",
    title="200 tasks of one second each, one process with 200 threads",
    measure=_long,
)


# -- throughput under a held snapshot -------------------------------------------------------------


#: The length of the queue: each task that has started is replaced by a new one.
SNAPSHOT_WAITING = 20_000
SNAPSHOT_BEFORE = 15.0
SNAPSHOT_HELD = 120.0
#: The rate under the snapshot is that of its last seconds.
SNAPSHOT_LAST = 20.0


class Feeder:
    """A thread that keeps the queue at its length."""

    def __init__(self, url: str, crew: Crew, waiting: int) -> None:
        self._url = url
        self._crew = crew
        self._waiting = waiting
        self._stop = threading.Event()
        self.filled = 0
        self._thread = threading.Thread(
            target=self._feed, name="bench-feeder", daemon=True
        )

    @contextmanager
    def feeding(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _feed(self) -> None:
        while not self._stop.is_set():
            missing = self._crew.done() + self._waiting - self.filled
            if missing >= self._waiting // 40:
                fill_tasks(
                    self._url, missing, first=self.filled + 1, after=timedelta(0)
                )
                self.filled += missing
            self._stop.wait(0.02)


def _snapshot(run: Run) -> Iterator[Reading]:
    """Throughput before, and while another session holds a snapshot, so that no dead row can be
    removed.
    """
    waiting = run.scaled(SNAPSHOT_WAITING, 200)
    url = run.prepared(BEST)
    fill_tasks(url, waiting)
    run.server.settle("slotwise")
    with Crew(run.server, BEST.command(url), 1, capacity=12_000_000) as crew:
        feeder = Feeder(url, crew, waiting)
        feeder.filled = waiting
        with feeder.feeding():
            crew.warm(waiting)
            before = _rate(crew, run.seconds(SNAPSHOT_BEFORE))
            with run.server.connect("slotwise") as holder, holder.transaction():
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT count(*) FROM scheduled_workers")
                crew.rest(run.seconds(SNAPSHOT_HELD - SNAPSHOT_LAST))
                held = _rate(crew, run.seconds(SNAPSHOT_LAST))
        crew.wait(lambda: crew.done() >= feeder.filled, "all had started")
        crew.stop()
        checked = expect_once(crew.journals, range(1, feeder.filled + 1), "snapshot")
    for name, figures in (("before", before), ("held", held)):
        yield Reading(
            cell="snapshot", contender=name, figures=figures, checked=checked
        )


def _rate(crew: Crew, seconds: float) -> dict[str, float]:
    before: Sample = crew.sample()
    crew.rest(seconds)
    return crew.sample().since(before)


SNAPSHOT = Cell(
    name="snapshot",
    title="throughput while a snapshot is held for two minutes",
    measure=_snapshot,
)


# -- enqueueing -----------------------------------------------------------------------------------


ENQUEUE_ROWS = 100_000
ENQUEUE_CHUNK = 1_000
COPY_CHUNK = 10_000

_COLUMNS = (
    "task_name, task_instance, task_data, execution_time, picked, version, priority"
)
_UNNEST = f"""
INSERT INTO raw_tasks ({_COLUMNS})
SELECT 'bench', i, '{{}}', statement_timestamp(), false, 1, 50 FROM unnest(%s::text[]) AS i ON CONFLICT DO NOTHING"""

#: Enqueues tasks 1 to its second argument, into the database of its first.
Enqueue: TypeAlias = Callable[[str, int], None]


def _raw_unnest(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for first in range(1, count + 1, ENQUEUE_CHUNK):
            names = [
                str(number)
                for number in range(first, min(first + ENQUEUE_CHUNK, count + 1))
            ]
            connection.execute(_UNNEST, (names,))


def _raw_copy(url: str, count: int, *, chunk: int = ENQUEUE_CHUNK) -> None:
    now = "now"
    with (
        psycopg.connect(url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        for first in range(1, count + 1, chunk):
            with cursor.copy(f"COPY raw_tasks ({_COLUMNS}) FROM STDIN") as copy:
                for number in range(first, min(first + chunk, count + 1)):
                    copy.write_row(("bench", str(number), b"{}", now, False, 1, 50))


def _one_by_one(url: str, count: int, *, is_named: bool = True) -> None:
    registry = registry_for(url)
    try:
        for number in range(1, count + 1):
            registry.client.schedule(TASK, {}, id=str(number) if is_named else None)
    finally:
        registry.database.close()


def _in_one_transaction(url: str, count: int) -> None:
    """``client.schedule`` in the caller's transaction, committed every 1,000 rows."""
    registry = registry_for(url)
    engine = sa.create_engine(database_url(url))
    try:
        for first in range(1, count + 1, ENQUEUE_CHUNK):
            with engine.begin() as connection:
                for number in range(first, min(first + ENQUEUE_CHUNK, count + 1)):
                    registry.client.schedule(
                        TASK, {}, id=str(number), connection=connection
                    )
    finally:
        registry.database.close()
        engine.dispose()


def _many(url: str, count: int, *, copy: bool = False) -> None:
    """``client.schedule_many``, with an id for each task; in chunks of a thousand, or ten thousand
    by COPY.
    """
    registry = registry_for(url)
    try:
        items: Iterator[Item[Any]] = (
            Item({}, id=str(number)) for number in range(1, count + 1)
        )
        registry.client.schedule_many(TASK, items, copy=copy)
    finally:
        registry.database.close()


#: Contender, family, function, and the share of the rows: single statements are slow. IDS says
#: what an id costs there.
WAYS: tuple[tuple[str, str, Enqueue, float], ...] = (
    ("raw-unnest-1000", "raw", _raw_unnest, 1.0),
    ("raw-copy-1000", "raw", _raw_copy, 1.0),
    ("raw-copy-10000", "raw", partial(_raw_copy, chunk=COPY_CHUNK), 1.0),
    ("slotwise-many-unnest", "slotwise", _many, 1.0),
    ("slotwise-many-copy", "slotwise", partial(_many, copy=True), 1.0),
    ("slotwise-schedule", "slotwise", partial(_one_by_one, is_named=False), 0.02),
    ("slotwise-schedule-1000-per-commit", "slotwise", _in_one_transaction, 0.04),
)


def _enqueue(run: Run) -> Iterator[Reading]:
    owners: dict[str, object] = {"raw": Raw(500), "slotwise": Slotwise()}
    for number in range(1, run.rounds + 1):
        for name, family, way, share in WAYS:
            yield _timed(
                run,
                owners[family],
                name,
                way,
                run.scaled(round(ENQUEUE_ROWS * share), 20),
                number,
            )


def _ids(run: Run) -> Iterator[Reading]:
    """The cost of an id: the transaction that the database is asked about if the reply to its
    commit is lost.
    """
    for number in range(1, run.rounds + 1):
        for is_named in (True, False) if number % 2 else (False, True):
            name = "slotwise, an id" if is_named else "slotwise, no id"
            way = partial(_one_by_one, is_named=is_named)
            yield replace(
                _timed(run, Slotwise(), name, way, run.scaled(NAMED, 20), number),
                cell="ids",
            )


def _timed(
    run: Run, owner: Any, name: str, way: Enqueue, count: int, number: int
) -> Reading:
    url = run.prepared(owner)
    table = f"{'scheduled' if owner.family == 'slotwise' else 'raw'}_tasks"
    run.server.settle(owner.family)
    server = run.server.cpu()
    client = time.process_time()
    began = perf_counter()
    way(url, count)
    figures = {
        "rate": count / (perf_counter() - began),
        "client_us": (time.process_time() - client) * 1e6 / count,
    }
    if server is not None and (spent := run.server.cpu()) is not None:
        figures["server_us"] = (spent - server) * 1e6 / count
    with run.server.connect(owner.family) as connection:
        found = connection.execute(
            f"SELECT count(DISTINCT task_instance) FROM {table}"
        ).fetchone()[0]
    if found != count:
        raise RanWrong(
            f"enqueue, {name}: {found} rows of {count} are there; this run proves nothing"
        )
    return Reading(
        cell="enqueue", contender=name, round=number, figures=figures, checked=count
    )


ENQUEUE = Cell(
    name="enqueue", title="enqueueing many tasks, one client", measure=_enqueue
)
IDS = Cell(
    name="ids", title="enqueueing tasks one by one, with ids and without", measure=_ids
)
