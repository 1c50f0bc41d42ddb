"""What all orders share: a transaction that may be a rehearsal, the one clock's time, and rows locked in key order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, TypeVar

import sqlalchemy as sa

from slotwise.decide.pause import asleep
from slotwise.errors import ConfigurationError, InvalidSchedule, UnknownTask
from slotwise.model.records import RECURRING, Gap, Row
from slotwise.model.vocabulary import State
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.connect.database import commit_surely
from slotwise.store.connect.database_errors import in_its_letters
from slotwise.store.schema.audit_rows import Author
from slotwise.store.schema.rows import row_of
from slotwise.store.schema.tables import is_plan, of_plan
from slotwise.store.schema.worker_rows import worker_info
from slotwise.store.slots.store import Store

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One order being carried out: everything in one transaction, at one time, by one author.

    Race: orders lock the rows that they change, sorted by key, and wait for them; so two operators, or an operator
    and a settlement, take turns and cannot deadlock. Claims, heartbeats and reapers pass locked rows by.
    """

    connection: sa.Connection
    store: Store
    now: datetime
    author: Author

    def sign(self, command: str, **facts: Any) -> int:
        """Write the order into the audit table."""
        return self.author.sign(self.connection, self.store.tables, self.now, command, **facts)

    def rows(self, *conditions: sa.ColumnElement[bool]) -> list[Row]:
        """Lock these rows, in key order; as they are once nobody else has them."""
        dialect = self.store.dialect
        statement = sa.select(*dialect.row_columns).where(*conditions).order_by(*dialect.key_order).with_for_update()
        return [row_of(values) for values in self.connection.execute(statement)]

    def rows_of(self, job: str, *, for_good: bool = False) -> list[Row]:
        """Lock all rows of a job; ``for_good``: and let nobody make another. Raises UnknownTask without a plan row."""
        if for_good:
            self.store.dialect.latch(self.connection, job, shared=False)
        found = self.rows(self.store.tables.tasks.c.task_name == job)
        if any(row.is_plan for row in found):
            return found
        tasks = f"for tasks: slotwise tasks list {job}, or schedule, cancel, retry"
        if found:
            raise ConfigurationError(f"{job!r} is a one-time task; orders of this kind are for jobs; {tasks}")
        if self._is_known(job):
            raise UnknownTask(
                f"no job {job!r} has a row, and live workers know it: it is a one-time task ({tasks}), or a job that "
                "was deleted, which the next worker that starts plans again"
            )
        near = get_close_matches(job, self._jobs(), n=1)
        hint = f"did you mean {near[0]!r}? else " if near else ""
        raise UnknownTask(
            f"no job {job!r} has a row; {hint}start a worker that knows it once, or see: slotwise jobs list"
        )

    def _is_known(self, name: str) -> bool:
        """Whether a live worker does."""
        workers = self.store.tables.workers
        rows = self.connection.execute(sa.select(workers, sa.literal(0).label("running"))).mappings()
        return any(line.live and name in line.tasks for line in (worker_info(row, self.now) for row in rows))

    def _jobs(self) -> Sequence[str]:
        """Some names of jobs, for a message."""
        tasks = self.store.tables.tasks
        names = sa.select(tasks.c.task_name).where(tasks.c.task_instance == RECURRING, is_plan(tasks))
        return self.connection.scalars(names.order_by(tasks.c.task_name).limit(1000)).all()

    def plan_row(self, job: str, instance: str = RECURRING) -> Row:
        """Lock the job's own row, or that of an instance, and those beside it. Raises UnknownTask without one."""
        return self.plan_and_family(job, instance)[0]

    def plan_and_family(self, job: str, instance: str = RECURRING) -> tuple[Row, list[Row]]:
        """As ``plan_row``, with all rows that were locked."""
        family = self.family(job, instance)
        for row in family:
            if row.task_instance == instance and row.is_plan and row.state != State.DELETED:
                return row, family
        self.rows_of(job)
        raise UnknownTask(f"job {job!r} has no recurring instance {instance!r}; see: slotwise jobs instances {job}")

    def family(self, job: str, instance: str = RECURRING) -> list[Row]:
        """Lock the job's own row, or that of an instance, and those beside it, whatever there is."""
        if not isinstance(instance, str):
            raise ConfigurationError(f"id={instance!r:.60}: expected a string; write id={str(instance)!r:.60}")
        tasks = self.store.tables.tasks
        return self.rows(tasks.c.task_name == job, of_plan(tasks, instance))

    def change(self, row: Row, **columns: Any) -> None:
        """Write columns of a row that is locked; the due time of a paused row is kept beside."""
        if (
            row.state == State.PAUSED
            and columns.get("state", State.PAUSED) == State.PAUSED
            and "execution_time" in columns
        ):
            columns |= asleep(columns["execution_time"])
        tasks = self.store.tables.tasks
        mine = [tasks.c.task_name == row.task_name, tasks.c.task_instance == row.task_instance]
        self.connection.execute(tasks.update().where(*mine, tasks.c.version == row.version).values(**columns))

    def delete(self, row: Row) -> None:
        """Delete a row that is locked and held by nobody; in an adopted table a guard lets only marked ones go."""
        self.change(row, state=State.DELETED)
        tasks = self.store.tables.tasks
        mine = [tasks.c.task_name == row.task_name, tasks.c.task_instance == row.task_instance]
        self.connection.execute(tasks.delete().where(*mine, tasks.c.version == row.version, ~tasks.c.picked))

    def skip(self, row: Row, *gaps: Gap) -> None:
        """Enter slots that do not run."""
        self.store.dialect.gaps(self.connection, [(row, gap) for gap in gaps], self.now)


def carry_out(store: Store, author: Author, order: Callable[[Operation], Result], *, rehearse: bool = False) -> Result:
    """Carry out an order; a rehearsal does all of it and takes it back at the end. Raises only if nothing was done.

    Race: the reply to the commit may be lost. Given again, the order would trigger a second run, or leave out one slot
    more; so the database is asked what became of it.
    """

    def work(connection: sa.Connection) -> tuple[str | None, Result]:
        at = Operation(connection=connection, store=store, now=store.dialect.now(connection), author=author)
        result = order(at)
        return store.dialect.transaction_id(connection), result

    with in_its_letters("this order"):
        if not rehearse:
            return commit_surely(store.database, store.dialect, work)
        with store.database.main.connect() as connection, connection.begin() as transaction:
            _, result = work(connection)
            transaction.rollback()
            return result


def schedule_in(row: Row) -> Schedule:
    """The schedule that decides. Raises ConfigurationError if this release cannot read it."""
    try:
        return parse_schedule(row.schedule or "-")
    except InvalidSchedule as error:
        raise ConfigurationError(f"job {row.task_name!r}: {error}; use the slotwise of the workers") from None
