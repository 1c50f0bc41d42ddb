"""The return from an outage, by hundredths of a second: no second has more late starts than
``recovery_rate``.

The worlds of the simulation go on by seconds, in which any rate is kept.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa
from tests.kit.breaks import Mutant
from tests.kit.records import (
    AttemptOutcome,
    Failed,
    HandedBack,
    Succeeded,
    from_micros,
)
from tests.simulation.agent import SimulatedWorker
from tests.simulation.cast import NOON
from tests.simulation.mutants import OF_RECOVERY

from slotwise import CatchUp, Every, Overlap, Retry, Settings, job
from slotwise.operations import Schema
from slotwise.spi import Claim, Database
from slotwise.store.slots.tuning import LATE
from slotwise.testing import ManualClock
from slotwise.testing.manual_worker import IN_MEMORY

SECOND, RATE = timedelta(seconds=1), 4

JOBS = [
    *(job(name=f"late-{number}", schedule=Every("1h"))(print) for number in range(5)),
    *(
        job(
            name=f"missed-{number}", schedule=Every("3m"), retry=Retry(max_attempts=3)
        )(print)
        for number in range(4)
    ),
    job(name="all", schedule=Every("3m"), catch_up=CatchUp.all())(print),
    job(
        name="beside",
        schedule=Every("4m"),
        overlap=Overlap.allow(2),
        catch_up=CatchUp.all(),
    )(print),
    job(name="giving", schedule=Every("3m"), on_lost="give_up")(print),
]


class Recovery:
    """Three workers after ten minutes in which nobody worked; what they do, and how late, is the
    seed's.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.database = Database(Settings(database_url=IN_MEMORY, recovery_rate=RATE))
        Schema.create_in(self.database)
        self.clock = ManualClock(NOON - SECOND)
        self.workers = [self._hire(number) for number in range(3)]
        self.workers[0].plan()
        #: When slots that count were claimed whose handlers then began.
        self.starts: list[datetime] = []

    def _hire(self, number: int) -> SimulatedWorker:
        return SimulatedWorker(
            JOBS, self.database, self.clock, worker_name=f"w{number}"
        )

    def run(self) -> None:
        """Until nothing is late any more; a second outage on the way, shorter than what makes a
        slot late.
        """
        self.clock.tick(10 * LATE)
        for number in range(400):
            self.clock.tick(timedelta(milliseconds=self.rng.choice((5, 20, 60, 150))))
            if number == 30:
                self.clock.tick(LATE / 3)
            self._act(self.rng.randrange(3))
            if number > 100 and self._is_over():
                break
        assert self._is_over()

    def _act(self, number: int) -> None:
        worker, rng = self.workers[number], self.rng
        if rng.random() < 0.01:
            worker.crash()
            self.workers[number] = worker = self._hire(number)
        worker.beat()
        worker.reap()
        worker.poll(rng.choice((1, 3, 10)))
        for claim in worker.waiting:
            if rng.random() < 0.1:
                worker.finish(claim, HandedBack("queued"))
            elif rng.random() < 0.8 and worker.begin(claim):
                self._began(claim)
        for claim in worker.held:
            if claim not in worker.waiting and rng.random() < 0.5:
                ended: AttemptOutcome = (
                    Failed("boom") if rng.random() < 0.2 else Succeeded()
                )
                worker.finish(claim, ended)
        worker.settle()

    def _began(self, claim: Claim) -> None:
        row = claim.row
        assert row.slot is not None
        if row.attempt == 1 and (
            row.origin == "catch_up" or claim.claimed_at - row.slot > LATE
        ):
            self.starts.append(claim.claimed_at)

    def _is_over(self) -> bool:
        tasks = self.workers[0].store.tables.tasks
        late = sa.select(tasks.c.task_name).where(
            tasks.c.slot < self.clock.now() - LATE / 2, tasks.c.attempt == 0
        )
        with self.database.main.begin() as connection:
            return connection.execute(late).first() is None

    def told(self) -> list[datetime]:
        """When the ledger says that the same slots were claimed, as far as they began once.

        With give_up ``started`` is the time of the mark, which follows the claim: the token is the
        claim's.
        """
        slots = self.workers[0].store.tables.slots
        once = sa.select(
            slots.c.origin, slots.c.slot, slots.c.started, slots.c.token
        ).where(slots.c.attempts == 1)
        with self.database.main.begin() as connection:
            rows = connection.execute(once.where(slots.c.started.is_not(None))).all()
        late = [
            row
            for row in rows
            if row.origin == "catch_up" or row.started - row.slot > LATE
        ]
        return [min(row.started, from_micros(row.token)) for row in late]


def busiest(seed: int) -> int:
    """The most late starts in any second of this recovery, by what began and by what the ledger
    says.
    """
    recovery = Recovery(seed)
    try:
        recovery.run()
        assert len(recovery.starts) > 12
        return max(map(_most, (recovery.starts, recovery.told())))
    finally:
        recovery.database.close()


def _most(instants: list[datetime]) -> int:
    return max(
        sum(begin <= at < begin + SECOND for at in instants) for begin in instants
    )


def test_a_recovery_keeps_to_its_rate(rare_seed: int) -> None:
    """Whoever claims, hands back, crashes or is late."""
    assert busiest(rare_seed) <= RATE


#: So many recoveries may pass before a mutant must have been found out.
RECOVERIES = 20


@pytest.mark.extended
@pytest.mark.parametrize("mutant", OF_RECOVERY.values(), ids=OF_RECOVERY)
def test_a_budget_without_a_rule_is_found_out(mutant: Mutant) -> None:
    """The law is trusted after it has failed."""
    with mutant.at_large():
        assert any(busiest(seed) > RATE for seed in range(RECOVERIES))
