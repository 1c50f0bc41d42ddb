"""After an outage, only so many slots start in a second, in the whole cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from tests.store.conformance.test_policies import MINUTE, NOON

from slotwise import CatchUp, Every, Overlap, job
from slotwise.clock import ManualClock
from slotwise.execution import HandedBack
from slotwise.schedules import Schedule
from slotwise.store.database import Database
from slotwise.testing.worker import ManualWorker

SECOND = timedelta(seconds=1)


@contextmanager
def cluster(
    database: Database, rate: int | None, schedule: Schedule, jobs: int = 12, **policies: Any
) -> Iterator[tuple[list[ManualWorker], list[tuple[datetime, str, int]]]]:
    """Two workers with many jobs, planned just before noon; and the starts: when, which, for how many more."""
    starts: list[tuple[datetime, str, int]] = []
    clock = ManualClock(NOON - SECOND)

    def make(name: str) -> object:
        return job(name=name, schedule=schedule, **policies)(
            lambda ctx: starts.append((clock.now(), ctx.name, ctx.collapsed))
        )

    subjects = [make(f"job-{number:02}") for number in range(jobs)]
    workers, limited = [], Database(database.settings.with_(recovery_rate=rate))
    for name in ("a", "b"):
        worker = ManualWorker(subjects, limited, clock, worker_name=name, threads=50)
        worker.plan()
        workers.append(worker)
    yield workers, starts
    for worker in workers:
        worker.close()
    limited.close()


def recover(workers: list[ManualWorker], seconds: float = 20) -> None:
    """Both work, in turns, each tenth of a second."""
    for _ in range(int(seconds * 10)):
        for worker in workers:
            worker.run_due()
        workers[0].tick(SECOND / 10)


def busiest(starts: list[tuple[datetime, str, int]]) -> int:
    """The most starts within any second."""
    times = sorted(at for at, _, _ in starts)
    return max(sum(at <= other < at + SECOND for other in times) for at in times)


def test_missed_slots_start_one_after_another(database: Database) -> None:
    """Each job once, none lost, at most two in a second, whoever runs them."""
    with cluster(database, 2, Every("1m")) as (workers, starts):
        workers[0].tick(4.5 * MINUTE)
        recover(workers)
    assert Counter(name for _, name, _ in starts) == Counter(f"job-{number:02}" for number in range(12))
    assert {collapsed for _, _, collapsed in starts} == {4}
    assert busiest(starts) == 2


def test_without_a_rate_all_start_at_once(database: Database) -> None:
    """The counterpart: it is the budget that holds them back."""
    with cluster(database, None, Every("1m")) as (workers, starts):
        workers[0].tick(4.5 * MINUTE)
        recover(workers, 1)
    assert busiest(starts) == 12


def test_a_slot_that_is_merely_late_counts(database: Database) -> None:
    """Its next one has not come; it comes back from the outage all the same."""
    with cluster(database, 3, Every("1h")) as (workers, starts):
        workers[0].tick(10 * MINUTE)
        recover(workers)
    assert len(starts) == 12
    assert busiest(starts) == 3


def test_a_slot_in_time_needs_no_place(database: Database) -> None:
    """In daily life nothing waits."""
    with cluster(database, 1, Every("1h")) as (workers, starts):
        workers[0].tick("30s")
        recover(workers, 1)
    assert busiest(starts) == 12


def test_a_second_outage_is_no_stampede(database: Database) -> None:
    """Places that nobody used have lapsed; those who had them are given others."""
    with cluster(database, 2, Every("1h")) as (workers, starts):
        workers[0].tick(10 * MINUTE)
        recover(workers, 1)
        workers[0].tick(10 * MINUTE)
        recover(workers)
    assert len(starts) == 12
    assert busiest(starts) == 2


def test_each_slot_of_a_catch_up_counts(database: Database) -> None:
    """Also those that follow the first one."""
    with cluster(database, 5, Every("1m"), jobs=3, catch_up=CatchUp.all()) as (workers, starts):
        workers[0].tick(4.5 * MINUTE)
        recover(workers, 10)
    assert len(starts) == 15
    assert busiest(starts) <= 5


def test_a_slot_beside_the_plan_row_that_was_handed_back_needs_a_place_again(database: Database) -> None:
    """Its first place was for a start that never came to be."""
    with cluster(database, 1, Every("70m"), jobs=4, overlap=Overlap.allow(2)) as ((one, two), starts):
        one.tick("5h")
        (claim,) = one.poll()
        one.tick("1100ms")
        one.finish(claim, HandedBack("queued"))
        one.settle()
        recover([one, two], seconds=8)
        assert len(starts) == 4
        assert busiest(starts) == 1
