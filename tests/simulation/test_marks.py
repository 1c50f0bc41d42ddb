"""While batches come back full, no row waits behind a mark for longer than until the next full
look.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from tests.kit.records import AttemptOutcome, Failed, HandedBack, Succeeded
from tests.kit.store import LOOK_BACK

from slotwise import Retry, task
from slotwise.spi import Database
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STEP = timedelta(milliseconds=50)
NAMES = ("mail", "post")
LIMIT = 6


class Flood:
    """A worker that never gets to the end of its queues, into which rows come from everywhere."""

    def __init__(self, seed: int, database: Database) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(NOON)
        retry = Retry.exponential(max_attempts=9, initial=timedelta(milliseconds=100))
        tasks = [task(name=name, retry=retry)(print) for name in NAMES]
        self.worker = ManualWorker(tasks, database, self.clock, threads=LIMIT)
        self.tables = self.worker.store.tables.tasks
        #: Since when younger, or less urgent, rows of the same task have been claimed in front of
        #: a row.
        self.passed: dict[tuple[str, str, datetime], float] = {}
        self.longest = 0.0

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.tick(STEP)
            self._schedule()
            claims = self.worker.poll(LIMIT)
            self._look_on({claim.row.task_name: _order(claim.row) for claim in claims})
            for claim in claims:
                self.worker.finish(claim, self._outcome())
            self.worker.settle()

    def _schedule(self) -> None:
        """More than a poll takes; some whose transaction commits late, or that are dated back."""
        now = self.clock.now()
        rows = [
            self._row(
                now
                - timedelta(
                    seconds=self.rng.choice((0, 0, 0, 0.2, 3, 60)) * self.rng.random()
                )
            )
            for _ in range(self.rng.choice((1, LIMIT, 3 * LIMIT)))
        ]
        with self.worker.store.transaction() as connection:
            connection.execute(self.tables.insert(), rows)

    def _row(self, due: datetime) -> dict[str, Any]:
        priority = self.rng.choice((50, 40, 90)) if self.rng.random() < 0.2 else 50
        return {
            "task_name": self.rng.choice(NAMES),
            "task_instance": str(self.rng.randrange(10**9)),
            "picked": False,
            "execution_time": due,
            "slot": due,
            "version": 1,
            "created_version": 1,
            "priority": priority,
        }

    def _outcome(self) -> AttemptOutcome:
        return self.rng.choice((*[Succeeded()] * 8, Failed("boom"), HandedBack()))

    def _look_on(self, last: dict[str, tuple[int, datetime]]) -> None:
        """``last``: what each task's last claimed row was; the law: whoever went before it does
        not wait for long.
        """
        tasks, now = self.tables.c, self.clock.elapsed()
        waits = (~tasks.picked, tasks.execution_time <= self.clock.now())
        with self.worker.store.transaction() as connection:
            rows = connection.execute(sa.select(self.tables).where(*waits)).all()
        keys = {
            (row.task_name, row.task_instance, row.execution_time): row for row in rows
        }
        self.passed = {key: since for key, since in self.passed.items() if key in keys}
        for key, row in keys.items():
            if row.task_name in last and _order(row) < last[row.task_name]:
                waited = now - self.passed.setdefault(key, now)
                assert waited < LOOK_BACK, f"{key} is passed over for {waited:.2f} s"
                self.longest = max(self.longest, waited)


def _order(row: Any) -> tuple[int, datetime]:
    return -row.priority, row.execution_time


def test_no_row_is_passed_over_for_longer_than_a_look_back(
    memory: Database, rare_seed: int
) -> None:
    """Late commits, rows dated back, retries, hand-backs, priorities and tasks that take turns."""
    flood = Flood(rare_seed, memory)
    flood.live(70)
    assert flood.longest > LOOK_BACK / 2  # marks were there, and rows behind them
