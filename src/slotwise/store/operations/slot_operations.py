"""Operations on single slots: trigger, skip the next, cancel, retry.

Races, besides those of every operation (``transaction.py``):

- cancel against the holder's settlement: if that was first, there is nothing to cancel. Otherwise
  the settlement reads the request under the row's lock and ends the slot, whatever its outcome but
  success. The same for a reaper.
- cancel against a claim of a slot that waits for its retry: the claim sees the request and ends
  the slot without a start, or it was first, and the request reaches its holder with the next
  heartbeat.
- skip against a claim: a claimed slot has begun, so the one after it is skipped.
- retry against another retry: the key of the detached row permits one. Against a settlement of
  that slot: the lock on the ledger row; only a final slot is reopened.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from slotwise.decide.going_back import moved
from slotwise.decide.pause import owed_by, skipping
from slotwise.errors import ConfigurationError, UnknownTask
from slotwise.model.records import FOREVER, RECURRING, TICK, Claim, Key, Row, to_micros
from slotwise.model.vocabulary import ENDED_BADLY, Origin, Outcome, Reason, RowState
from slotwise.schedules import Disabled, Schedule
from slotwise.schedules.text import readable
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import ClaimRequest, Transaction
from slotwise.store.operations import transaction
from slotwise.store.operations.transaction import (
    Operation,
    Progress,
    id_of,
    schedule_in,
)
from slotwise.store.schema.tables import Columns, Condition, of_plan
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import detach, freed, plan_of
from slotwise.store.slots.store import Store


def trigger_now(
    at: Operation, job: str, overlap: str | None = None, instance: str = RECURRING
) -> datetime:
    """Run the job once beside its schedule; return the slot. If the job is paused, the run waits
    for the resume.

    ``overlap`` is decided here, once. If something of the job runs, or an earlier trigger has yet
    to start, ``queue`` waits for the end of those, and ``skip`` enters the slot as skipped.

    Race: a deploy or a settlement may have locked the plan row. This waits for the lock, so that a
    locked row is never taken for a running one, and no slot of the schedule starts before the
    commit.
    """
    family = at.family(job, instance)
    plan = at.plan_among(family, job, instance)
    key = Key(job, instance)
    slot = _free_slot(at.transaction, key, owed_by(plan))
    number = at.sign("trigger", job=job, slot=slot, overlap=overlap, id=instance)
    is_busy = _is_busy(family)
    if overlap == "skip" and is_busy:
        row = replace(plan, slot=slot, origin=Origin.TRIGGER)
        ledger.end_unbegun(at.transaction, row, Outcome.SKIPPED, Reason.OVERLAP)
    elif overlap == "queue" and is_busy:
        _detach_trigger(at.transaction, key, slot, is_queued=True, control=number)
        for (
            row
        ) in family:  # the end of a held row with an operation looks for triggers
            if row.picked and row.control is None and row.cancel_requested is None:
                at.change(row, control=number)
    else:
        _detach_trigger(at.transaction, key, slot, control=number)
    return slot


def trigger(
    store: Store,
    connection: sa.Connection,
    name: str,
    plan_instance: str = RECURRING,
    **columns: Any,
) -> Key:
    """A detached row for a job, now, beside its schedule. Raises UnknownTask without a plan
    row.
    """
    key = Key(name, plan_instance)
    if (plan := plan_of(connection, store.dialect, key, lock=True)) is None:
        raise UnknownTask(
            f"job {name!r} has no row yet; start a worker that knows it once, or check the name"
        )
    at = store.at(connection)
    slot = _free_slot(at, key, readable(plan.schedule) or Disabled())
    return _detach_trigger(at, key, slot, **columns)


def _detach_trigger(
    at: Transaction,
    plan: Key,
    slot: datetime,
    *,
    is_queued: bool = False,
    **columns: Any,
) -> Key:
    """A trigger's row; its id begins with the time. The caller has locked the plan row, and has
    found the slot free.
    """
    token = uuid.UUID(
        int=(to_micros(at.now) // 1000 << 80) + (uuid.uuid4().int & (1 << 80) - 1),
        version=4,
    )
    waits: dict[str, Any] = (
        {"state": RowState.QUEUED, "parked_due": at.now, "due": FOREVER}
        if is_queued
        else {}
    )
    key = detach(
        at,
        name=plan.task_name,
        slot=slot,
        origin=Origin.TRIGGER,
        instance=f"trigger:{token}",
        plan_instance=plan.task_instance,
        **waits,
        **columns,
    )
    assert key is not None  # the id is new
    return key


def _free_slot(at: Transaction, plan: Key, schedule: Schedule) -> datetime:
    """The time of the request, moved on by a microsecond while it is taken, or a slot of the
    schedule.
    """
    slot = at.now
    while schedule.next_after(slot - TICK) == slot or _is_taken(at, plan, slot):
        slot += TICK
    return slot


def _is_taken(at: Transaction, plan: Key, slot: datetime) -> bool:
    slots = at.dialect.tables.slots
    tasks = at.dialect.tables.tasks.c
    one = sa.select(sa.literal(1))
    known = one.where(*of_key(slots.c, plan), slots.c.slot == slot)
    waits = one.where(
        tasks.task_name == plan.task_name,
        of_plan(tasks, plan.task_instance),
        tasks.slot == slot,
    )
    return at.connection.execute(known.union_all(waits)).first() is not None


def _is_busy(family: Sequence[Row]) -> bool:
    """Return whether something of a job runs, or is a trigger that has yet to start."""
    return any(
        row.picked or (row.origin == Origin.TRIGGER and not row.attempt)
        for row in family
    )


def claim_trigger(
    store: Store, holder: str, name: str, *, lease: timedelta, strict: bool
) -> Claim | None:
    """Trigger a job and claim it in one transaction, so that no other worker can be first."""
    with store.transaction() as connection:
        instance = trigger(store, connection, name, state=None).task_instance
        given_up = [name] if strict else []
        request = ClaimRequest(
            holder=holder,
            names=[name],
            limit=1,
            lease=lease,
            instance=instance,
            strict=given_up,
        )
        row, now, entered = store.dialect.claim(connection, request)[0]
    return (
        Claim(row=row, holder=holder, lease=lease, claimed_at=now) if entered else None
    )


def skip_next(
    at: Operation, job: str, slot: datetime | None = None, instance: str = RECURRING
) -> datetime:
    """Skip the next slot that has not begun (operator) and return it. ``slot``: only if it is this
    one.
    """
    (row,) = at.caught_up(at.plan_row(job, instance))
    passed = skipping(row, schedule_in(row), at.now)
    if passed is None:
        raise ConfigurationError(
            f"job {job!r} has no next slot: its schedule has ended, or waits for the end of a run"
        )
    following = passed.gaps[0].first
    if slot is not None and slot != following:
        raise ConfigurationError(
            f"the next slot of job {job!r} is {at.told(following, row)}, not "
            f"{at.told(slot, row)}; nothing is skipped"
        )
    at.sign("skip_next", job=job, slot=following, id=instance)
    at.skip(row, *passed.gaps)
    at.change(row, **passed.row)
    return following


def cancel(
    at: Operation, job: str, slot: datetime | None = None, instance: str | None = None
) -> list[datetime]:
    """Ask what runs to stop, or end the given slot (without ``instance`` the job's own); return
    the slots.
    """
    if slot is None:
        chosen = [row for row in _rows(at, job, instance) if row.slot and row.picked]
    else:
        chosen = _begun(at, job, slot, instance or RECURRING)
    for row in chosen:
        number = at.sign(
            "cancel", job=job, slot=row.slot, id=row.plan_key.task_instance
        )
        if not row.picked and not row.attempt:
            cancel_waiting(at, row, Reason.OPERATOR)
        else:
            _ask_to_stop(at, row, number)
    return [row.slot for row in chosen if row.slot is not None]


def _ask_to_stop(at: Operation, row: Row, number: int) -> None:
    due = {} if row.picked else moved(row, min(row.due, at.now))
    control = row.control or number
    at.change(row, cancel_requested=at.now, control=control, called_off=None, **due)


def _begun(at: Operation, job: str, slot: datetime, instance: str) -> list[Row]:
    """Lock the rows of a slot. Raises ConfigurationError unless the slot has begun, or waits in a
    row of its own.
    """
    rows = _rows(at, job, instance)
    chosen = [row for row in rows if row.slot == slot]
    where = f"slot {at.told(slot, *rows)} of job {job!r}"
    if not chosen:
        entry = _entry(at, job, slot, instance)
        state = "it is not in the ledger" if entry is None else entry["outcome"]
        raise ConfigurationError(f"{where} does not run: {state}")
    if any(row.is_plan and not row.picked and not row.attempt for row in chosen):
        raise ConfigurationError(
            f"{where} has not begun; to leave it out: slotwise skip-next {job}"
        )
    return chosen


def _rows(at: Operation, job: str, instance: str | None) -> list[Row]:
    """Lock the held rows of a job with all its instances, or all rows of one. Raises UnknownTask
    without a job.
    """
    if instance is None:
        at.expect_plan(job)
        return at.rows(at.tasks.c.task_name == job, at.tasks.c.picked)
    found = [row for row in at.family(job, instance) if row.has_slot]
    return found or [at.plan_row(job, instance)]  # a deleted one may still run


def cancel_waiting(at: Operation, row: Row, reason: str) -> None:
    """End a slot that waits in a detached row and has not begun, and delete the row."""
    ledger.end_unbegun(at.transaction, row, Outcome.CANCELLED, reason)
    at.delete(row)
    if row.state != RowState.QUEUED:
        freed(at.transaction, row, never_began=True)


def cancel_backfill(
    at: Operation, job: str, so_far: Progress, instance: str | None
) -> Progress:
    """End a chunk of the slots of backfills that have not begun, of all instances or of one."""
    waiting = _of_backfills(at.tasks.c, job, instance)
    count = at.count(*waiting)
    if not so_far.rows and not count:
        _rows(at, job, instance)  # raises without a job
    if so_far.is_rehearsed or not count:
        return replace(so_far, rows=so_far.rows + count, is_done=True)
    number = so_far.number or at.sign(
        "cancel_backfill", job=job, slots=count, id=instance
    )
    rows = _queued_first(at, waiting)
    for row in rows:
        cancel_waiting(at, row, Reason.OPERATOR)
    return so_far.beyond(rows, None if len(rows) == count else "", number=number)


def _of_backfills(tasks: Columns, job: str, instance: str | None) -> list[Condition]:
    """Whether a row waits for a slot of a backfill that has not begun."""
    waiting = [
        tasks.task_name == job,
        tasks.origin == Origin.BACKFILL,
        ~tasks.picked,
        tasks.attempt == 0,
    ]
    if instance is not None:
        waiting.append(tasks.plan_instance == id_of(instance))
    return waiting


def _queued_first(at: Operation, waiting: Sequence[Condition]) -> list[Row]:
    """Lock a chunk of these rows; queued ones go first, so that no end releases another slot."""
    id = at.tasks.c.task_instance
    order = sa.case((at.tasks.c.state == RowState.QUEUED, 0), else_=1)
    some = sa.select(id).where(*waiting).order_by(order, id).limit(transaction.CHUNK)
    rows = at.rows(*waiting, id.in_(at.connection.scalars(some).all()))
    return sorted(rows, key=lambda row: row.state != RowState.QUEUED)


def retry(at: Operation, job: str, slot: datetime, instance: str = RECURRING) -> None:
    """Start one more attempt of a slot that ended badly, as the same slot, beside the schedule."""
    plan = at.plan_row(job, instance)
    entry = _entry(at, job, slot, instance)
    which = f"slot {at.told(slot, plan)} of job {job!r}"
    if (
        entry is None
        or entry["finished"] is None
        or entry["outcome"] not in ENDED_BADLY
    ):
        raise ConfigurationError(f"{which} {_why_not(at, job, slot, entry)}")
    number = at.sign("retry", job=job, slot=slot, id=instance)
    ledger.reopen(at.transaction, plan, [slot], Reason.RETRY)
    key = detach(
        at.transaction,
        name=job,
        slot=slot,
        origin=Origin.RETRY,
        attempt=entry["attempts"],
        collapsed=entry["collapsed"],
        control=number,
        plan_instance=instance,
        last_failure=entry["finished"],
    )
    if key is None:
        raise ConfigurationError(f"{which} waits for another attempt already")


def _why_not(
    at: Operation, job: str, slot: datetime, entry: sa.RowMapping | None
) -> str:
    if entry is None and slot > at.now:
        return f"is yet to come; for a run at once: slotwise trigger {job}"
    if entry is None:
        return (
            f"is not in the ledger; what never ran is run by: slotwise backfill {job}"
        )
    outcome = entry["outcome"]
    if entry["finished"] is None:
        runs = outcome in (Outcome.RUNNING, Outcome.CLAIMED)
        return f"has not ended: {outcome}" + (
            "" if runs else f", and waits to run again ({entry['reason']})"
        )
    is_missed = outcome == Outcome.SKIPPED and slot <= at.now
    again = (
        f"run it with: slotwise backfill {job}"
        if is_missed
        else f"for another run: slotwise trigger {job}"
    )
    return f"is {outcome}, which is not tried again; {again}"


def _entry(
    at: Operation, job: str, slot: datetime, instance: str
) -> sa.RowMapping | None:
    slots = at.store.tables.slots.c
    names = ("outcome", "finished", "attempts", "collapsed", "reason")
    mine = [*of_key(slots, Key(job, instance)), slots.slot == slot]
    entry = sa.select(*(slots[name] for name in names)).where(*mine)
    return at.connection.execute(entry.with_for_update()).mappings().first()
