"""Backfill: run the slots of a range that never ran, each in a detached row, with a limit on concurrency and pace.

One operation makes all rows. The first few are due. The others are ``queued``, and the end of one releases the next
(``store/slots/queued_slots.py``). A single plan row with a schedule of the past does not work. A resume would skip all
that is left of it as slots of the pause. The ledger's newest slot is ahead of it, so its first claim would pass all of
it. And a slot that succeeded, and is pruned while the backfill goes on, would run again. Races:

- against the schedule: only slots that the plan row has passed are taken, so no two rows are of one slot;
- against another backfill of the same range: detached rows have the slot in their key, the second adds what lacks;
- against a pruner, for which a slot that ran looks like one that never did: whether history was pruned is asked last;
- two that end at once: each takes the next queued row that nobody has locked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.jobs.policies import LONGEST_QUEUE
from slotwise.model.durations import format_duration
from slotwise.model.records import FOREVER, RECURRING, TICK, Row
from slotwise.model.vocabulary import ENDED_BADLY, Origin, Outcome, Reason, State
from slotwise.schedules import Schedule
from slotwise.store.operations.transaction import Operation, schedule_in
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import of_plan
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import detach
from slotwise.store.slots.retention import pruned_until

#: So many slots are looked at, at the most; whoever wants more does it in pieces.
WIDEST = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What a backfill runs: the slots that were missing from ``first`` to ``last``, and how many were not."""

    job: str
    first: datetime
    last: datetime
    slots: tuple[datetime, ...]
    present: int
    #: How many have come that the schedule has yet to decide; those are neither.
    undecided: int = 0


def backfill(
    operation: Operation,
    job: str,
    first: datetime,
    last: datetime,
    *,
    pace: timedelta | None = None,
    concurrency: int = 1,
    failed: bool = False,
    forgotten: bool = False,
    instance: str = RECURRING,
) -> Backfill:
    """Run the slots from ``first`` to ``last``, both included, that never ran; with ``failed``, those that did in vain.

    Slots that the plan row has yet to decide are its own, and left alone; nothing runs before its time.
    ``forgotten``: also where history was pruned, and slots may have run that the ledger does not know any more.
    """
    row = operation.plan_row(job, instance)
    schedule = schedule_in(row)
    if first > operation.now:
        raise ConfigurationError(
            f"backfill of {job!r}: {first.isoformat()} is yet to come, and what comes is the schedule's; begin earlier"
        )
    come, last = min(last, operation.now), min(last, _passed_by(row, operation.now), operation.now)
    _refuse(job, schedule, first, last)
    taken = _taken(operation, row, first, last, failed=failed)
    slots = list(schedule.running.slots(first - TICK, last))
    missing = tuple(slot for slot in slots if slot not in taken)
    if len(missing) > LONGEST_QUEUE:
        raise ConfigurationError(
            f"backfill of {job!r}: {len(missing)} slots are missing, at most {LONGEST_QUEUE} run in one go; "
            "choose a shorter range"
        )
    if missing:
        number = operation.sign(
            "backfill", job=job, first=first.isoformat(), last=last.isoformat(), slots=len(missing),
            concurrency=concurrency, pace=None if pace is None else format_duration(pace), failed=failed or None,
            id=None if instance == RECURRING else instance,
        )  # fmt: skip
        begun = _begun(operation, row, missing)
        ledger.reopen(operation.connection, operation.store.dialect, row, missing, Reason.BACKFILL)
        if not forgotten:
            _refuse_forgotten(operation, job, first)
        _detach(operation, row, missing, begun, number, pace or timedelta(0), concurrency)
    present, undecided = len(slots) - len(missing), schedule.running.count_between(max(last, first - TICK), come)
    return Backfill(job=job, first=first, last=last, slots=missing, present=present, undecided=undecided)


def _passed_by(row: Row, now: datetime) -> datetime:
    """The newest slot that is not the plan row's to decide any more."""
    if row.slot is None:
        return row.watermark or now
    return max(row.slot, row.watermark or row.slot) if row.attempt else row.slot - TICK


def _refuse(job: str, schedule: Schedule, first: datetime, last: datetime) -> None:
    if schedule.from_end:
        raise ConfigurationError(f"job {job!r}: {schedule} has no slots of its own to fill; trigger the job instead")
    if (count := schedule.count_between(first - TICK, last)) > WIDEST:
        raise ConfigurationError(
            f"backfill of {job!r}: {count} slots from {first.isoformat()} to {last.isoformat()}, "
            f"at most {WIDEST} are looked at; choose a shorter range"
        )


def _refuse_forgotten(operation: Operation, job: str, first: datetime) -> None:
    """What ran there was taken out of the ledger: to run it again is for whoever says so."""
    until = pruned_until(operation.connection, operation.store)
    if until is not None and first <= until:
        raise ConfigurationError(
            f"backfill of {job!r}: up to {until.isoformat()} history was pruned, and nobody knows what ran; "
            "begin later, or say that forgotten slots may run again: --forgotten, or forgotten=True"
        )


def _taken(operation: Operation, row: Row, first: datetime, last: datetime, *, failed: bool) -> set[datetime]:
    """The slots of the range that are not to run: they did, or are about to."""
    slots, tasks = operation.store.tables.slots, operation.store.tables.tasks
    again = (Outcome.SKIPPED, *ENDED_BADLY) if failed else (Outcome.SKIPPED,)
    ledger = (
        sa.select(slots.c.slot)
        .where(slots.c.task_name == row.task_name, slots.c.task_instance == row.task_instance)
        .where(slots.c.slot >= first, slots.c.slot <= last)
        .where(slots.c.finished.is_(None) | slots.c.outcome.not_in(again))
    )
    mine = of_plan(tasks, row.task_instance)
    waiting = sa.select(tasks.c.slot).where(tasks.c.task_name == row.task_name, mine, tasks.c.slot.is_not(None))
    found = [*operation.connection.scalars(ledger), *operation.connection.scalars(waiting)]
    return {utc(slot) for slot in found}


def _detach(
    operation: Operation,
    row: Row,
    missing: tuple[datetime, ...],
    begun: dict[datetime, tuple[int, datetime]],
    number: int,
    pace: timedelta,
    concurrency: int,
) -> None:
    for place, slot in enumerate(missing):
        due = operation.now + place * pace
        waits: dict[str, Any] = {} if place < concurrency else {"state": State.QUEUED, "parked_due": due}
        attempts, ended = begun.get(slot, (0, None))
        detach(
            operation.connection, operation.store.dialect, operation.now,
            name=row.task_name, slot=slot, origin=Origin.BACKFILL,
            plan_instance=row.task_instance, due=due if place < concurrency else FOREVER, control=number,
            attempt=attempts, last_failure=ended, **waits,
        )  # fmt: skip


def _begun(operation: Operation, row: Row, missing: tuple[datetime, ...]) -> dict[datetime, tuple[int, datetime]]:
    """How often those that have been started were, and when they ended."""
    slots = operation.store.tables.slots
    statement = (
        sa.select(slots.c.slot, slots.c.attempts, slots.c.finished)
        .where(slots.c.task_name == row.task_name, slots.c.task_instance == row.task_instance)
        .where(slots.c.slot >= missing[0], slots.c.slot <= missing[-1], slots.c.attempts > 0)
    )
    found = operation.connection.execute(statement)
    return {utc(slot): (attempts, finished) for slot, attempts, finished in found}
