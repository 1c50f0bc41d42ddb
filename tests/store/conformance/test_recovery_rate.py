"""After an outage, only so many slots start in a second, in the whole cluster."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Any

import pytest
import tenacity
from tests.store.bench import Bench
from tests.store.conformance.test_policies import MINUTE, NOON

from slotwise import CatchUp, Every, Overlap, Retry, job
from slotwise.model.clock import ManualClock
from slotwise.model.records import TICK, Failed, HandedBack
from slotwise.schedules import Schedule
from slotwise.store.connect.database import Database
from slotwise.store.slots.recovery_rate import RecoveryRate
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
            lambda ctx: starts.append((clock.now(), ctx.name, ctx.missed_count))
        )

    subjects = [make(f"job-{number:02}") for number in range(jobs)]
    workers, limited = [], Database(database.settings.replace(recovery_rate=rate))
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


@pytest.mark.parametrize("outage", [10 * MINUTE, 30 * SECOND], ids=["long", "short"])
def test_a_second_outage_is_no_stampede(database: Database, outage: timedelta) -> None:
    """Places that nobody used have lapsed, also those of slots that are not late for their places; others are given."""
    with cluster(database, 2, Every("1h")) as (workers, starts):
        workers[0].tick(10 * MINUTE)
        recover(workers, 1)
        workers[0].tick(outage)
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


@pytest.mark.parametrize(("rate", "late"), [(1, 0), (3, 20), (7, 2000), (20, 300)])
def test_no_second_has_more_starts_than_the_rate(bench: Bench, rate: int, late: int) -> None:
    """At whatever instants rows come up, and up to so many ms after their places; and all start before long."""
    chance, budget = random.Random(rate), RecoveryRate(bench.store.dialect, rate)
    plain = replace(bench.row("plain"), attempt=1)
    comings = [(NOON + TICK * chance.randrange(2_000_000), number, plain) for number in range(3 * rate + 10)]
    heapify(comings)
    starts = []
    with bench.store.transaction() as connection:
        while comings:
            now, number, row = heappop(comings)
            due = budget.defer(connection, row, "catch_up", now)
            if due is None:
                starts.append((now, "plain", 0))
                continue
            again = due + TICK * chance.randrange(1 + late * 1000)
            heappush(comings, (again, number, replace(row, execution_time=due, parked_due=NOON)))
    assert busiest(starts) <= rate
    assert starts[-1][0] < NOON + SECOND * (3 * rate + 10) * 1.25 / rate + 3 * SECOND + 3 * timedelta(milliseconds=late)


def test_a_clock_that_was_put_back_keeps_nobody_waiting(bench: Bench) -> None:
    """Neither for what started by the time of before, nor for the line of then; and the rate holds from now on."""
    budget, row = RecoveryRate(bench.store.dialect, 2), replace(bench.row("plain"), attempt=1)
    with bench.store.transaction() as connection:
        for _ in range(200):
            budget.defer(connection, row, "catch_up", NOON + 60 * MINUTE)
        answers = [budget.defer(connection, row, "catch_up", NOON + TICK * number) for number in range(3)]
    assert answers[0] is None
    assert [None if answer is None else NOON < answer < NOON + 2 * SECOND for answer in answers[1:]] == [True, True]


def test_who_comes_at_the_same_time_does_not_wait(pg_bench: Bench) -> None:
    """It is put off for a moment, to an instant that is no place; then it takes one behind the other's."""
    budget, row = RecoveryRate(pg_bench.store.dialect, 2), replace(pg_bench.row("plain"), attempt=1)
    for _ in range(2):  # the first of all, and after others
        now = pg_bench.tick()
        with pg_bench.store.transaction() as one:
            assert budget.defer(one, row, "catch_up", now) is None
            with pg_bench.store.transaction() as two:
                again = budget.defer(two, row, "catch_up", now)
        assert again is not None
        waiting = replace(row, execution_time=again, parked_due=NOON)
        with pg_bench.store.transaction() as two:
            assert budget.defer(two, waiting, "catch_up", now + SECOND / 5) == now + 0.375 * SECOND


def test_a_row_that_a_restore_left_behind_is_asked(database: Database) -> None:
    """It waited for the retry of a slot that has ended since; the one that starts instead is a late one."""
    retry = Retry(max_attempts=2, wait=tenacity.wait_none())
    with cluster(database, 1, Every("1m"), 3, retry=retry) as (workers, starts):
        bench = Bench(database, [], workers[0].clock)
        workers[0].tick(SECOND)
        failed = workers[0].poll()
        for claim in failed:
            workers[0].begin(claim)
            workers[0].finish(claim, Failed("boom"))
        workers[0].settle()
        backup = bench.backup()
        recover(workers, 1)
        workers[0].tick(4.5 * MINUTE)
        bench.restore(backup)
        starts.clear()
        recover(workers, 5)
    assert (len(starts), busiest(starts)) == (3, 1)
