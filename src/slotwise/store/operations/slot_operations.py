"""Orders about single slots: trigger, skip the next, cancel, retry.

Races, beside those of every order (``bureau.py``):

- cancel against the holder's settlement: if that was first, there is nothing to cancel; if the order was, the
  settlement reads it under the row's lock and ends the slot, whatever its outcome but success. The same for a reaper.
- cancel against a claim of a slot that waits for its retry: either the claim sees the order and ends the slot
  without a start, or it was first, and the order reaches its holder with the next heartbeat.
- skip against a claim: who comes second sees the first; a claimed slot has begun, so the one after it is skipped.
- retry against another one: the detached row's key lets one of them in. Against a settlement of that very slot:
  the ledger row's lock; only a slot that is final is opened again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from slotwise.decide import moved
from slotwise.decide.pause import owed_by, skipping
from slotwise.errors import ConfigurationError
from slotwise.model.records import RECURRING, Row
from slotwise.model.vocabulary import ENDED_BADLY, Origin, Outcome, Reason, State
from slotwise.store.operations.transaction import Operation, schedule_in
from slotwise.store.schema.rows import ledger_instance
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import detach, detach_trigger, free_slot
from slotwise.store.slots.queued_slots import freed


def trigger_now(operation: Operation, job: str, overlap: str | None = None, instance: str = RECURRING) -> datetime:
    """One run of the job beside its schedule; its slot. A paused job's waits until the job is resumed.

    ``overlap`` is decided here, once. If something of the job runs, or an earlier trigger has yet to start, ``queue``
    waits for the end of those, and ``skip`` enters the slot as skipped.

    Race: a deploy or a settlement may have locked the plan row. The lock is waited for, so that a locked row is not
    taken for a running one; and no slot of the schedule starts before this commits.
    """
    connection, dialect = operation.connection, operation.store.dialect
    plan, family = operation.plan_and_family(job, instance)
    slot = free_slot(connection, dialect, job, instance, owed_by(plan), operation.now)
    number = operation.sign("trigger", job=job, slot=slot, overlap=overlap, id=_named(instance))
    is_busy = _is_busy(family)
    if overlap == "skip" and is_busy:
        ledger.skip(connection, dialect, replace(plan, slot=slot, origin=Origin.TRIGGER), Reason.OVERLAP, operation.now)
        return slot
    is_queued = overlap == "queue" and is_busy
    detach_trigger(connection, dialect, operation.now, job, slot, instance, is_queued=is_queued, control=number)
    for row in family if is_queued else ():
        if row.picked and row.control is None and row.cancel_requested is None:  # else its end looks for triggers
            operation.change(row, control=number)
    return slot


def _is_busy(family: Sequence[Row]) -> bool:
    """Whether something of a job runs, or is a trigger that has yet to start."""
    return any(row.picked or (row.origin == Origin.TRIGGER and not row.attempt) for row in family)


def skip_next(operation: Operation, job: str, slot: datetime | None = None, instance: str = RECURRING) -> datetime:
    """The next slot that has not begun does not run: skipped (operator). ``slot``: only if it is this one."""
    row = operation.plan_row(job, instance)
    passed = skipping(row, schedule_in(row), operation.now)
    if passed is None:
        raise ConfigurationError(f"job {job!r} has no next slot: its schedule has ended, or waits for the end of a run")
    following = passed.gaps[0].first
    if slot is not None and slot != following:
        raise ConfigurationError(
            f"the next slot of job {job!r} is {following.isoformat()}, not {slot.isoformat()}; nothing is skipped"
        )
    operation.sign("skip-next", job=job, slot=following, id=_named(instance))
    operation.skip(row, *passed.gaps)
    operation.change(row, **{name: value for name, value in passed.row.items() if name != "state"})
    return following


def cancel(operation: Operation, job: str, slot: datetime | None = None, instance: str | None = None) -> list[datetime]:
    """End what runs of the job, or the slot given, also if it waits for its retry; the slots. Empty: nothing runs.

    ``instance``: None is the job with all its instances, or, where a slot is given, the job's own row.
    """
    if slot is not None:
        instance = instance or RECURRING
    rows = [row for row in _rows(operation, job, instance) if row.slot is not None]
    chosen = [row for row in rows if (row.picked if slot is None else row.slot == slot)]
    if slot is not None and instance is not None:
        _refuse_unbegun(operation, job, slot, chosen, instance)
    ended = []
    for row in chosen:
        assert row.slot is not None
        number = operation.sign("cancel", job=job, slot=row.slot, id=_named(ledger_instance(row)))
        if row.picked:
            operation.change(row, cancel_requested=operation.now, control=row.control or number)
        elif row.attempt:
            due = moved(row, min(row.due, operation.now))
            operation.change(row, cancel_requested=operation.now, control=row.control or number, **due)
        else:
            cancel_waiting(operation, row, Reason.OPERATOR)
        ended.append(row.slot)
    return ended


def _rows(operation: Operation, job: str, instance: str | None) -> list[Row]:
    """Lock the rows of a job with all its instances, or of one of them. Raises UnknownTask where there is none."""
    if instance is None:
        return operation.rows_of(job)
    found = [row for row in operation.family(job, instance) if row.is_plan or row.is_detached]
    return found or [operation.plan_row(job, instance)]  # one that was deleted may still run


def _refuse_unbegun(operation: Operation, job: str, slot: datetime, chosen: list[Row], instance: str) -> None:
    where = f"slot {slot.isoformat()} of job {job!r}"
    if not chosen:
        entry = _entry(operation, job, slot, instance)
        raise ConfigurationError(f"{where} does not run: {'it is not in the ledger' if entry is None else entry[0]}")
    if any(row.is_plan and not row.picked and not row.attempt for row in chosen):
        raise ConfigurationError(f"{where} has not begun; to leave it out: slotwise skip-next {job}")


def cancel_waiting(operation: Operation, row: Row, reason: str) -> None:
    """End a slot whose row waits and has not begun: it is written down, and its row goes."""
    ledger.cancel_waiting(operation.connection, operation.store.dialect, row, reason, operation.now)
    operation.delete(row)
    if row.state != State.QUEUED:
        freed(operation.connection, operation.store.dialect, row, operation.now, never_began=True)


def call_off_backfill(operation: Operation, job: str, instance: str | None = None) -> int:
    """End the slots of backfills that have not begun, of the job with all its instances or of one; how many."""
    found = _rows(operation, job, instance)
    rows = [row for row in found if row.origin == Origin.BACKFILL and not row.picked and not row.attempt]
    if rows:
        operation.sign("cancel-backfill", job=job, slots=len(rows), id=instance and _named(instance))
    for row in sorted(rows, key=lambda row: row.state == State.QUEUED, reverse=True):  # the last one releases nothing
        cancel_waiting(operation, row, Reason.OPERATOR)
    return len(rows)


def retry(operation: Operation, job: str, slot: datetime, instance: str = RECURRING) -> None:
    """One more attempt of a slot that ended badly, as the same slot, beside the schedule."""
    plan = operation.plan_row(job, instance)
    where = f"slot {slot.isoformat()} of job {job!r}"
    entry = _entry(operation, job, slot, instance)
    if entry is None and slot > operation.now:
        raise ConfigurationError(f"{where} is yet to come; for a run at once: slotwise trigger {job}")
    if entry is None:
        raise ConfigurationError(f"{where} is not in the ledger; what never ran is run by: slotwise backfill {job}")
    outcome, finished, attempts, collapsed, reason = entry
    if finished is None:
        again = "" if outcome in (Outcome.RUNNING, Outcome.CLAIMED) else f", and waits to run again ({reason})"
        raise ConfigurationError(f"{where} has not ended: {outcome}{again}")
    if outcome not in ENDED_BADLY:
        cure = (
            f"run it with: slotwise backfill {job}" if outcome == Outcome.SKIPPED else "trigger the job for another run"
        )
        raise ConfigurationError(f"{where} is {outcome}, which is not tried again; {cure}")
    number = operation.sign("retry", job=job, slot=slot, id=_named(instance))
    ledger.reopen(operation.connection, operation.store.dialect, plan, [slot], Reason.RETRY)
    key = detach(
        operation.connection, operation.store.dialect, operation.now,
        name=job, slot=slot, origin=Origin.RETRY, attempt=attempts,
        collapsed=collapsed, control=number, plan_instance=instance, last_failure=finished,
    )  # fmt: skip
    if key is None:
        raise ConfigurationError(f"{where} waits for another attempt already")


def _named(instance: str) -> str | None:
    """As an order says it; a job's own row goes without saying."""
    return None if instance == RECURRING else instance


def _entry(operation: Operation, job: str, slot: datetime, instance: str = RECURRING) -> Any:
    """Lock the slot's ledger row: outcome, finished, attempts, collapsed, reason; None: it has none."""
    slots = operation.store.tables.slots
    statement = sa.select(slots.c.outcome, slots.c.finished, slots.c.attempts, slots.c.collapsed, slots.c.reason)
    mine = [slots.c.task_name == job, slots.c.task_instance == instance, slots.c.slot == slot]
    return operation.connection.execute(statement.where(*mine).with_for_update()).first()
