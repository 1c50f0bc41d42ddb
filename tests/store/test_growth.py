"""How the tables grow under many slots: which updates stay on their page, what an execution
writes, what stays dead.

Run it alone, and read its figures: SLOTWISE_GROWTH=1000000 python -m pytest -m ""
tests/store/test_growth.py -s
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.databases import provision
from tests.kit.records import Succeeded
from tests.kit.store import Pruner, Store
from tests.store.bench import LEASE, MINUTE, Bench, a_job, claim_due

from slotwise import Item, JobContext, JobRegistry, Settings, task
from slotwise.embedded import EmbeddedPostgres
from slotwise.spi import Claim, Database
from slotwise.store.slots.tuning import PRUNED as BATCH_OF_PRUNER
from slotwise.store.slots.tuning import STALLED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SLOTS = int(os.environ.get("SLOTWISE_GROWTH", "200000"))
JOBS, BATCH = 10_000, 500
#: Statements that are run first, to compare other settings.
STORAGE = os.environ.get("SLOTWISE_GROWTH_STORAGE", "")
#: Of ten rounds, one is late, so that its claims are decided one by one; in another one each claim
#: is renewed once.
LATE, RENEWED = 3, 6
SETTINGS = {
    "autovacuum_naptime": "10s",
    "shared_buffers": "512MB",
    "max_wal_size": "2GB",
    "wal_keep_size": "1GB",
}

#: A connection reports its counters at its end, at the latest.
LET_GO = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND datname = current_database()"""
COUNTS = """
SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_dead_tup, pg_table_size(relid), pg_indexes_size(relid)
FROM pg_stat_user_tables WHERE relname IN ('scheduled_tasks', 'scheduled_slots')"""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the server has counted of a table."""

    inserted: int
    updated: int
    hot: int
    dead: int
    size: int
    indexes: int


class Growth:
    """A store on a server of its own, and what its tables have come to."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server, url = server, server.url("postgres")
        provision(url)
        self.driver = psycopg.connect(url, autocommit=True)
        if STORAGE:
            self.driver.execute(STORAGE.encode())
        self.bench = Bench(
            Database(Settings(database_url=url)),
            [a_job(f"job-{number:05}") for number in range(JOBS)],
        )
        self.bench.plan()
        self.names = sorted(self.bench.definitions)
        #: Updates of the queue, and those of them that were HOT, by what made them.
        self.queue: dict[str, Counter[str]] = {}
        self.most_dead: Counter[str] = Counter()
        self.start = self.position()

    def close(self) -> None:
        self.driver.close()
        self.bench.database.close()

    def counts(self) -> dict[str, Counts]:
        """Wait until the server has the counters of all connections, and read them."""
        self.bench.database.main.dispose()
        self.bench.database.heart.dispose()
        self.driver.execute(LET_GO)
        self.driver.execute("SELECT pg_stat_clear_snapshot()")
        found = {
            name.removeprefix("scheduled_"): Counts(*counts)
            for name, *counts in self.driver.execute(COUNTS)
        }
        for name, counts in found.items():
            self.most_dead[name] = max(self.most_dead[name], counts.dead)
        return found

    def run(self, slots: int) -> None:
        """Run rounds of one slot of each job, with two batches held at a time, as a worker
        does.
        """
        for number in range(slots // JOBS):
            if number == slots // JOBS - max(slots // JOBS // 10, 1):
                self.start = self.position()
            kind = number % 10
            self.bench.tick(5 if kind == LATE else 1)
            before = self.counts() if kind == LATE else {}
            held: list[list[Claim]] = []
            left = JOBS
            while left:
                held.append(self.claim())
                left -= len(held[-1])
                if kind == RENEWED:
                    renewed = self.counts()["tasks"]
                    assert not self.bench.store.held.beat("host:1:a", held[-1])
                    after = self.counts()["tasks"]
                    self.queue.setdefault("heartbeat", Counter()).update(
                        updated=after.updated - renewed.updated,
                        hot=after.hot - renewed.hot,
                    )
                if len(held) == 2:
                    self.settle(held.pop(0))
            self.settle(held.pop())
            if kind == LATE:
                # Updates of claims and settlements change indexed columns, so that none of them is
                # HOT.
                hot = self.counts()["tasks"].hot - before["tasks"].hot
                self.queue.setdefault("late start", Counter()).update(
                    updated=JOBS, hot=hot
                )
        assert self.driver.execute(
            "SELECT count(*) FROM scheduled_slots WHERE finished IS NULL"
        ).fetchone() == (0,)

    def claim(self) -> list[Claim]:
        _, claims = claim_due(
            self.bench.store, "host:1:a", BATCH, lease=LEASE, names=self.names
        )
        assert claims
        return claims

    def settle(self, claims: list[Claim]) -> None:
        settled = self.bench.store.settlements.settle(
            [(claim, Succeeded()) for claim in claims]
        )
        assert all(one.transition for one in settled)

    def position(self) -> str:
        found = self.driver.execute(
            "SELECT pg_current_wal_flush_lsn()::text"
        ).fetchone()
        assert found is not None
        return str(found[0])

    def written(self) -> Counter[str]:
        """Records and bytes of the write-ahead log since ``start``: the last tenth of the run."""
        self.driver.execute("SELECT pg_switch_wal()")
        command = [
            self.server.bindir / "pg_waldump",
            "--stats=record",
            "--path",
            self.server.data / "pg_wal",
        ]
        ended = subprocess.run(
            [*command, "--start", self.start, "--end", self.position()],
            capture_output=True,
            text=True,
            check=True,
        )
        found: Counter[str] = Counter()
        for kind, count, size in re.findall(_RECORD, ended.stdout, re.MULTILINE):
            found[kind] += int(count)
            found["bytes"] += int(size)
        return found


#: Of a line of pg_waldump's: kind, number of records, and their bytes with images of whole pages.
_RECORD = r"^(\S+/\S+)\s+(\d+) \(.*?\)\s+\d+ \(.*?\)\s+\d+ \(.*?\)\s+(\d+) \("


@pytest.fixture
def server(open_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(
        open_path / "pg", durable=False, settings=SETTINGS, temporary=True
    ) as server:
        yield server


def test_most_updates_stay_on_their_page(server: EmbeddedPostgres) -> None:
    """Most settlements of the ledger are HOT, and so are most heartbeats and late starts in the
    queue.

    Dead rows are bounded: neither the queue nor the room for a slot grows in the second half.
    """
    growth = Growth(server)
    try:
        growth.run(SLOTS // 2)
        half = growth.counts()
        growth.run(SLOTS // 2)
        counts, written = growth.counts(), growth.written()
    finally:
        growth.close()
    queue = sum(growth.queue.values(), Counter())
    print(f"\n{_report(growth, counts, written)}")
    assert counts["slots"].hot >= 0.6 * counts["slots"].updated
    assert queue["hot"] >= 0.6 * queue["updated"]
    assert counts["tasks"].size <= 1.5 * half["tasks"].size
    assert counts["slots"].size <= 1.1 * 2 * half["slots"].size


def _report(growth: Growth, counts: dict[str, Counts], written: Counter[str]) -> str:
    shares = {
        f"HOT, {kind}": found["hot"] / found["updated"]
        for kind, found in growth.queue.items()
    }
    shares["HOT, ledger"] = counts["slots"].hot / counts["slots"].updated
    entries = sum(
        count for kind, count in written.items() if kind.startswith("Btree/INSERT")
    )
    slots = JOBS * max(SLOTS // 2 // JOBS // 10, 1)
    lines = [f"{name}: {share:.1%}" for name, share in shares.items()]
    for name, found in counts.items():
        sizes = f"{found.size / 1e6:.1f} MB, indexes {found.indexes / 1e6:.1f} MB"
        lines.append(
            f"{name}: {sizes}; dead rows {found.dead}, at most {growth.most_dead[name]}"
        )
    return "\n".join(
        [
            *lines,
            f"per slot: {entries / slots:.2f} index entries, "
            f"{written['bytes'] / slots:.0f} bytes of WAL",
        ]
    )


# -- pruning --------------------------------------------------------------------------------------

#: Old slots of 1,000 jobs, and as many of one-time tasks under ids of their own.
HISTORY = """
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, attempts, token, worker, started, finished)
SELECT 'job-' || lpad(job::text, 5, '0'), 'recurring', at, 'succeeded', 1, 1000, 'host:1:a', at, at
FROM generate_series(0, 999) AS job, generate_series(1, {count} / 2000) AS n,
     LATERAL (SELECT timestamptz '2020-01-01Z' + n * interval '1 minute') AS t(at);
INSERT INTO scheduled_slots
    (task_name, task_instance, slot, outcome, origin, attempts, token, worker, started, finished)
SELECT 'mail', lpad(n::text, 9, '0'), at, 'succeeded', 'task', 1, 1000, 'host:1:a', at, at
FROM generate_series(1, {count} / 2) AS n,
     LATERAL (SELECT timestamptz '2020-01-01Z' + n * interval '1 second') AS t(at);
VACUUM ANALYZE scheduled_slots"""


def test_pruning_keeps_its_pace(server: EmbeddedPostgres) -> None:
    """Each transaction deletes a batch, the last ones as fast as the first; a new process goes on
    in the middle.
    """
    provision(url := server.url("postgres"))
    bench = Bench(Database(Settings(database_url=url)))
    with psycopg.connect(url, autocommit=True) as driver:
        for statement in HISTORY.format(count=SLOTS).split(";"):
            driver.execute(statement.encode())
    pages: list[tuple[float, int]] = []
    for most in (SLOTS // 2, SLOTS):
        bench.clock.tick(STALLED + MINUTE)
        pruner = Pruner(
            bench.store, keep=timedelta(days=1), failure_retention=timedelta(days=1)
        )
        assert pruner.take_turn(timedelta(hours=1))
        begin = time.monotonic()
        for page in pruner.pages():
            pages.append((time.monotonic() - begin, page.slots))
            begin = time.monotonic()
            if sum(slots for _, slots in pages) >= most:
                break
    bench.database.close()
    pages = [(took, slots) for took, slots in pages if slots]
    tenth = len(pages) // 10
    ends = pages[:tenth], pages[-tenth:]
    first, last = (
        sum(slots for _, slots in part) / sum(took for took, _ in part)
        for part in ends
    )
    longest = max(took for took, _ in pages)
    print(
        f"\n{first:.0f} rows/s in the first tenth, {last:.0f} in the last, longest "
        f"transaction {longest:.3f} s"
    )
    assert sum(slots for _, slots in pages) == SLOTS - 1000
    assert max(slots for _, slots in pages) <= BATCH_OF_PRUNER
    assert last >= 0.5 * first


#: Due tasks of a backlog whose runs are recorded, and pairs of backlogs without and with pruning.
#: The first of a pair is faster, so the order alternates, and the number of pairs is even.
BACKLOG, PAIRS = 30_000, 6


def test_a_backlog_is_worked_off_while_as_many_rows_are_pruned(
    server: EmbeddedPostgres,
) -> None:
    """With a row of the ledger for each task, at nine tenths of the rate without pruning, by the
    mean of pairs.
    """
    provision(url := server.url("postgres"))
    with psycopg.connect(url, autocommit=True) as driver:
        pairs = []
        for turn in range(PAIRS):
            order = (False, True) if turn % 2 else (True, False)
            rates = {
                is_pruned: _backlog(driver, url, is_pruned) for is_pruned in order
            }
            pairs.append(rates[True] / rates[False])
            print(
                f"\n{rates[False]:.0f} tasks/s, {rates[True]:.0f} with pruning: {pairs[-1]:.2f}",
                end="",
            )
    ratio = statistics.geometric_mean(pairs)
    print(f"\nmean {ratio:.2f}")
    assert ratio >= 0.9


def _backlog(driver: psycopg.Connection[Any], url: str, is_pruned: bool) -> float:
    """Return the tasks per second of one worker, in whose process a thread prunes as many rows as
    are added.
    """
    driver.execute("TRUNCATE scheduled_tasks, scheduled_slots")
    for statement in HISTORY.format(count=3 * BACKLOG).split(";")[1:]:  # of tasks only
        driver.execute(statement.encode())
    done, ended = itertools.count(1), threading.Event()
    started = [0]

    def note(_ctx: JobContext) -> None:
        if (number := next(done)) == BACKLOG:
            ended.set()
        started[0] = number

    registry = JobRegistry(
        tasks=[task(name="send", record="all")(note)],
        database_url=url,
        process_hook=False,
        threads=100,
        retention="0s",
        failure_retention="0s",
    )
    registry.client.schedule_many(
        "send", [Item(id=str(number), data=None) for number in range(BACKLOG)]
    )
    driver.execute("VACUUM ANALYZE scheduled_tasks")
    pruned = 0

    def prune() -> None:
        nonlocal pruned
        day = timedelta(days=1)
        for page in Pruner(
            Store(registry.database, {}), keep=day, failure_retention=day
        ).pages():
            pruned += page.slots
            while started[0] < pruned and not ended.wait(0.001):
                pass
            if ended.is_set():
                return

    pruner = threading.Thread(target=prune)
    begin = time.monotonic()
    registry.start()
    if is_pruned:
        pruner.start()
    assert ended.wait(120)
    took = time.monotonic() - begin
    if is_pruned:
        pruner.join()
        assert pruned >= 0.9 * BACKLOG
    assert registry.stop() == 0
    registry.database.close()
    return BACKLOG / took
