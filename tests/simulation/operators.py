"""Somebody who gives operations, all through the day, and looks at what can be requested before."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from tests.kit.laws import Ledger
from tests.kit.records import ENDED_BADLY
from tests.simulation.operation_laws import OperationLaws

from slotwise import ConfigurationError
from slotwise.operations import Operations
from slotwise.spi import Tables

#: Told which slots may be open again though they had ended.
Reopened = Callable[[str, datetime], None]


class Operator:
    """What is refused changes nothing; of what is carried out the laws are told."""

    def __init__(
        self,
        rng: random.Random,
        laws: OperationLaws,
        jobs: list[str],
        reopened: Reopened,
    ) -> None:
        self._rng = rng
        self._laws = laws
        self._jobs = jobs
        self._reopened = reopened
        self._orders = [
            self._trigger,
            self._trigger,
            self._trigger,
            self._skip_next,
            self._skip_next,
            self._cancel,
            self._cancel,
            self._cancel_one,
            self._retry,
            self._retry,
            self._retry,
            self._backfill,
            self._backfill,
            self._cancel_backfill,
            self._pause,
            self._pause_for,
            self._resume,
            self._resume,
            self._pause_all,
        ]

    def operation(self, operations: Operations, ledger: Ledger, now: datetime) -> str:
        """One operation, whatever comes to mind; what it was."""
        job, give = self._rng.choice(self._jobs), self._rng.choice(self._orders)
        if self._laws.all_paused:
            give = self._resume_all
        try:
            return f"operations: {give(operations, job, ledger, now)}"
        except ConfigurationError as error:
            return f"is refused: {str(error)[:60]}"

    def let_all_go_on(
        self, operations: Operations, ledger: Ledger, now: datetime
    ) -> None:
        """At the end nothing stays paused."""
        if self._laws.all_paused:
            self._resume_all(operations, "", ledger, now)
        for job in _asleep(ledger):
            self._resume_job(operations, job)

    # -- operations -------------------------------------------------------------------------------

    def _trigger(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        rule: Any = self._rng.choice(("beside", "beside", "queue", "skip"))
        slot = operations.trigger(job, overlap=rule)
        self._laws.requested("trigger")
        self._laws.wants(job, [slot])
        return f"trigger {job} ({rule}): {slot}"

    def _skip_next(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        slot = operations.skip_next(job)
        self._laws.requested("skip_next")
        self._laws.leaves_out(job, slot)
        return f"skip_next {job}: {slot}"

    def _cancel(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        return self._called_off(job, operations.cancel(job))

    def _cancel_one(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        """What runs, or waits for its retry, or beside the plan row."""
        rows = [
            row
            for row in ledger.rows
            if row["slot"] and row["schedule"] and (row["attempt"] or row["origin"])
        ]
        if not rows:
            return "nothing"
        row = self._rng.choice(
            sorted(rows, key=lambda row: (row["task_name"], row["slot"]))
        )
        return self._called_off(
            row["task_name"], operations.cancel(row["task_name"], row["slot"])
        )

    def _called_off(self, job: str, slots: list[datetime]) -> str:
        self._laws.requested("cancel", len(slots))
        self._laws.calls_off(job, slots)
        return f"cancel {job}: {', '.join(map(str, slots))}"

    def _retry(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        ended = [
            (name, slot)
            for (name, slot), entry in ledger.slots.items()
            if entry["finished"]
            and entry["outcome"] in ENDED_BADLY
            and name in self._jobs
        ]
        if not ended:
            return "nothing"
        job, slot = self._rng.choice(sorted(ended))
        operations.retry(job, slot)
        self._reopened(job, slot)
        self._laws.requested("retry")
        self._laws.wants(job, [slot], again=True)
        return f"retry {job} {slot}"

    def _backfill(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        last = now - timedelta(seconds=self._rng.randrange(240))
        found = operations.backfill(
            job,
            last - timedelta(minutes=2),
            last,
            pace=self._rng.choice((None, "3s")),
            concurrency=self._rng.choice((1, 2)),
            failed=self._rng.random() < 0.5,
        )
        for slot in found.slots:
            self._reopened(job, slot)
        self._laws.requested("backfill", 1 if found.slots else 0)
        self._laws.wants(job, found.slots, again=True)
        return f"backfill {job}: {len(found.slots)} slots to {last}"

    def _cancel_backfill(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        queued = sorted(
            {row["task_name"] for row in ledger.rows if row["state"] == "queued"}
        )
        job = self._rng.choice(queued) if queued else job
        count = operations.cancel_backfill(job)
        self._laws.requested("cancel_backfill", 1 if count else 0)
        return f"cancel-backfill {job}: {count}"

    def _pause(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        self._laws.requested("pause", int(operations.pause(job)))
        self._laws.pauses(job, None)
        return f"pause {job}"

    def _pause_for(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        """A pause that a worker ends: it may be down, or frozen, when the time comes."""
        until = now + timedelta(seconds=self._rng.randint(1, 900))
        replay = self._rng.random() < 0.3
        changed = operations.pause(job, until=until, replay=replay)
        self._laws.requested("pause", int(changed))
        self._laws.pauses(job, until)
        return f"pause {job} until {until}"

    def _resume(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        asleep = _asleep(ledger)
        return (
            self._resume_job(operations, self._rng.choice(asleep))
            if asleep
            else "nothing"
        )

    def _resume_job(self, operations: Operations, job: str) -> str:
        operations.resume(job, replay=self._rng.random() < 0.5)
        self._laws.requested("resume")
        self._laws.resumes(job)
        return f"resume {job}"

    def _pause_all(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        self._laws.requested("pause", int(operations.pause_all()))
        self._laws.all_paused = True
        return "pause all"

    def _resume_all(
        self, operations: Operations, job: str, ledger: Ledger, now: datetime
    ) -> str:
        operations.resume_all(replay=self._rng.random() < 0.5)
        self._laws.requested("resume")
        self._laws.all_paused = False
        return "resume all"


def _asleep(ledger: Ledger) -> list[str]:
    return sorted(
        {row["task_name"] for row in ledger.rows if row["state"] == "paused"}
    )


def audit(connection: sa.Connection, tables: Tables) -> Counter[str]:
    """How many operations of each kind stand in the audit table; a worker that has ended a pause
    is no operator.
    """
    own = ~tables.controls.c.author.startswith("worker ")
    return Counter(connection.scalars(sa.select(tables.controls.c.command).where(own)))
