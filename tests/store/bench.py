"""A store with a handful of jobs on a clock that stands still, and short words for what tests do
to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from tests.kit.records import (
    ROW_COLUMNS,
    AttemptOutcome,
    Succeeded,
    Transition,
    row_of,
)
from tests.kit.store import Plan, Planner, Revision, Settlement, Store

from slotwise import (
    Client,
    Disabled,
    Every,
    FixedDelay,
    JobContext,
    Retry,
    Schedule,
    job,
    task,
)
from slotwise.inspect import RECURRING, Inspection
from slotwise.spi import Claim, Database, Definition, Row, define
from slotwise.testing import ManualClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LEASE = MINUTE

#: As Java's db-scheduler makes it, and the columns of a row that it inserts.
DB_SCHEDULER = """
CREATE TABLE scheduled_tasks (
    task_name text NOT NULL, task_instance text NOT NULL, task_data bytea,
    execution_time timestamptz NOT NULL, picked boolean NOT NULL, picked_by text,
    last_success timestamptz, last_failure timestamptz, consecutive_failures int, last_heartbeat timestamptz,
    version bigint NOT NULL, priority smallint,
    PRIMARY KEY (task_name, task_instance)
)"""
JAVA_ROW = "(task_name, task_instance, execution_time, picked, version)"


def at(minutes: float) -> datetime:
    """So many minutes after noon, when the jobs were planned; the first slot is ``at(1)``."""
    return NOON + minutes * MINUTE


def _nothing(ctx: JobContext) -> None:
    """A handler; no test of a store runs it."""


def a_job(name: str, schedule: Schedule | None = None, **policies: Any) -> Definition:
    return define(
        job(name=name, schedule=schedule or Every(MINUTE), **policies)(_nothing)
    )


def a_task(name: str, **policies: Any) -> Definition:
    return define(task(name=name, **policies)(_nothing))


#: rerun, give_up, fixed delay, with a retry, disabled; and two kinds of one-time tasks.
DEFINITIONS = (
    a_job("plain"),
    a_job("strict", on_lost="give_up"),
    a_job("delayed", FixedDelay(2 * MINUTE)),
    a_job(
        "retried",
        retry=Retry.exponential(max_attempts=3, initial=timedelta(seconds=1)),
    ),
    a_job("off", Disabled()),
    a_task("mail"),
    a_task("once", on_lost="give_up"),
)


def claim_due(
    store: Store,
    holder: str,
    limit: int,
    *,
    lease: timedelta,
    names: Sequence[str],
    lost: int = 1,
) -> tuple[int, list[Claim]]:
    """Claim slots, and then one-time tasks; how many were found, and the claims that may start."""
    found, claims, _ = store.claims.claim_slots(
        holder, limit, lease=lease, names=names, lost=lost
    )
    queued = store.claims.claim_tasks(
        holder, limit - found, lease=lease, names=store.due.tasks_of(names)
    )
    return found + len(queued), claims + queued


class Bench:
    """One store, and what can be seen of its tables."""

    def __init__(
        self,
        database: Database,
        definitions: Iterable[Definition] = DEFINITIONS,
        clock: ManualClock | None = None,
    ) -> None:
        self.database = database
        self.clock = clock or ManualClock(NOON)
        self.definitions = {found.name: found for found in definitions}
        self.store = Store(database, self.definitions, clock=self.clock)
        self.tables = self.store.tables
        self.client = Client(lambda: self.store)
        self.inspect = Inspection(lambda: self.store)

    def beside(self, *definitions: Definition) -> Bench:
        """Another worker's store over the same tables and clock, with these definitions for those
        it shares.
        """
        changed = {**self.definitions, **{found.name: found for found in definitions}}
        return Bench(self.database, changed.values(), self.clock)

    # -- the engine's verbs, shortened ------------------------------------------------------------

    def planned(self) -> Bench:
        self.plan()
        return self

    def plan(
        self, *names: str, revision: str | None = None, started: datetime | None = None
    ) -> dict[str, Plan]:
        jobs = [
            found
            for found in self.definitions.values()
            if found.is_job and (not names or found.name in names)
        ]
        deploy = Revision(text=revision, started=started or self.clock.now())
        return {plan.job: plan for plan in Planner(self.store).plan(jobs, deploy)}

    def claim(
        self,
        *names: str,
        holder: str = "host:1:a",
        limit: int = 100,
        lease: timedelta = LEASE,
    ) -> list[Claim]:
        """What is due of these tasks (all), oldest first."""
        _, claims = claim_due(
            self.store,
            holder,
            limit,
            lease=lease,
            names=names or sorted(self.definitions),
        )
        return claims

    def claim_one(self, name: str, holder: str = "host:1:a", **options: Any) -> Claim:
        (claim,) = self.claim(name, holder=holder, **options)
        return claim

    def settle(
        self, claim: Claim, outcome: AttemptOutcome | None = None
    ) -> Transition | None:
        """What became of the row; None: the claim was lost."""
        (settlement,) = self.store.settlements.settle(
            [(claim, outcome or Succeeded())]
        )
        assert settlement.error is None
        return settlement.transition

    def take_over(self, *claims: Claim) -> list[Settlement]:
        """What a reaper does that has seen these claims fall silent."""
        return self.store.settlements.take_over(
            [self.row(*claim.key) for claim in claims]
        )

    def tick(self, minutes: float = 1) -> datetime:
        return self.clock.tick(minutes * MINUTE)

    # -- what the tables say ----------------------------------------------------------------------

    def row(self, name: str, instance: str = RECURRING) -> Row:
        found = self.find(name, instance)
        assert found is not None, f"no row {name}/{instance}"
        return found

    def find(self, name: str, instance: str = RECURRING) -> Row | None:
        tasks = self.tables.tasks
        columns = [tasks.c[column] for column in ROW_COLUMNS]
        with self.store.transaction() as connection:
            values = connection.execute(
                sa.select(*columns).where(*self._key(name, instance))
            ).first()
        return None if values is None else row_of(values)

    def due_of(self, name: str, instance: str) -> datetime:
        """When a row is due; of one that is paused, when it would be."""
        tasks = self.tables.tasks
        due = sa.case(
            (tasks.c.state == "paused", tasks.c.parked_due),
            else_=tasks.c.execution_time,
        )
        with self.store.transaction() as connection:
            found: datetime = connection.execute(
                sa.select(due).where(*self._key(name, instance))
            ).scalar_one()
        return found

    def slots(self, name: str) -> list[sa.RowMapping]:
        """The ledger of a task, oldest first."""
        table = self.tables.slots
        with self.store.transaction() as connection:
            statement = (
                sa.select(table)
                .where(table.c.task_name == name)
                .order_by(table.c.slot)
            )
            return list(connection.execute(statement).mappings())

    def slot(self, name: str) -> sa.RowMapping:
        """The only row of its ledger."""
        (found,) = self.slots(name)
        return found

    def outcomes(self, name: str) -> list[tuple[float, str]]:
        """Its ledger in short: minutes after noon, and the outcome."""
        return [
            ((found["slot"] - NOON) / MINUTE, found["outcome"])
            for found in self.slots(name)
        ]

    def gaps(self, name: str) -> list[tuple[float, float, int, str]]:
        """Its gaps: first and last in minutes after noon, how many, and why."""
        table = self.tables.gaps
        with self.store.transaction() as connection:
            statement = (
                sa.select(table)
                .where(table.c.task_name == name)
                .order_by(table.c.first_slot)
            )
            found = list(connection.execute(statement).mappings())
        return [
            (
                (gap["first_slot"] - NOON) / MINUTE,
                (gap["last_slot"] - NOON) / MINUTE,
                gap["count"],
                gap["reason"],
            )
            for gap in found
        ]

    # -- what else happens to tables --------------------------------------------------------------

    def insert(self, name: str, instance: str, **values: Any) -> None:
        """A row as another program, or an operator with SQL, writes it."""
        row = {
            "picked": False,
            "version": 1,
            "execution_time": self.clock.now(),
            **values,
        }
        with self.store.transaction() as connection:
            connection.execute(
                self.tables.tasks.insert().values(
                    task_name=name, task_instance=instance, **row
                )
            )

    def change(self, name: str, instance: str = RECURRING, **values: Any) -> None:
        with self.store.transaction() as connection:
            connection.execute(
                self.tables.tasks.update()
                .where(*self._key(name, instance))
                .values(**values)
            )

    def delete(self, name: str, instance: str = RECURRING) -> None:
        with self.store.transaction() as connection:
            connection.execute(
                self.tables.tasks.delete().where(*self._key(name, instance))
            )

    def backup(self) -> Sequence[sa.RowMapping]:
        """The queue as it stands; ``restore`` puts it back, and leaves the ledger alone."""
        with self.store.transaction() as connection:
            return list(connection.execute(sa.select(self.tables.tasks)).mappings())

    def restore(self, backup: Sequence[sa.RowMapping]) -> None:
        with self.store.transaction() as connection:
            connection.execute(self.tables.tasks.delete())
            connection.execute(
                self.tables.tasks.insert(), [dict(row) for row in backup]
            )

    def _key(self, name: str, instance: str) -> list[sa.ColumnElement[bool]]:
        tasks = self.tables.tasks
        return [tasks.c.task_name == name, tasks.c.task_instance == instance]


def stale(
    claim: Claim,
    *,
    key: str | None = None,
    version: int = 0,
    holder: str | None = None,
) -> Claim:
    """The claim with one of the three parts of its fence wrong."""
    row = replace(
        claim.row,
        task_instance=key or claim.row.task_instance,
        version=claim.row.version + version,
    )
    return replace(claim, row=row, holder=holder or claim.holder)
