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
from tests.kit.records import TICK, Failed, HandedBack
from tests.kit.store import START, Answer, Later, RecoveryRate
from tests.store.bench import Bench
from tests.store.conformance.test_policies import MINUTE, NOON

from slotwise import CatchUp, Every, Overlap, Retry, Schedule, job
from slotwise.spi import Database, Row
from slotwise.testing import ManualClock, ManualWorker

SECOND = timedelta(seconds=1)


@contextmanager
def cluster(
    database: Database,
    rate: int | None,
    schedule: Schedule,
    jobs: int = 12,
    **policies: Any,
) -> Iterator[tuple[list[ManualWorker], list[tuple[datetime, str, int]]]]:
    """Two workers with many jobs, planned just before noon; and the starts: when, which, for how
    many more.
    """
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
    assert Counter(name for _, name, _ in starts) == Counter(
        f"job-{number:02}" for number in range(12)
    )
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


@pytest.mark.extended
@pytest.mark.parametrize("outage", [10 * MINUTE, 30 * SECOND], ids=["long", "short"])
def test_a_second_outage_is_no_stampede(database: Database, outage: timedelta) -> None:
    """Tokens that were promised have lapsed; a slot that was put off is late by its slot, and
    needs one still.
    """
    with cluster(database, 2, Every("1h")) as (workers, starts):
        workers[0].tick(10 * MINUTE)
        recover(workers, 1)
        workers[0].tick(outage)
        recover(workers)
    assert len(starts) == 12
    assert busiest(starts) == 2


def test_each_slot_of_a_catch_up_counts(database: Database) -> None:
    """Also those that follow the first one."""
    with cluster(database, 5, Every("1m"), jobs=3, catch_up=CatchUp.all()) as (
        workers,
        starts,
    ):
        workers[0].tick(4.5 * MINUTE)
        recover(workers, 10)
    assert len(starts) == 15
    assert busiest(starts) <= 5


def test_a_slot_beside_the_plan_row_that_was_handed_back_needs_a_place_again(
    database: Database,
) -> None:
    """Its first place was for a start that never came to be."""
    with cluster(database, 1, Every("70m"), jobs=4, overlap=Overlap.allow(2)) as (
        (one, two),
        starts,
    ):
        one.tick("5h")
        (claim,) = one.poll()
        one.tick("1100ms")
        one.finish(claim, HandedBack("queued"))
        one.settle()
        recover([one, two], seconds=8)
        assert len(starts) == 4
        assert busiest(starts) == 1


def bucket(bench: Bench, rate: int) -> RecoveryRate:
    """The gate by itself."""
    return RecoveryRate(
        bench.store.dialect, {}, bench.database.settings.replace(recovery_rate=rate)
    )


def missed(bench: Bench) -> Row:
    """A claimed row that starts for a catch-up."""
    return replace(bench.row("plain"), attempt=1, origin="catch_up")


@pytest.mark.parametrize(("rate", "late"), [(1, 0), (3, 20), (7, 2000), (20, 300)])
def test_no_second_has_more_starts_than_the_rate(
    bench: Bench, rate: int, late: int
) -> None:
    """At whatever instants rows come up, and up to so many ms after their places; and all start
    before long.
    """
    chance, gate, row = random.Random(rate), bucket(bench, rate), missed(bench)
    comings = [
        (NOON + TICK * chance.randrange(2_000_000), number)
        for number in range(3 * rate + 10)
    ]
    heapify(comings)
    starts = []
    with bench.store.transaction() as connection:
        while comings:
            now, number = heappop(comings)
            (answer,) = gate.admit([row], now, connection)
            if answer is START:
                starts.append((now, "plain", 0))
                continue
            heappush(
                comings,
                (due(answer) + TICK * chance.randrange(1 + late * 1000), number),
            )
    assert busiest(starts) <= rate
    assert starts[-1][0] < NOON + SECOND * (
        3 * rate + 10
    ) * 1.25 / rate + 3 * SECOND + 3 * timedelta(milliseconds=late)


def test_a_batch_is_answered_together(bench: Bench) -> None:
    """As many as there are tokens start; each other row comes back when a token of its own is
    likely.
    """
    gate, row = bucket(bench, 10), missed(bench)
    with bench.store.transaction() as connection:
        answers = gate.admit([row] * 6, NOON, connection)
    assert answers[:3] == [START] * 3
    assert [due(answer) - NOON for answer in answers[3:]] == [
        SECOND * 0.125 * number for number in (1, 2, 3)
    ]


def test_a_token_that_was_given_back_is_there_again(bench: Bench) -> None:
    """The start for which it was taken was refused after that."""
    gate, row = bucket(bench, 1), missed(bench)
    with bench.store.transaction() as connection:
        assert gate.admit([row], NOON, connection) == [START]
        gate.give_back([row], NOON, connection)
        assert gate.admit([row], NOON, connection) == [START]
        assert gate.admit([row], NOON, connection) == [
            Later(NOON + SECOND, "recovery")
        ]


def test_a_clock_that_was_put_back_keeps_no_row_waiting(bench: Bench) -> None:
    """Neither for what started by the time of before, nor for promises of then; and the rate holds
    from now on.
    """
    gate, row = bucket(bench, 2), missed(bench)
    with bench.store.transaction() as connection:
        gate.admit([row] * 200, NOON + 60 * MINUTE, connection)
        answers = [
            gate.admit([row], NOON + TICK * number, connection)[0]
            for number in range(3)
        ]
    assert answers[0] == START
    assert all(NOON < due(answer) < NOON + 2 * SECOND for answer in answers[1:])


def test_a_claim_at_the_same_time_does_not_wait(pg_bench: Bench) -> None:
    """Its rows are put off for a moment; then they are promised tokens behind the other's."""
    gate, row = bucket(pg_bench, 2), missed(pg_bench)
    for _ in range(2):  # the first of all, and after others
        now = pg_bench.tick()
        with pg_bench.store.transaction() as one:
            assert gate.admit([row], now, one) == [START]
            with pg_bench.store.transaction() as two:
                assert gate.admit([row], now, two) == [
                    Later(now + SECOND / 5, "recovery")
                ]
        with pg_bench.store.transaction() as two:
            assert gate.admit([row], now + SECOND / 5, two) == [
                Later(now + 0.375 * SECOND, "recovery")
            ]


def due(answer: Answer) -> datetime:
    """When the row comes back."""
    assert isinstance(answer, Later)
    return answer.due


def test_a_row_that_a_restore_left_behind_is_asked(database: Database) -> None:
    """It waited for the retry of a slot that has ended since; the one that starts instead is a
    late one.
    """
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
