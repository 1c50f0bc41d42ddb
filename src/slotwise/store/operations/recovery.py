"""For the day after a restore of all tables, or a failover that lost commits: a new epoch, and slots up to an instant.

Nobody but the operator knows what happened after the moment that the tables have gone back to. Do both while all
is paused, or no worker runs.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import datetime

from slotwise.decide.pause import slept
from slotwise.model.records import Row
from slotwise.model.vocabulary import Reason, State
from slotwise.store.operations.transaction import Operation, schedule_in
from slotwise.store.schema.column_types import to_micros
from slotwise.store.schema.tables import is_plan
from slotwise.store.slots import ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The new installation's id; how many rows rose, and how many claims were taken from their holders."""

    installation: str
    rows: int
    claims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledJob:
    """A job whose slots up to an instant will not run any more."""

    job: str
    instance: str
    slots: int
    next_slot: datetime | None


def new_epoch(operation: Operation) -> Epoch:
    """Tokens rise above all that were ever given out, claims end, and the installation is another one.

    Holders of the time before are refused: by their token here and wherever it is compared, and by complete_in,
    which looks at the installation.
    """
    tasks, meta = operation.store.tables.tasks, operation.store.tables.meta
    number, installation = to_micros(operation.now), str(uuid.uuid4())
    held = operation.rows(tasks.c.picked)
    for row in held:
        token = max(number, row.version) + 1
        ledger.raise_token(operation.connection, operation.store.dialect, row, token)
        operation.change(row, version=token)
    risen = operation.connection.execute(
        tasks.update().where(tasks.c.version < number).values(version=number)
    ).rowcount  # fmt: skip
    operation.connection.execute(meta.update().where(meta.c.key == "installation_id").values(value=installation))
    operation.sign("new-epoch", installation=installation, rows=risen + len(held), claims=len(held))
    return Epoch(installation=installation, rows=risen + len(held), claims=len(held))


def settle_until(operation: Operation, until: datetime) -> list[SettledJob]:
    """Slots up to ``until`` that have not begun end as skipped (settled), those that wait for a retry as cancelled.

    What is held is left to its holder or a reaper; one-time tasks and detached rows are no slots of a schedule.
    """
    tasks = operation.store.tables.tasks
    until = min(until, operation.now)
    plans = [is_plan(tasks), ~tasks.c.picked, tasks.c.slot <= until]
    found = [one for row in operation.rows(*plans) if (one := _settle(operation, row, until)) is not None]
    operation.sign("settle-until", until=until.isoformat(), slots=sum(one.slots for one in found))
    return found


def _settle(operation: Operation, row: Row, until: datetime) -> SettledJob | None:
    waiting = row
    if row.attempt:
        ledger.cancel_retry(operation.connection, operation.store.dialect, row, Reason.SETTLED, operation.now)
        waiting = replace(row, attempt=0)
    passed = slept(waiting, schedule_in(row), until)
    if passed is None:
        return None
    operation.skip(row, *(replace(gap, reason=Reason.SETTLED) for gap in passed.gaps))
    columns = {**passed.row, "state": row.state}
    if row.state != State.PAUSED:
        columns["parked_due"] = None
    operation.change(row, **columns)
    return SettledJob(
        job=row.task_name,
        instance=row.task_instance,
        slots=max(passed.count, int(row.attempt > 0)),
        next_slot=passed.row.get("slot"),
    )
