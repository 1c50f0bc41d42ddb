"""The end of a pause, a resume and claims at the same time, on PostgreSQL."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from tests.kit.store import Author, Operation, end_pauses
from tests.store.bench import NOON, Bench, a_job

from slotwise import Every, Settings
from slotwise.spi import Database
from slotwise.testing import ManualClock

JOBS = [f"job-{number}" for number in range(20)]
MINUTE = timedelta(minutes=1)


def end(bench: Bench) -> int:
    with bench.store.transaction() as connection:
        author = Author("worker")
        return len(end_pauses(Operation.within(connection, bench.store, author)))


def test_each_pause_ends_once(pg_url: str) -> None:
    """Three workers end pauses, an operator resumes the same jobs, and two workers claim: each job
    is resumed once, its slots of the pause are skipped once, and the next one starts once.
    """
    database = Database(Settings(database_url=pg_url))
    clock = ManualClock(NOON)
    bench = Bench(
        database, [a_job(name, Every("1m")) for name in JOBS], clock
    ).planned()
    for name in JOBS:
        bench.client.operations.pause(name, until=NOON + 5 * MINUTE)
    clock.set(NOON + 5 * MINUTE)
    claimed = Counter[str]()

    def ending() -> None:
        for _ in range(100):
            end(bench)

    def resuming() -> None:
        for name in reversed(JOBS):
            bench.client.operations.resume(name)

    def claiming(holder: str) -> list[str]:
        found = []
        for _ in range(100):
            found += [one.row.task_name for one in bench.claim(holder=holder)]
        return found

    with ThreadPoolExecutor(6) as pool:
        work = [pool.submit(ending) for _ in range(3)]
        work.append(pool.submit(resuming))
        claims = [pool.submit(claiming, f"host:{number}:a") for number in range(2)]
        for one in work:
            one.result()
        for one in claims:
            claimed.update(one.result())
    while end(bench):
        pass
    claimed.update(one.row.task_name for one in bench.claim())
    audit = Counter(
        one.job for one in bench.inspect.audit(limit=None) if one.operation == "resume"
    )
    assert audit == dict.fromkeys(JOBS, 1)
    assert claimed == dict.fromkeys(JOBS, 1)
    for name in JOBS:
        assert bench.gaps(name) == [(1, 4, 4, "maintenance")]
    assert bench.inspect.pauses() == []
    database.close()
