"""A database on which everything takes its time: what was missed starts all the same."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import sqlalchemy as sa
from tests.kit.dialect import DIALECT
from tests.store.bench import NOON

from slotwise import Every, job
from slotwise.spi import Database, HandedBackEvent
from slotwise.testing import ManualClock, ManualWorker

JOBS = 20
#: What each statement takes: to decide about all of these together takes longer than the lease,
#: and than the time until they are late again.
COST = timedelta(milliseconds=90)


def test_slots_whose_claim_is_slow_start_in_the_end(database: Database) -> None:
    """Race: what is decided about for longer than its lease goes back; were the next claim as
    large, so would that.
    """
    ran: Counter[str] = Counter()
    names = [f"job{number}" for number in range(JOBS)]
    jobs = [
        job(name=name, schedule=Every("5s"))(lambda ctx: ran.update([ctx.name]))
        for name in names
    ]
    clock = ManualClock(NOON)
    with ManualWorker(
        jobs, database, clock, heartbeat_interval="1s", threads=JOBS
    ) as worker:
        worker.tick("1h")
        sa.event.listen(
            database.main, "before_cursor_execute", lambda *_: clock.tick(COST)
        )
        for _ in range(2 * JOBS):
            worker.poll()
            for claim in worker.waiting:
                worker.run(claim)
            worker.settle()
    assert sorted(ran) == sorted(names)
    back = Counter(
        event.job for event in worker.events if isinstance(event, HandedBackEvent)
    )
    in_batches = database.dialect_name == "postgresql" and DIALECT != "locking"
    assert max(back.values(), default=0) == (
        0 if in_batches else 1
    )  # in batches: soon done
