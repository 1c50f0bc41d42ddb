"""Measure ``sync_schedules``, and what many recurring instances cost a worker.

``python -m tools.schedules_speed`` starts a PostgreSQL of its own and prints seconds: a scope of
``--instances`` that is new, unchanged, and 1 % changed; then, beside a scope of 1,000, a worker's
start, a claim of 100, and lists (``--created-only``: without the second and third).
``--profile`` prints where the time of the first is spent.
``--history`` prints what the ledger of 10,000 instances costs that run every five minutes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg

from slotwise import Client, Disabled, JobContext, RecurringItem, Settings, job
from slotwise.inspect import Inspection
from slotwise.model.records import Succeeded
from slotwise.operations import Schema
from slotwise.spi import Claim, Database, define
from slotwise.store.planning.planner import Planner
from slotwise.store.slots.store import Store
from slotwise.testing import ManualClock
from tools.bench.server import Server

FEW = 1_000
CLAIM = 100
#: In minutes.
DAY = 1440
REPEATS = 20
MINUTE = timedelta(minutes=1)
DUE = "SELECT count(*) FROM scheduled_tasks WHERE NOT picked AND execution_time <= %s"
#: Of 10,000 instances, every five minutes.
DAY_OF_SLOTS = 10_000 * 288
LEDGER = """
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, attempts, token,
    worker, started, finished)
SELECT 'feed', 'customer-' || to_char(n % 10000, 'FM0000000'),
    timestamptz '2026-01-01Z' + n / 10000 * interval '5 minutes', 'succeeded', 'schedule', 1,
    1767225600000000 + n, 'worker-1.example.org:4711:a1b2c3d4', now(), now()
FROM generate_series(0, 999999) AS n"""
START = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)


@job(name="feed", schedule=Disabled())
def feed(ctx: JobContext) -> None:
    """Never run: the rows are what counts."""


def customers(count: int, changed: int = 0) -> Iterator[RecurringItem[dict[str, int]]]:
    """Yield customers, each at a minute of the day; the schedules of ``changed`` are others."""
    for number in range(count):
        minute = (number + (number < changed)) % DAY
        text = f"CRON|{minute % 60} {minute // 60} * * *|Europe/Vienna"
        yield RecurringItem(f"customer-{number:07}", text, {"customer": number})


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    print(f"{what:<40} {time.perf_counter() - started:8.2f} s", flush=True)


class Tables:
    """The tables of one database, with so many instances."""

    def __init__(self, url: str, count: int) -> None:
        self.database = Database(Settings(database_url=url))
        self.clock = ManualClock(START)
        self.store = Store(self.database, {"feed": define(feed)}, clock=self.clock)
        self.client = Client(lambda: self.store)
        self.driver = psycopg.connect(url, autocommit=True)
        self.held: list[Claim] = []
        self.inspect = Inspection(lambda: self.store)

    def sync(self, count: int, changed: int = 0) -> str:
        found = self.client.sync_schedules(
            feed, customers(count, changed), scope="crm", force=True
        )
        return f"{len(found.added)} {len(found.changed)} {found.unchanged}"

    def start(self) -> None:
        """Plan as a worker's start does."""
        planner = Planner(self.store)
        planner.plan(self.store.definitions.values())
        planner.verify(list(self.store.definitions.values()))

    def claim(self) -> None:
        """Claim a hundred due slots."""
        found = self._take(CLAIM)
        assert found == CLAIM, found

    def prepare(self) -> None:
        """Settle, and let time pass until a hundred are due: whatever the count, a claim finds as
        many.
        """
        self._settle()
        while (due := self._due()) < CLAIM:
            self.clock.tick(MINUTE)
        self._take(due - CLAIM)
        self._settle()

    def _settle(self) -> None:
        ended = [(one, Succeeded()) for one in self.held]
        if ended:
            self.store.settlements.settle(ended)
        self.held = []

    def _take(self, count: int) -> int:
        if not count:
            return 0
        lease = timedelta(minutes=1)
        _, claims, _ = self.store.claims.claim_slots(
            "host:1:a", count, lease=lease, names=["feed"], lost=1
        )
        self.held += claims
        return len(claims)

    def _due(self) -> int:
        found = self.driver.execute(DUE, [self.clock.now()]).fetchone()
        assert found is not None
        count: int = found[0]
        return count

    def read(self) -> None:
        self.inspect.instances("feed", limit=100, after="customer-0000500")
        self.inspect.jobs(limit=100)
        self.inspect.job("feed", id="customer-0000700")


def measure_history(url: str) -> None:
    """Print the bytes of a ledger row with its indexes, and of a day."""
    Schema(Settings(database_url=url)).upgrade()
    with psycopg.connect(url, autocommit=True) as driver:
        driver.execute(LEDGER)
        driver.execute("VACUUM ANALYZE scheduled_slots")
        found = driver.execute(
            "SELECT pg_total_relation_size('scheduled_slots'), count(*) FROM scheduled_slots"
        ).fetchone()
    assert found is not None
    size, rows = found
    per_row = size / rows
    print(f"{rows:,} rows, {per_row:.0f} bytes each with their indexes")
    print(f"a day: {DAY_OF_SLOTS:,} rows, {DAY_OF_SLOTS * per_row / 2**20:,.0f} MiB")


def medians(
    act: Callable[[Tables], object],
    tables: Sequence[Tables],
    prepare: Callable[[Tables], object],
) -> list[float]:
    """Return the milliseconds of an act on each of these tables, which take turns."""
    taken: list[list[float]] = [[] for _ in tables]
    for _ in range(REPEATS):
        for times, one in zip(taken, tables, strict=True):
            prepare(one)
            started = time.perf_counter()
            act(one)
            times.append(time.perf_counter() - started)
    return [statistics.median(times) * 1000 for times in taken]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--created-only", action="store_true")
    parser.add_argument("--history", action="store_true")
    given = parser.parse_args()
    count = given.instances
    with Server() as server:
        if given.history:
            measure_history(server.url("history"))
            return
        urls = []
        for name in ("few", "many"):
            urls.append(server.url(name))
            Schema(Settings(database_url=urls[-1])).upgrade()
        few, many = map(Tables, urls, (FEW, count))
        few.sync(FEW)
        profile = cProfile.Profile()
        if given.profile:
            profile.enable()
        with timed(f"{count:,} new"):
            many.sync(count)
        profile.disable()
        if not given.created_only:
            with timed("unchanged"):
                many.sync(count)
            with timed("1 % changed"):
                many.sync(count, count // 100)
        if given.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(40)
            return
        for tables in (few, many):
            with tables.database.autocommit() as connection:
                connection.exec_driver_sql("VACUUM ANALYZE scheduled_tasks")
        for what, act, prepare in (
            ("start", Tables.start, id),
            ("claim", Tables.claim, Tables.prepare),
            ("lists", Tables.read, id),
        ):
            small, large = medians(act, (few, many), prepare)
            print(
                f"{what}: {small:.2f} ms with {FEW:,}, {large:.2f} ms with {count:,}"
            )


if __name__ == "__main__":
    main()
