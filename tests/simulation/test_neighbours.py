"""Who dies with a poisonous neighbour must not be taken for one."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
import sqlalchemy as sa
from tests.simulation.agent import SimulatedWorker
from tests.simulation.cast import NOON

from slotwise import Retry, Settings, task
from slotwise.operations import Schema
from slotwise.spi import Database, define
from slotwise.testing import ManualClock
from slotwise.testing.manual_worker import IN_MEMORY

INNOCENT = [f"innocent-{number}" for number in range(5)]


def left(database: Database) -> dict[str, str | None]:
    with database.main.begin() as connection:
        rows = connection.execute(
            sa.text("SELECT task_instance, state FROM scheduled_tasks")
        )
        return {row.task_instance: row.state for row in rows}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_only_the_poison_is_dead(kind: str, request: pytest.FixtureRequest) -> None:
    """One task that ends every process it runs in, and five that run beside it, on two processes
    that come again.
    """
    database = Database(
        Settings(
            database_url=request.getfixturevalue("pg_url")
            if kind == "postgresql"
            else IN_MEMORY
        )
    )
    if kind == "sqlite":
        Schema.create_in(database)
    clock = ManualClock(NOON)
    work = task(name="work", retry=Retry(max_attempts=1))(print)
    workers = [SimulatedWorker([work], database, clock) for _ in range(2)]
    for instance in (*INNOCENT[:3], "poison", *INNOCENT[3:]):
        workers[0].client.schedule("work", id=instance)
    crashes = 0
    for _ in range(200):
        for number, worker in enumerate(workers):
            while claims := worker.poll():
                assert all(map(worker.begin, claims))
            if any(claim.row.task_instance == "poison" for claim in worker.held):
                worker.crash()
                workers[number], crashes = (
                    SimulatedWorker([work], database, clock),
                    crashes + 1,
                )
        clock.tick(timedelta(seconds=5))
        for worker in workers:
            for claim in worker.held:
                worker.finish(claim)
            worker.settle()
            worker.reap()
        if set(left(database)) == {"poison"} and left(database)["poison"] == "dead":
            break
    assert (left(database), crashes) == ({"poison": "dead"}, define(work).max_lost)
    database.close()


def test_those_who_run_long_keep_nobody_waiting_for_ever() -> None:
    """One at a time, until it has ended or has run for a lease: a job that runs for ever starves
    nobody.
    """
    database = Database(Settings(database_url=IN_MEMORY))
    Schema.create_in(database)
    clock = ManualClock(NOON)
    work = task(name="work")(print)
    first = SimulatedWorker([work], database, clock)
    for instance in INNOCENT:
        first.client.schedule("work", id=instance)
    first.poll()
    first.crash()
    heir = SimulatedWorker([work], database, clock)
    taken = []
    for _ in range(60):
        clock.tick(timedelta(seconds=10))
        heir.beat()
        heir.reap()
        taken += [claim for claim in heir.poll() if heir.begin(claim)]
    assert sorted(claim.row.task_instance for claim in taken) == INNOCENT
    starts = [claim.claimed_at for claim in taken]
    lease = Settings().lease
    assert all(later - earlier >= lease for earlier, later in pairwise(starts))
    database.close()
